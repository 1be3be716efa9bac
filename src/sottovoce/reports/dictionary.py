"""Explain the words of a report that a reader may not know, each only where it is used."""

import re
from collections.abc import Iterable

from sottovoce import methods as known_methods

_MEANINGS = {  # what stands on the page, and what it means
    "epsilon": "how much the data of one person can change what others see. Smaller is more private.",
    "delta": "a chance that the promise of epsilon fails. It must be far below one over the number of people.",
    "zero-out": "an adjacency: the guarantee compares the data with the same data in which one record adds nothing.",
    "replace-one": "an adjacency: the guarantee compares the data with the same data in which one record is another "
    "one. Epsilons of two adjacencies must not be compared with each other.",
    "sound": "a design: every message is computed from noised values, and epsilon is proved.",
    "printed": "a design: the algorithm as its paper prints it. What is proved of it may be nothing.",
    "clipped": "the gradient of each record is shortened to the given length, so that no record counts more.",
    "Full()": "each step reads all records.",
    "Poisson": "each step draws each record with the same chance; the number is how many it draws on average.",
    "exact GDP": "a way to add up the privacy loss of all steps, for Gaussian noise. It is exact.",
    "PLD": "a way to add up the privacy loss of all steps. The sum is rounded up.",
    "Memoised": "each label is randomised once, and the randomised label is kept and used in every step.",
    "head outputs": "one number per class and row, which a party computes from its columns and sends to the server.",
    "auroc": "how often the model ranks a positive case above a negative one. 0.5 is guessing, 1 is perfect.",
    "base rate": "the accuracy of always guessing the most frequent class of the test rows.",
    "balanced accuracy": "the mean over classes of the share of a class's rows that are right.",
    "log loss": "the mean of minus the logarithm of the chance that the model gave to what happened. Small is good.",
    "calibration error": "how far stated chances are from what happened: the mean over ten groups of rows with like "
    "chances. 0.02 means that of the rows with a stated chance of 30 % about 28 to 32 % are cases.",
    "r2": "the share of the label's variance that the model explains. 1 is perfect, 0 is to guess the mean always.",
    "rmse": "the typical error, in the label's unit: the root of the mean squared error.",
    "worst party": "the figure of the party whose own model does worst.",
    "distance between the parties": "how far the models of the parties are from each other. 0 means that all agree.",
}


def explained(page: str, methods: Iterable[str]) -> list[str]:
    """Return a line per method and per word that stands on the page.

    >>> explained("<p>epsilon 2 at delta 1e-05</p>", ["DpSgd"])[0]
    "DpSgd: run private stochastic gradient descent: x' = mix(x - rate * gradient)."
    >>> [line.partition(":")[0] for line in explained("<p>epsilon 2 at delta 1e-05</p>", [])]
    ['epsilon', 'delta']
    """
    lines = []
    for name in dict.fromkeys(methods):
        known = getattr(known_methods, name, None)
        told = ((known.__doc__ or "") if known else "").strip().split("\n\n")[0]
        if told:
            plain = re.sub(r"\s+", " ", told.replace("`", ""))
            lines.append(f"{name}: {plain[0].lower()}{plain[1:]}" if plain[:2].istitle() else f"{name}: {plain}")
    return lines + [f"{word}: {meaning}" for word, meaning in _MEANINGS.items() if _stands(word, page)]


def _stands(word: str, page: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", page) is not None
