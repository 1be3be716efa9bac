"""Answer in plain words what a reader asks first: what was trained, who is protected, how strongly, and what may leave.

The page and `report.json` say the same, because both take their words from here.
"""

import math
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sottovoce.privacy.report import PrivacyReport, unit_of
from sottovoce.reports.comparison import Comparison, Row, lower_is_better, shared_epsilon, upward
from sottovoce.runtime.about import FEDERATION, About
from sottovoce.runtime.result import TRAIN

Tone = Literal["", "good", "care", "bad"]
_NAMED = 4  # rows that a sentence names
_STAYS = "Must stay in any case: the records, the checkpoints{}, and figures that were computed on private records."
_SEED = ", the seed (anybody who knows it can remove the noise)"
_FEATURES = (
    "That is so for labels. Nothing protects the features that the model was computed from, so their holders decide "
    "about it. The messages must stay: they hold numbers computed from the features of single rows."
)


@dataclass(frozen=True)
class Answer:
    """Answer one question of the first screen; `tone` colours it, and its first words say the same."""

    question: str
    lines: tuple[str, ...]
    tone: Tone = ""
    more: tuple[str, ...] = ()  # below a fold


def answers(made: Comparison) -> list[Answer]:
    """Return the first screen's questions with their answers.

    >>> import numpy as np, sottovoce as sv
    >>> from sottovoce.reports import Outcome
    >>> method = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(1.0, 0.1), sampling=sv.Full())
    >>> run = Outcome({"step": np.arange(2)}, sv.account(method, sv.Population([50]), steps=1), releasable=True)
    >>> for answer in answers(Comparison("mine", (Row("DpSgd", "together", (run,)),)))[:2]:
    ...     print(f"{answer.question}: {answer.lines[0]}")
    What was trained: One model, from the data of one party.
    Who is protected: Each record. A person with several records is protected record by record only.
    """
    main = made.main
    found = [
        Answer("What was trained", tuple(_trained(made))),
        Answer("Who is protected", protected(main.privacy), "" if main.privacy.private else "bad"),
        Answer("How strongly", *_strength(made)),
        Answer(
            "Simulated or deployed", tuple(dict.fromkeys(one for row in _private_first(made) for one in drawn(row)))
        ),
        Answer("What may leave", *_leaving(made)),
        Answer("Budget left", tuple(_budgets(made))),
    ]
    if made.chosen:
        found.append(Answer("What choosing cost", (f"Chosen by a private score: {made.chosen}.",)))
    if any(row.settings for row in made.rows):
        found.append(Answer("How settings were chosen", tuple(_searched(made))))
    return found


def _searched(made: Comparison) -> list[str]:
    lines = ["By a search on a part of the training records. It read them without noise, and is not charged."]
    for row in made.rows:
        chosen = ", ".join(f"{key} = {value}" for key, value in row.settings.items())
        lines += [f"{row.name}: {chosen}."] if chosen else []
    return lines


def asked(made: Comparison) -> dict[str, Any]:
    """Return what the run file says of the data and, under "about", of the purpose; nothing where it is not known.

    >>> asked(Comparison("mine", (), text='data.label = "death"'))
    {'label': 'death', 'about': {}}
    """
    try:
        document = tomllib.loads(made.text)
    except tomllib.TOMLDecodeError:  # several run files, one after the other
        return {"about": {}}
    data, about = document.get("data"), document.get("about")
    label = data.get("label") if isinstance(data, dict) else None
    return ({"label": str(label)} if label else {}) | {"about": about if isinstance(about, dict) else {}}


def headline(made: Comparison) -> str:
    """Return what was trained, in a few words: the title of the page.

    >>> headline(Comparison("patients", (), text='data.label = "death"'))
    'patients: a model that predicts “death”'
    """
    label = asked(made).get("label")
    if not label or label in made.title:
        return made.title
    return f"{made.title}: a model that predicts “{label}”"


