"""Write what a report shows for other programs: JSON under the headings of NIST SP 800-226, and tables as CSV.

NIST Special Publication 800-226, "Guidelines for Evaluating Differential Privacy Guarantees", says what somebody who
judges a guarantee must know. The headings are those of its contents (initial public draft, December 2023). What this
program cannot know, such as how data were collected, is said to be unknown.
"""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

from sottovoce import files
from sottovoce.defused import cell
from sottovoce.reports import words
from sottovoce.reports.comparison import Comparison, Row
from sottovoce.reports.sections import taken_as_public

STANDARD = "NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees"
_CONTENTS = "headings of the contents of its initial public draft, December 2023"
_UNKNOWN = "not known to this program"


def to_json(made: Comparison) -> str:
    """Return the report as JSON, one entry per row.

    >>> to_json(Comparison("nothing", ()))[:24]
    '{\\n "title": "nothing",\\n '
    """
    return files.to_json(facts(made)) + "\n"


def facts(made: Comparison) -> dict[str, Any]:
    """Return what `to_json` writes, as data.

    >>> sorted(facts(Comparison("nothing", ())))
    ['answers', 'declared public', 'headings', 'rows', 'selection', 'sources', 'standard', 'title']
    """
    return {
        "title": made.title,
        "standard": STANDARD,
        "headings": _CONTENTS,
        "answers": {answer.question: [*answer.lines, *answer.more] for answer in words.answers(made)}
        if made.rows
        else {},
        "sources": list(made.sources) or [_UNKNOWN],
        "declared public": taken_as_public(made),
        "selection": made.chosen or "no choice by private scores is recorded",
        "rows": {row.name: _row(made, row) for row in made.rows},
    }


def _row(made: Comparison, row: Row) -> dict[str, Any]:
    report, about = row.privacy, row.about
    return {
        "date": about.date,
        "versions": about.versions,
        "2. The Differential Privacy Guarantee": {
            "2.1. The Promise of Differential Privacy": [report.statement(), *report.words()],
            "2.2. The Privacy Parameter ε": {
                "epsilon": report.epsilon,
                "delta": report.delta,
                "per party": dict(zip(row.parties, report.per_agent)),
                "per level": report.per_level,
                "highest true-positive rate, by false-positive rate": {
                    f"{rate:g}": power for rate, power in report.power()
                },
                "budget": None if about.budget is None else about.budget.epsilon,
                "spent of the budget": about.spent,
            },
            "2.3. Variants of Differential Privacy": "(epsilon, delta)" if report.delta else "epsilon",
            "2.4. The Unit of Privacy": {
                "unit": report.unit,
                "neighbours": report.adjacency,
                "held by": "one party" if len(report.per_agent) == 1 else "each party for itself",
            },
            "2.5. Comparing Differential Privacy Guarantees": {
                "accountant": report.accountant,
                "computed by": report.library,
                "printed in the paper": report.published,
                "design": report.design,
            },
            "2.6. Mixing Differential Privacy With Other Data Releases": list(report.caveats),
        },
        "3. Differentially Private Algorithms": {
            "3.1. Basic Mechanisms and Common Elements": list(report.events),
            "3.2. Utility and Accuracy": {metric: _figures(row, metric) for metric in row.metrics},
            "3.3. Bias": {
                "worst party": {metric: row.worst(metric) for metric in row.metrics},
                "of the data": _UNKNOWN,
            },
            "3.5. Machine Learning": {
                "method": report.method,
                "steps": report.steps,
                "seeds": len(row.runs),
                "parties together, alone or pooled": row.kind,
                "seconds": row.seconds,
            },
        },
        "4. Deploying Differential Privacy": {
            "4.1. Query Models": "one training run; its releases are listed under 3.1",
            "4.2. Threat Models": list(words.protected(report)),
            "4.3. Mechanism Implementation Challenges": {
                "noise": " ".join(words.drawn(row)),
                "drawn": report.drawn or _UNKNOWN,
            },
            "4.4. Data Security and Access Control": {
                "may be released": row.releasable,
                "where it ran": about.place or _UNKNOWN,
                "bytes sent by each party": dict(zip(row.parties, about.sent)),
                "network": about.network,
            },
            "4.5. Data Collection Exposure": {
                "sizes": {what: dict(zip(row.parties, counts)) for what, counts in about.sizes.items()},
                "how data were collected and stored": _UNKNOWN,
            },
        },
    }


def _figures(row: Row, metric: str) -> dict[str, Any]:
    mean, deviation = row.final(metric)
    return {"mean": mean, "standard deviation over seeds": None if math.isnan(deviation) else deviation}


def tables(made: Comparison) -> dict[str, str]:
    """Return CSV texts by the ending of their file's name: the main table, the history, and the parties.

    >>> sorted(tables(Comparison("nothing", ())))
    ['-history.csv', '-parties.csv', '.csv']
    """
    return {
        ".csv": _csv(["row", "kind", *_columns(made)], ([row.name, row.kind, *_cells(made, row)] for row in made.rows)),
        "-history.csv": _csv(["row", "seed", "metric", "step", "value"], _history(made)),
        "-parties.csv": _csv(["row", "party", "what", "value"], _parties(made)),
    }


def _columns(made: Comparison) -> list[str]:
    each = [f"{metric}{what}" for metric in made.metrics for what in ("", " deviation", " worst party")]
    return [*each, "epsilon", "delta", "unit", "adjacency", "design", "releasable", "steps", "seconds", "bytes sent"]


def _cells(made: Comparison, row: Row) -> list[Any]:
    report = row.privacy
    found: list[Any] = []
    for metric in made.metrics:
        has = metric in row.metrics
        found += [*(row.final(metric) if has else ("", "")), row.worst(metric) if has else ""]
    return [
        *found, report.epsilon, report.delta, report.unit, report.adjacency, report.design, row.releasable,
        report.steps, row.seconds, sum(row.about.sent),
    ]  # fmt: skip


def _history(made: Comparison) -> Iterable[list[Any]]:
    for row in made.rows:
        for seed, run in enumerate(row.runs):
            for metric, values in run.history.items():
                if metric != "step" and values.ndim == 1:
                    for step, value in zip(run.history["step"], values):
                        yield [row.name, seed, metric, step, value]


def _parties(made: Comparison) -> Iterable[list[Any]]:
    for row in made.rows:
        about = row.about
        told = {**about.sizes, "epsilon": row.privacy.per_agent, "bytes sent": about.sent}
        for what, values in told.items():
            if len(values) == len(row.parties):
                for party, value in zip(row.parties, values):
                    yield [row.name, party, what, value]


def _csv(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(cell, heads))
    writer.writerows(map(cell, row) for row in rows)
    return text.getvalue()
