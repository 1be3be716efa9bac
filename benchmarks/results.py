"""Write the pages of results from docs/results/PAPER/NAME.csv and the run files: ``python -m benchmarks.results``.

The CSV files are what ``sottovoce reproduce PAPER/NAME --results docs/results`` writes. The same files give the same
bytes again: docs/results.md says how results are made, docs/results/PAPER.md shows them, with a picture where there are
curves. Files of docs/results/PAPER/measured come from other commands, and are shown as they are. Above the tables
stands what came out, in words: docs/results/PAPER/reading.md.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import measure
from sottovoce.experiments.runfile import RunFile
from sottovoce.laboratory.reproduce import find
from sottovoce.reports import pictures
from sottovoce.reports.chart import SLOTS, Axis, Line, chart
from sottovoce.reports.comparison import figure, upward

FOLDER = measure.ROOT / "docs" / "results"
PAGE = FOLDER.with_suffix(".md")
CURVES = "-curves.csv"
READING = "reading.md"
PAPERS = {
    "ldp-dsbo": "LDP-DSBO",
    "bambi": "BAMBI",
    "gradient-tracking": "Gradient tracking",
    "dpmixsgd": "DPMixSGD",
    "dp-bilevel": "DP bilevel",
}
_STYLES = ("-", "--", ":")
_SPOTS = re.compile(r'<circle class="spot"[^>]*/>')  # for people who point at a report's lines
Cells = Mapping[str, str]

HEAD = """# Results

<!-- Written by `make results` from docs/results/*/*.csv and the run files. Do not edit. -->

Every table and figure of the five papers that shows trained models has a run file,
`src/sottovoce/laboratory/PAPER/NAME.toml`. Its own values are the paper's scale and settings; `--reduced` is a
smaller version that this project's machine (two cores) runs in minutes, with the same seeds, trials and contenders.
`sottovoce list` shows all of them, with their times. The page of each paper lists its tables and figures, with those
that are computed from a formula or shown elsewhere.

```text
sottovoce reproduce PAPER/NAME --reduced --results docs/results
make results
```

How a comparison is made, the same for all:

- **Settings are searched for every contender**, baselines and non-private ones included: the same number of trials, the
  file's own value first, then random ones in the stated ranges. A trial trains on a part of the training records with a
  seed that is not reported, and is scored on the rest. The test set is not read before the settings stand. The lines
  "searched" below a table give the ranges. A contender called "as printed" has the paper's settings, and is searched
  only where the paper prints none. A file without a line "search" has printed settings and controls of them.
- **Choosing settings is not charged.** Epsilon covers the reported run, as in the papers. With private records a choice
  must be paid for: `[select]` of a run file, or `sv.select`, does that.
- **Five seeds redraw** the split, the start, a random graph, the batches and the noise, as far as a file has them; the
  comment lines of each CSV file say which. Shown are the mean and, in brackets, the lowest and highest seed.
- **The worst agent** stands beside the model that averages all agents. It is the mean over the seeds of the worst one.
  A dash means that there is one model only: parties with columns, or one curator.
- **epsilon** is what this package proves for the run, the largest of seeds and agents; *infinite* means that there is
  no noise, or that nothing is proved. **As published** is what the paper's own formula gives for the same run.
- **Messages** (what an agent says at once to one neighbour), **numbers** (in all of them) and **batches** (how often an
  agent reads one) are per agent, for the whole run.
- A line in italics is a figure that the paper prints. A run that diverged is counted in the first column; means and
  ranges are of the runs that ended. Other measures, such as the loss on training records, are in the CSV files.
"""


@dataclass(frozen=True)
class Made:
    """The results of one experiment: its run file, the comments of the CSV file, and its lines."""

    name: str
    runfile: RunFile
    comments: list[str]
    lines: list[Cells]
    curves: list[Cells]

    @property
    def metrics(self) -> list[str]:
        """What was measured, the main one first."""
        heads = list(self.lines[0])
        after = heads.index("seed") + 1
        end = next(place for place, head in enumerate(heads) if head.startswith("worst ") or head == "epsilon")
        return heads[after:end]


@dataclass(frozen=True)
class Measured:
    """A table that a benchmark wrote: its command, what it shows, and its lines."""

    name: str
    comments: list[str]
    lines: list[Cells]


def read(path: Path) -> tuple[list[str], list[Cells]]:
    """Return the comments of a CSV file, and its lines by column."""
    lines = path.read_text().splitlines()
    comments = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
    return comments, list(csv.DictReader(lines[len(comments) :]))


def experiments(folder: Path = FOLDER) -> dict[str, list[Made]]:
    """Return all results, by paper."""
    found: dict[str, list[Made]] = {}
    for path in sorted(folder.glob("*/*.csv")):
        if path.name.endswith(CURVES):
            continue
        name = f"{path.parent.name}/{path.stem}"
        beside = path.with_name(f"{path.stem}{CURVES}")
        curves = read(beside)[1] if beside.is_file() else []
        comments, lines = read(path)
        found.setdefault(path.parent.name, []).append(Made(name, RunFile.load(find(name)), comments, lines, curves))
    return found