def _trained(made: Comparison) -> list[str]:
    main = made.main
    privacy, about = main.privacy, main.about
    who = f"{len(main.parties)} parties" if len(main.parties) > 1 else "one party"
    how = f" who talk over a {about.network.partition(',')[0]}" if about.network else ""
    if privacy.against is not None:
        how = " who add up by secure sums"
    how = " who hold columns of the same rows" if "columns" in about.sizes else how
    steps = "1 step" if privacy.steps == 1 else f"{privacy.steps} steps"
    label = asked(made).get("label")
    what = f"A model that predicts “{label}”" if label else "One model"
    lines = [f"{what}, from the data of {who}{how}."]
    metric = made.metric
    if metric is not None and metric in main.metrics:
        worst = main.worst(metric)
        least = "" if worst is None else f"; the worst party has {worst:.3g}"
        on = "on training records" if metric.startswith(TRAIN) else "on test records"
        lines.append(f"At the end {metric} is {main.final(metric)[0]:.3g} {on}{least}.{_beside(main, metric)}")
    lines.append(f"It was made by the method {privacy.method}, in {steps}.")
    if len(made.rows) > 1:
        lines.append(f"{len(made.rows)} configurations are compared. This screen is about “{main.name}”.")
    return lines


def _beside(row: Row, metric: str) -> str:
    """Say the figures without which another is misread: accuracy beside the base rate, and the error in its unit."""
    known = {name: row.final(name)[0] for name in row.metrics}
    said = ""
    if "base rate" in known and "accuracy" in known:
        said += f" Accuracy is {known['accuracy']:.3g}; to guess the most frequent class always has "
        said += f"{known['base rate']:.3g}{', which is better' * (known['accuracy'] < known['base rate'])}."
    if "balanced accuracy" in known:
        said += f" The mean over classes of the accuracy is {known['balanced accuracy']:.3g}."
    if "calibration error" in known:
        said += f" Stated chances are off by {known['calibration error']:.2g} on average."
    if "rmse" in known:
        r2 = f", R^2 {known['r2']:.3g}" if metric != "r2" else ""
        said += f" The typical error is {known['rmse']:.3g} in the label's unit (RMSE){r2}."
    if "error factor" in known:
        said += f" A typical guess is off by a factor of {known['error factor']:.3g}."
    return said


def chances(made: Comparison) -> list[str]:
    """Say what the chances that models state are worth, a line per configuration; nothing where none are stated."""
    lines = []
    for row in made.rows:
        known = [name for name in ("log loss", "calibration error", "balanced accuracy") if name in row.metrics]
        if known:
            lines.append(f"{row.name}: {', '.join(f'{name} {row.final(name)[0]:.3g}' for name in known)}.")
    return lines


def protected(report: PrivacyReport) -> tuple[str, ...]:
    """Say whose data are protected, and against whom."""
    if not report.private:
        return ("Nobody. No noise, or no proof, stands between the records and this result.",)
    several = len(report.per_agent) > 1
    if report.unit == "record":
        who = "Each record. A person with several records is protected record by record only."
    elif report.unit == "label":
        who = "The label of each row. Its features are not protected."
    else:
        who = f"Each {unit_of(report.unit)}, with all their records."
    lines = [who]
    if report.against is not None:
        lines.append("Counted per party: a person whose data two parties hold is clipped at each, and pays more.")
    elif several:
        lines.append("Counted per party: if two parties hold data of one person, both epsilons count for that person.")
    lines.append(f"Against {report.adversary}, even if they know all other records, and the program.")
    return tuple(lines)


