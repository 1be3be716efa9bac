"""Write a report: one HTML file with tables, pictures, the privacy statements and the run file.

The file needs no other file and no connection.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

from sottovoce.files import write_atomically
from sottovoce.networks import Network
from sottovoce.privacy.report import LISTED
from sottovoce.reports import pictures
from sottovoce.reports.comparison import TRAIN, Comparison, Row, figure, upward

_NOT_CHARGED = (
    "; choosing among variants by metrics of private records would cost privacy that is not counted here: the table "
    "<code>[select]</code> of a run file, or <code>sv.select</code>, chooses by a private score, and pays for it"
)
_STYLE = """
:root { color-scheme: light dark; --ink: #1d2530; --page: #fdfdfc; --faint: #66707d; --line: #dcdfe3; --wash: #f3f4f3;
  --accent: #2a6f97 }
@media (prefers-color-scheme: dark) { :root { --ink: #dde3ea; --page: #14181d; --faint: #939dab; --line: #2e353e;
  --wash: #1b2027; --accent: #7cb8dc } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 62rem;
  margin: 3rem auto; padding: 0 1.25rem }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem } h2 { font-size: 1.15rem; margin: 2.6rem 0 .6rem }
p, li { max-width: 46rem } .lead { font-size: 1.1rem } .faint { color: var(--faint) }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .35rem .75rem; border-bottom: 1px solid var(--line); white-space: nowrap }
th { color: var(--faint); font-weight: 500 } th:first-child, td:first-child { text-align: left; padding-left: 0 }
svg { max-width: 100%; height: auto; display: block } .network svg { max-width: 17rem }
pre { background: var(--wash); padding: 1rem; border-radius: 6px; overflow-x: auto; font-size: .85rem }
details { border-bottom: 1px solid var(--line); padding: .45rem 0 } summary { cursor: pointer }
summary:hover { color: var(--accent) } .no { color: #c4485a }
"""


def write_report(made: Comparison, path: str | Path, networks: Iterable[Network] = ()) -> Path:
    """Write the report of a comparison and return its path; `networks` are drawn in it.

    Its pictures are written beside it, for papers and slides: for ``report.html`` they are ``report-curves.svg`` and,
    where epsilons are compared, ``report-tradeoff.svg``.
    """
    target = Path(path)
    drawn = drawings(made)
    write_atomically(target, render(made, drawn, networks).encode())
    for name, picture in drawn.items():
        beside = target.with_name(f"{target.stem}-{name}.svg")
        if picture is None:
            beside.unlink(missing_ok=True)
        else:
            write_atomically(beside, pictures.by_itself(picture).encode())
    return target


def drawings(made: Comparison) -> dict[str, str | None]:
    """Draw the pictures, by name; None where there is nothing to show.

    >>> drawings(Comparison("nothing was run yet", ()))
    {'tradeoff': None, 'curves': None}
    """
    return {"tradeoff": pictures.tradeoff(made), "curves": pictures.curves(made)}


def render(made: Comparison, drawn: Mapping[str, str | None] | None = None, networks: Iterable[Network] = ()) -> str:
    """Return the page as HTML; pictures that are drawn already can be given."""
    drawn = drawings(made) if drawn is None else drawn
    parts = [
        f"<h1>{escape(made.title)}</h1>",
        "".join(f'<p class="lead">{escape(line)}</p>' for line in findings(made)),
        _table(*made.table()),
        _seeds(made),
        _section("Compared with the paper", _printed(made)),
        _section("Privacy and usefulness", _given(drawn["tradeoff"])),
        _section("During training", _given(drawn["curves"])),
        _section("Who talks to whom", _networks(networks)),
        _section("What is guaranteed", "".join(_guarantee(row) for row in made.rows)),
        _section("What may be released", _releasable(made)),
        _section("The run file", f"<pre>{escape(made.text)}</pre>" if made.text else ""),
    ]
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(made.title)}</title>'
    )
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>\n'
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


def findings(made: Comparison) -> list[str]:
    """Say in a sentence what the figures show: all that was compared at the epsilon that most variants share."""
    metric = made.metric
    rows = [row for row in made.rows if metric in row.metrics]
    shared = Counter(upward(row.privacy.epsilon) for row in rows if row.privacy.private)
    if metric is None or not shared:
        return []
    common = [epsilon for epsilon, count in shared.items() if count == max(shared.values())]
    epsilon = sorted(common, key=float)[len(common) // 2]
    told = [row for row in rows if not row.privacy.private or upward(row.privacy.epsilon) == epsilon]
    if len(told) < 2:
        return []

    def figures(private: bool) -> str:
        held = [row for row in told if row.privacy.private == private]
        return "; ".join(f"{row.family or 'together'} {row.final(metric)[0]:.3f}" for row in held)

    lines = [f"At epsilon {epsilon} per party, {metric}: {figures(True)}."]
    return [*lines, f"Without any guarantee: {figures(False)}."] if figures(False) else lines


def _section(title: str, body: str) -> str:
    return f"<h2>{title}</h2>\n{body}" if body else ""


def _given(picture: str | None) -> str:
    return picture or ""


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>" for cells in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _seeds(made: Comparison) -> str:
    counts = {len(row.runs) for row in made.rows}
    many = f"{max(counts)} seeds: mean ± standard deviation" if max(counts) > 1 else "one seed"
    return (
        f'<p class="faint">Metrics on test records (train: on some private ones), at the end of the run; {many}. '
        "Epsilon is that of the party with the largest one, for the whole run; seconds include compilation.</p>"
    )


def _printed(made: Comparison) -> str:
    if not made.printed:
        return ""
    ours = [
        [
            f"ours: {row.name}",
            _row_figure(row, made.metric),
            f"{upward(row.privacy.epsilon)} ({row.privacy.adjacency})",
            "this run",
        ]
        for row in made.rows
    ]
    theirs = [[entry.what, figure(entry.value), figure(entry.epsilon), "", entry.source] for entry in made.printed]
    return _table(["", "value", "epsilon", "adjacency", "source"], [*theirs, *ours])


def _row_figure(row: Row, metric: str | None) -> str:
    return figure(row.final(metric)[0]) if metric in row.metrics else "-"


def _networks(networks: Iterable[Network]) -> str:
    drawn = "".join(pictures.network_picture(network) for network in networks if network.size > 1)
    return f'<div class="network">{drawn}</div>' if drawn else ""


def _guarantee(row: Row) -> str:
    report = row.privacy
    lines = [f"<p>{escape(report.statement())}</p>"]
    if report.published is not None:
        lines.append(f"<p>The paper prints epsilon {upward(report.published)} for this configuration.</p>")
    if report.private and 1 < len(report.parties) <= LISTED:
        each = [f"{name}: {upward(epsilon)}" for name, epsilon in zip(report.parties, report.per_agent)]
        lines.append(_list("Epsilon per party", each))
    lines += [
        _list("In plain words", report.words()),
        _list("Released, and charged", report.events),
        _list("Caveats", report.caveats),
    ]
    short = f"epsilon {upward(report.epsilon)}" if report.private else '<span class="no">no guarantee</span>'
    return f"<details><summary>{escape(row.name)}: {short}</summary>{''.join(lines)}</details>"


def _list(title: str, lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<p class="faint">{title}</p><ul>{items}</ul>' if items else ""


def _releasable(made: Comparison) -> str:
    fine = [row.name for row in made.rows if all(run.releasable for run in row.runs)]
    own = [row.name for row in made.rows if row.name not in fine]
    released = "the models and every state and message of the run, with their statements attached (model.npz)"
    kept = "the models, states, metrics and consensus errors: no statement covers them"
    return "".join(
        [
            f"<p>Releasable, {released}: {escape('; '.join(fine))}.</p>" if fine else "",
            f'<p><span class="no">Not releasable</span>, {kept}: {escape("; ".join(own))}.</p>' if own else "",
            "<p>Each train metric is computed on private records, without noise: no statement covers it.</p>"
            if any(metric.startswith(TRAIN) for metric in made.metrics)
            else "",
            '<p class="faint">Never release the seed (whoever knows it can subtract the noise) and the checkpoints. '
            "Metrics, unless they are called train, are computed on test records, which are taken as public"
            f"{'' if made.chosen else _NOT_CHARGED}.</p>",
            f"<p>Chosen by a private score: {escape(made.chosen)}.</p>" if made.chosen else "",
        ]
    )