def measurements(folder: Path = FOLDER) -> dict[str, list[Measured]]:
    """Return the tables of benchmarks, by paper."""
    found: dict[str, list[Measured]] = {}
    for path in sorted(folder.glob("*/measured/*.csv")):
        paper = path.parent.parent.name
        found.setdefault(paper, []).append(Measured(f"{paper}/measured/{path.stem}", *read(path)))
    return found


def files(folder: Path = FOLDER) -> dict[Path, str]:
    """Return the text of every page and picture, by its path."""
    found, measured = experiments(folder), measurements(folder)
    papers = sorted({*found, *measured}, key=lambda paper: [*PAPERS, paper].index(paper))
    all_of = {paper: [*found.get(paper, []), *measured.get(paper, [])] for paper in papers}
    pages = {folder.with_suffix(".md"): index(all_of)}
    for paper, own in all_of.items():
        reading = folder / paper / READING
        pages[folder / f"{paper}.md"] = page(paper, own, reading.read_text() if reading.is_file() else "")
        for one in found.get(paper, []):
            if (picture := drawn(one)) is not None:
                pages[folder / f"{one.name}.svg"] = picture
    return pages


def index(found: Mapping[str, Sequence[Made | Measured]]) -> str:
    """Return the page that says how results are made, and lists them."""
    lines = [HEAD, "| results | what | made by |", "|---|---|---|"]
    for paper, made in found.items():
        for one in made:
            link = f"[{one.name}](results/{paper}.md#{_anchor(one.name)})"
            what = one.runfile.title if isinstance(one, Made) else one.comments[1]
            lines.append(f"| {link} | {_text(what)} | `{one.comments[0]}` |")
    if not found:
        lines = [HEAD]
    toctree = "".join(f"results/{paper}\n" for paper in found)
    return "\n".join(lines) + (f"\n\n```{{toctree}}\n:hidden:\n\n{toctree}```\n" if found else "")


def page(paper: str, made: Sequence[Made | Measured], reading: str = "") -> str:
    """Return the page of one paper: what came out, in words, then every table."""
    title = PAPERS.get(paper, paper)
    linked = f" The method: [{title}](../{paper}.md)." if paper in PAPERS else ""
    head = f"# Results: {title}\n\nHow these are made, and what the columns mean: [Results](../results.md).{linked}\n"
    came_out = [f"## What came out\n\n{reading}"] if reading else []
    return "\n".join([head, *came_out, *(section(one) if isinstance(one, Made) else plain(one) for one in made)])


def plain(measured: Measured) -> str:
    """Return the table of a benchmark, and how it was made."""
    command, what, *others = measured.comments
    heads = list(measured.lines[0])
    rows = [heads, ["---"] * len(heads), *(list(line.values()) for line in measured.lines)]
    table = "\n".join("| " + " | ".join(map(_text, row)) + " |" for row in rows)
    said = "\n".join(f"- {_text(line)}" for line in (f"`{command}`", *others))
    return "\n\n".join([f"## {measured.name}", what, table, said]) + "\n"