def _strength(made: Comparison) -> tuple[tuple[str, ...], Tone, tuple[str, ...]]:
    """Return the sentence that counts and the epsilon to approve; other epsilons and rows stand below a fold."""
    private = [row for row in made.rows if row.privacy.private]
    main = made.main.privacy
    if not private:
        return ("No guarantee: epsilon is infinite.",), "", ()
    told = f"To approve: epsilon {upward(main.epsilon)} at delta {main.delta:g}, per {unit_of(main.unit)}."
    lines, more = [main.meaning, told] if main.private else [], list[str]()
    others = sorted(
        {upward(row.privacy.epsilon): row.privacy for row in private}.items(), key=lambda one: float(one[0])
    )
    several = [f"{report.found} at epsilon {epsilon}" for epsilon, report in others]
    if len(several) > 1:
        more.append(f"Of 100 who took part, it finds at most {'; '.join(several)}.")
    if sum(len(row.runs) for row in private) > 1:
        more.append("This is for one run. If results of several runs leave, their epsilons add up.")
    if bare := [f"“{row.name}”" for row in made.rows if not row.privacy.private]:
        more.append(f"Without any guarantee: {named(bare)}.")
    return tuple(lines), "", tuple(more)


def drawn(row: Row) -> tuple[str, ...]:
    """Say how the noise of a row was drawn, and where it ran; the short answer first."""
    report, place = row.privacy, row.about.place
    where = f" The run was {'in' if place.startswith(FEDERATION) else 'on'} {place}." if place else ""
    if not report.private:
        return ("Neither: no noise that guarantees anything.", "This run is only for comparison.")
    if report.drawn == "exact":
        return ("Deployed.", f"The noise is exact, and is drawn from random bits of the operating system.{where}")
    if report.drawn == "secret":
        return (
            "Not as deployed.",
            "The noise comes from a secret key, in floating point. So the guarantee is that of the ideal mechanism.",
        )
    if report.drawn == "simulated":
        return (
            "A simulation. It protects nobody.",
            "The noise comes from a seed, and anybody who knows the seed can remove it. A simulation shows how well "
            "the method works.",
        )
    return ("Not known: it is not recorded how the noise was drawn.",)


def _leaving(made: Comparison) -> tuple[tuple[str, ...], Tone]:
    fine = [row.name for row in made.rows if row.releasable]
    own = [row for row in made.rows if not row.releasable]
    labels = any(row.releasable and row.privacy.unit == "label" for row in made.rows)
    lines = []
    if fine:
        which = "" if not own else f" of {named(fine)}"
        all_of_it = "" if labels else " and every state and message of its run"
        lines.append(f"The model{which}{all_of_it} may leave, with the statement attached.")
    if labels:
        lines.append(_FEATURES)
    if own:
        which = "" if not fine else f" of {named([row.name for row in own])}"
        reasons = list(dict.fromkeys(_reason(row) for row in own))
        lines.append(f"Nothing{which} may leave: {', and '.join(reasons)}.")
    if any(metric.startswith(TRAIN) for metric in made.metrics):
        lines.append("Each train metric is computed on private records, without noise: no statement covers it.")
    if not all(run.public_test for row in made.rows for run in row.runs):
        listed = " and ".join(", ".join(name for name in made.metrics if not name.startswith("bytes")).rsplit(", ", 1))
        if listed:
            lines.append(f"The guarantee does not cover {listed} in this report: no noise was added to them.")
    exact = all(row.privacy.drawn == "exact" for row in made.rows)
    return (*lines, _STAYS.format("" if exact else _SEED)), "care" if own or labels else "good"


def _reason(row: Row) -> str:
    if not row.privacy.private:
        return f"“{row.name}” has no guarantee"
    if row.privacy.drawn == "simulated":
        return "this is a simulation"
    if row.privacy.drawn == "secret":
        return "the noise was not drawn as deployed"
    return "the statement covers the messages, and not the model"


def budget(about: About) -> tuple[str, ...]:
    """Say what is left of a budget, rounded down."""
    if about.budget is None and about.place.startswith(FEDERATION) and "columns" in about.sizes:
        return ("This site has no labels.", "The label holder has their budget, and counts what they cost.")
    if about.budget is None or about.spent is None:
        return ("No budget was set.", "Nothing stops further runs on the same records.")
    whole, spent = about.budget.epsilon, about.spent
    who = "This site" if about.place.startswith(FEDERATION) else "The party that spent most"
    return (
        f"Epsilon {max(0.0, math.floor(100 * (whole - spent)) / 100):g} of {whole:g} is left.",
        f"{who} has spent {upward(spent)}, over all runs in its ledger (delta "
        f"{about.budget.delta:g}, {about.budget.sense}).",
    )


