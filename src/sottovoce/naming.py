"""Messages for names that do not exist: say which one is wrong, what is nearest, and what there is."""

import difflib
from collections.abc import Iterable


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The line that tells a user of a wrong name.

    >>> unknown("task", "sofmax", ["softmax", "logistic"])
    "there is no task 'sofmax'; did you mean 'softmax'? (logistic, softmax)"
    >>> unknown("task", "zzz", ["softmax", "logistic"])
    "there is no task 'zzz'; choose from logistic, softmax"
    """
    names = sorted(known)
    folded = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.55)
    if close:
        return f"there is no {what} {name!r}; did you mean {folded[close[0]]!r}? ({', '.join(names)})"
    return f"there is no {what} {name!r}; choose from {', '.join(names)}" if names else f"there is no {what} {name!r}"