def section(made: Made) -> str:
    """Return the results of one experiment: what it is, its table, its picture, and how it was made."""
    parts = [f"## {made.name}", _text(made.runfile.title) + ".", _text(made.runfile.about)]
    parts += ["\n".join(table(made)), f"![{made.name}]({made.name}.svg)" if made.curves else ""]
    parts += ["\n".join(f"- {_text(line)}" for line in (f"`{made.comments[0]}`", *made.comments[1:]))]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(made: Made) -> Iterator[str]:
    """Yield the lines of the main table: ours, then the paper's."""
    main = made.metrics[0] if made.metrics else ""
    shown = [main, *(name for name in made.metrics[1:] if name in (f"train {main}", "loss"))]
    counted = ("messages", "numbers", "batches")
    settings = any(line["settings"] for line in made.lines)
    heads = ["", *shown, "worst agent", "epsilon", "as published", *counted, *(["settings"] * settings)]
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for name in dict.fromkeys(line["variant"] for line in made.lines):
        runs = [line for line in made.lines if line["variant"] == name]
        done = [line for line in runs if line["epsilon"]]
        lost = f" ({len(runs) - len(done)} of {len(runs)} runs diverged)" if len(done) < len(runs) else ""
        cells = [_text(name) + lost]
        cells += [spread(done, metric) for metric in shown] + [_mean(done, f"worst {main}")]
        cells += [_highest(done, "epsilon"), _highest(done, "published")]
        cells += [_count(done, count) for count in counted] + [
            f"`{runs[0]['settings']}`" if runs[0]["settings"] else ""
        ] * settings
        yield "| " + " | ".join(cells) + " |"
    for entry in made.runfile.printed:
        epsilon = "" if entry.epsilon is None else f"{entry.epsilon:g}"
        cells = [
            f"*{_text(entry.what)} ({_text(entry.source)})*",
            f"*{entry.value:g}*",
            *[""] * len(shown),
            "",
            epsilon,
        ]
        yield "| " + " | ".join([*cells, *[""] * (len(heads) - len(cells))]) + " |"


def drawn(made: Made) -> str | None:
    """Draw the curves: mean over the seeds, with a band from the lowest to the highest."""
    panels = []
    for metric in dict.fromkeys(line["metric"] for line in made.curves):
        if metric not in (made.metrics[0], f"train {made.metrics[0]}"):
            continue
        own = [line for line in made.curves if line["metric"] == metric]
        names = list(dict.fromkeys(line["variant"] for line in own))
        each = {name: np.array([[float(line[key]) for key in ("step", "mean", "lowest", "highest")] for line in own
                                if line["variant"] == name]).T for name in names}  # fmt: skip
        several = len({values[0][-1] for values in each.values()}) > 1
        lines = [
            Line(name, str(n), x * (100 / x[-1] if several else 1), mean, low, high, n % SLOTS, _STYLES[n // SLOTS % 3])
            for n, (name, (x, mean, low, high)) in enumerate(each.items())
        ]
        last = max(float(line.x[-1]) for line in lines)
        x = Axis("per cent of the run" if several else "step", 0.0, last)
        panels.append(chart(lines, x, pictures.focused(metric, lines), f"{metric} over the run: {made.name}"))
    return _SPOTS.sub("", pictures.by_itself(panels)) if panels else None


def spread(lines: Sequence[Cells], key: str) -> str:
    """Write the mean over the seeds, and the lowest and the highest.

    >>> spread([{"accuracy": "0.5"}, {"accuracy": "0.7"}], "accuracy")
    '0.6000 (0.5000 to 0.7000)'
    """
    values = [float(line[key]) for line in lines if line.get(key)]
    if not values:
        return "-"
    around = f" ({min(values):#.4g} to {max(values):#.4g})" if len(values) > 1 else ""
    return f"{np.mean(values):#.4g}{around}"


def _mean(lines: Sequence[Cells], key: str) -> str:
    values = [float(line[key]) for line in lines if line.get(key)]
    return figure(float(np.mean(values))) if values else "-"


def _count(lines: Sequence[Cells], key: str) -> str:
    values = [float(line[key]) for line in lines if line.get(key)]
    return f"{np.mean(values):,.0f}".replace(",", " ") if values else "-"


def _highest(lines: Sequence[Cells], key: str) -> str:
    values = [float(line[key]) for line in lines if line.get(key)]
    return upward(max(values)) if values else "-"


def _text(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ").strip()


def _anchor(name: str) -> str:
    return name.replace("/", "").lower()


def main() -> None:
    """Write all pages and pictures, and remove pictures of results that are gone."""
    wanted = files()
    for path in (*FOLDER.glob("*.md"), *FOLDER.glob("*/*.svg")):
        if path not in wanted:
            path.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    print(f"wrote {len(wanted)} files: {PAGE.name} and {FOLDER.name}/")


if __name__ == "__main__":
    main()
