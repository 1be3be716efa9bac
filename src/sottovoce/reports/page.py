"""Write a report: one HTML file that needs no other file and no connection, and its figures for other programs.

Beside ``report.html`` stand ``report.json`` (under the headings of NIST SP 800-226), tables as CSV and pictures as SVG.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from sottovoce.files import write_atomically
from sottovoce.reports import dictionary, exports, pictures, sections
from sottovoce.reports.comparison import Comparison
from sottovoce.reports.words import answers, findings, headline

_HERE = Path(__file__).parent
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"  # no request leaves the page


def write_report(made: Comparison, path: str | Path) -> Path:
    """Write the report of a comparison and what stands beside it, and return its path.

    For ``report.html`` these are ``report.json``, ``report.csv``, ``report-history.csv``, ``report-parties.csv`` and
    pictures for papers and slides, ``report-curves.svg`` and, where epsilons are compared, ``report-tradeoff.svg``.
    """
    target = Path(path)
    drawn = drawings(made)
    beside = {f"{target.stem}.json": exports.to_json(made)}
    beside |= {f"{target.stem}{ending}": text for ending, text in exports.tables(made).items()}
    beside |= {f"{target.stem}-{name}.svg": pictures.by_itself(panels) for name, panels in drawn.items() if panels}
    for name, text in beside.items():
        write_atomically(target.with_name(name), text.encode())
    for name, panels in drawn.items():
        if not panels:
            target.with_name(f"{target.stem}-{name}.svg").unlink(missing_ok=True)
    write_atomically(target, render(made, drawn, sections.files(made, target, list(beside))).encode())
    return target


def drawings(made: Comparison) -> dict[str, list[str]]:
    """Draw the pictures, by name; an empty list where there is nothing to show.

    >>> drawings(Comparison("nothing was run yet", ()))
    {'tradeoff': [], 'curves': []}
    """
    if not made.rows:
        return {"tradeoff": [], "curves": []}
    tradeoff = pictures.tradeoff(made)
    return {"tradeoff": [tradeoff] if tradeoff else [], "curves": pictures.curves(made)}


def render(made: Comparison, drawn: Mapping[str, Sequence[str]] | None = None, files: str = "") -> str:
    """Return the page as HTML; pictures that are drawn already can be given, and a section that lists files."""
    drawn = drawings(made) if drawn is None else drawn
    rows = [row.name for row in made.rows]
    told = _TRADEOFF + (" Diamonds are printed in the paper." if any(entry.epsilon for entry in made.printed) else "")
    parts = [
        f"<header><h1>{escape(headline(made))}</h1>{sections.glance(answers(made))}</header><main>",
        sections.approval(made),
        sections.results(made, findings(made)),
        sections.coefficients(made),
        sections.printed(made),
        sections.section("Privacy and usefulness", sections.charts("tradeoff", drawn["tradeoff"], told)),
        sections.section(
            "During training",
            sections.choice("curves", "Rows shown (six at most)", rows, pictures.shown_first(made)),
            sections.charts("curves", drawn["curves"], _told("".join(drawn["curves"]))),
            f'<p class="faint script">{_POINT}</p>' if drawn["curves"] else "",
        ),
        sections.parties(made),
        sections.graphs(made),
        sections.costs(made),
        sections.guarantees(made),
        sections.public(made),
        sections.provenance(made),
    ]
    methods = [row.privacy.method for row in made.rows]
    parts += [
        sections.section("Words on this page", sections.lines("", dictionary.explained("".join(parts), methods))),
        files,
        sections.section(
            "The run file",
            f"<details><summary>What was asked for</summary><pre>{escape(made.text)}</pre></details>"
            if made.text
            else "",
        ),
        "</main>",
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>{escape(headline(made))}</title>'
        f"<style>{_colours()}{(_HERE / 'page.css').read_text()}</style>"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n'
        + "\n".join(part for part in parts if part)
        + f"\n<script>{(_HERE / 'page.js').read_text()}</script></body></html>\n"
    )


def _told(drawn: str) -> str:
    return " ".join(words for what, words in _CURVES.items() if what in drawn)


def _colours() -> str:
    """Return the six colours of lines as variables of the page, for light and dark screens and for paper."""
    light, dark = (
        ":root{" + ";".join(f"--c{slot}:{colour}" for slot, colour in enumerate(pictures.COLOURS[kind])) + "}"
        for kind in ("light", "dark")
    )
    return f"{light}@media (prefers-color-scheme:dark){{{dark}}}@media print{{{light}}}\n"


_TRADEOFF = (
    "Each point is a configuration; bands are one standard deviation over the seeds, where there are several. "
    "Horizontal lines have no guarantee."
)
_POINT = "Point at a line, or press the arrow keys in a picture, to read its values."
_CURVES = {  # what a picture has, and what to say then
    'class="band"': "Bands go from the lowest to the highest seed.",
    'dasharray="7 4"': "Dashed: each party alone.",
    'dasharray="2 4"': "Dotted: all records in one place.",
    'class="plot cut"': "A line that begins far from its later values begins outside of the frame.",
}