def _budgets(made: Comparison) -> list[str]:
    """Speak of the main row's budget, then of other rows whose budgets differ from it."""
    lines = list(budget(made.main.about))
    others = {budget(row.about)[0]: row.name for row in reversed(made.rows) if row.about.budget is not None}
    return [*lines, *(f"{name}: {line}" for line, name in reversed(others.items()) if line not in lines)]


def findings(made: Comparison) -> list[str]:
    """Say in a sentence what the figures show: all that was compared at the epsilon that most variants share."""
    metric = made.metric
    rows = [row for row in made.rows if metric in row.metrics]
    epsilon = shared_epsilon(rows)
    if metric is None or epsilon is None:
        return []
    told = [row for row in rows if not row.privacy.private or upward(row.privacy.epsilon) == epsilon]
    if len(told) < 2:
        return []

    def figures(private: bool) -> str:
        held = [row for row in told if row.privacy.private == private]
        return "; ".join(f"{row.family or 'together'} {row.final(metric)[0]:.3f}" for row in held)

    lines = [f"At epsilon {epsilon} per party, {metric}: {figures(True)}."]
    if figures(False):
        lines.append(f"Without any guarantee: {figures(False)}.")
    return lines + _behind(told, epsilon, metric) + _turned(rows, epsilon, metric)


def _behind(rows: Sequence[Row], epsilon: str, metric: str) -> list[str]:
    """Say which later configuration is better than the first one, by more than seeds differ, at the shared epsilon."""
    private = [row for row in rows if row.privacy.private and row.kind == "together"]
    if len(private) < 2:
        return []
    first, *others = private
    sign = -1.0 if lower_is_better(metric) else 1.0
    best = max(others, key=lambda row: sign * row.final(metric)[0])
    (better, above), (usual, below) = best.final(metric), first.final(metric)
    if sign * (better - usual) <= (0.0 if math.isnan(above + below) else math.hypot(above, below)):
        return []
    return [f"So at epsilon {epsilon} {best.family or best.name} is better than {first.family or first.name}."]


def _turned(rows: Sequence[Row], epsilon: str, metric: str) -> list[str]:
    """Say at which other epsilons another configuration is the best one."""
    by_epsilon: dict[str, list[Row]] = {}
    for row in rows:
        if row.privacy.private and row.kind == "together":
            by_epsilon.setdefault(upward(row.privacy.epsilon), []).append(row)
    sign = -1.0 if lower_is_better(metric) else 1.0
    best = {one: max(held, key=lambda row: sign * row.final(metric)[0]) for one, held in by_epsilon.items()}
    if epsilon not in best:
        return []
    lines = []
    for one, winner in sorted(best.items(), key=lambda pair: float(pair[0])):
        usual = next((row for row in by_epsilon[one] if row.family == best[epsilon].family), None)
        if usual is not None and winner.family != usual.family:
            lines.append(
                f"At epsilon {one} it is the other way round: {winner.family or 'together'} "
                f"{winner.final(metric)[0]:.3f}; {usual.family or 'together'} {usual.final(metric)[0]:.3f}."
            )
    return lines


def named(names: Sequence[str]) -> str:
    """List some names, the first few of many.

    >>> named(["a", "b", "c", "d", "e", "f"])
    'a; b; c; d and 2 more'
    """
    rest = len(names) - _NAMED
    return "; ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _private_first(made: Comparison) -> list[Row]:
    kinds = Counter(row.privacy.private for row in made.rows)
    return [row for row in made.rows if row.privacy.private or not kinds[True]]
