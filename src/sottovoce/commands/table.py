"""Define the commands for one's own table: ``init``, ``check`` and ``predict``.

Slow imports stay inside the commands, so that the help text appears at once.
"""

import csv
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sottovoce.commands.costs import facts_of
from sottovoce.commands.terminal import (
    Json,
    Quick,
    Reduced,
    RunFilePath,
    Set,
    console,
    notes,
    print_json,
    print_line,
    say_replaced,
    scale_of,
)

if TYPE_CHECKING:
    from sottovoce.data import DeclaredTable
    from sottovoce.experiments.schema import Data
    from sottovoce.experiments.setup import Setup
    from sottovoce.methods import Method
    from sottovoce.privacy.report import PrivacyReport


def init(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="a CSV, Parquet or Arrow file")],
    label: Annotated[str | None, typer.Option("--label", help="the column to predict")] = None,
    party: Annotated[str | None, typer.Option("--party", help="the column that says who holds a row")] = None,
    public_sample: Annotated[
        bool, typer.Option("--public-sample", help="the rows are public: read ranges and categories off them")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="[default: TABLE with .toml]")] = None,
    json: Json = False,
) -> None:
    """Write a commented run file for a table, with a line per column to fill in.

    sottovoce init patients.csv --label death

    Only the names of the columns are looked at (of Parquet and Arrow files, their types too).
    """
    from sottovoce.experiments.template import template
    from sottovoce.files import write_atomically

    if table.is_dir():
        raise ValueError(f"{table} is a folder: give a CSV, Parquet or Arrow file")
    if table.suffix.lower() == ".toml":
        raise ValueError(f"{table} is a run file: `sottovoce check` takes it. `init` writes one for a table")
    target = out or Path(table.with_suffix(".toml").name)
    text = template(table, label, party, public_sample)
    if target.exists():
        raise ValueError(f"{target} is there already: give another --out, or remove it")
    if target.resolve().parent != table.resolve().parent:
        notes.print(f"[dim]data.file is looked for beside {escape(str(target))}: put the table there[/]")
    write_atomically(target, text.encode())
    if json:
        return print_json({"wrote": target})
    print_line(f"wrote {target}: fill in [data.columns], then sottovoce check {shlex.quote(str(target))}")


def check(
    file: RunFilePath, set_: Set = None, reduced: Reduced = False, quick: Quick = False, json: Json = False
) -> None:
    """Check a run file with its table, and print what each party pays, before any work is done.

    sottovoce check mine.toml
    """
    from sottovoce.experiments import own_table, search
    from sottovoce.experiments.planned import plan
    from sottovoce.experiments.runfile import RunFile

    runfile = RunFile.load(file, set_ or (), scale_of(reduced, quick))
    say_replaced(runfile.replaced)
    for case in runfile.cases.values():
        if case.data.file is not None:
            own_table.require_fitting(*_read(case.data))
    rows = plan(runfile, draws=False)
    for row in rows:
        search.check(row)
    warned = [line for row in rows if row.kind == "together" for line in row.setup.warnings]
    trials = sum(len(search.settings_of(row.case, row.name)) for row in rows)
    count = sum(len(row.setup.case.run.seeds) for row in rows)
    chosen = any(case.select is not None for case in runfile.cases.values())
    if json:
        found = {
            row.name: {"built": _built(row.setup), "sizes": _sizes(row.setup), **facts_of(row.setup.account)}
            for row in rows
        }
        return print_json({"variants": found, "warnings": warned, "runs": None if chosen else count})
    for row in rows:
        if row.kind == "alone":
            print_line(f"{row.name}: the same, but each party trains by itself\n")
        else:
            _show_check(row.name, row.setup)
    runs = "one is chosen after a random number of runs" if chosen else _counted(count, "run")
    runs += f" after {_counted(trials, 'trial')} of a search" if trials else ""
    verdict = "Fine" if not warned else f"It can run, with {_counted(len(warned), 'warning')}"
    for line in warned:
        console.print(f"[bold yellow]warning[/] {escape(line)}", soft_wrap=True, highlight=False)
    print_line(f"{verdict}: {_counted(len(runfile.cases), 'variant')}, {runs}. Nothing was run.")


def _read(data: "Data") -> "Sequence[DeclaredTable | None]":
    """Return one's own tables; none where they cannot be read, which the plan says with the place."""
    from sottovoce.experiments import build

    try:
        return build.own(data, draws=False)
    except (ValueError, TypeError, OSError):
        return ()


def _counted(number: int, what: str) -> str:
    """Count something in words.

    >>> _counted(1, "run"), _counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _show_check(name: str, setup: "Setup") -> None:
    from sottovoce.reports.comparison import upward

    report = setup.account
    facts = Table(title=escape(name), title_justify="left", show_header=False, box=None)
    for key, value in (*_built(setup), *_privacy(report)):
        facts.add_row(key, escape(value))
    console.print(facts)
    if report.parties and len(report.parties) > 1:
        paid = Table("party", f"{report.unit}s", "epsilon", box=None, header_style="dim")
        for party, size, epsilon in zip(report.parties, _sizes(setup), report.per_agent):
            paid.add_row(escape(party), size, upward(epsilon, 5))
        console.print(paid)
    console.print("")


def _built(setup: "Setup") -> list[tuple[str, str]]:
    lines = [("method", _described(setup.method)), ("steps", str(setup.steps))]
    if setup.case.task is not None:
        lines.insert(0, ("task", setup.case.task.name))
    lines += [("why", line) for line in setup.why]
    gain = [("by sums", setup.gain)] if setup.gain else []
    return [*lines, _between(setup), *gain]


def _between(setup: "Setup") -> tuple[str, str]:
    """Say how the parties work together."""
    if setup.trust is not None:
        return "trust", f"secure sums over {len(setup.data)} parties, of which any {setup.trust.colluding} may collude"
    return "network", setup.graph.name if setup.graph is not None else "parties talk to a server"


def _described(method: "Method") -> str:
    """Return the method's name and its plain settings; clips and noise stand in the lines on releases."""
    from dataclasses import fields

    from sottovoce.privacy.release import Release

    told = {field.name: getattr(method, field.name) for field in fields(method)}
    plain = [
        f"{name} = {value:.4g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in told.items()
        if value is not None and not isinstance(value, Release)
    ]
    return ", ".join([type(method).__name__, *plain])


def _privacy(report: "PrivacyReport") -> list[tuple[str, str]]:
    from sottovoce.reports.comparison import upward

    said = f"{upward(report.epsilon, 5)} at delta {report.delta:g}, per {report.unit}, {report.adjacency} adjacency"
    means = [("means", report.meaning)] if report.private else []
    means += [(name.lower(), said) for name, _, said in (line.partition(": ") for line in report.by_sums())]
    released = [("released", event) for event in report.events]
    technical = [("technical", line) for line in report.technical()]
    notes = [("note", caveat) for caveat in report.caveats]
    return [("epsilon", said), *means, *released, *technical, *notes]


def _sizes(setup: "Setup") -> list[str]:
    from sottovoce.data import Population

    by_level = Population.of(setup.data).sizes.values()
    return [" + ".join(map(str, sizes)) for sizes in zip(*by_level)]


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="a file that sv.save wrote, or the folder of a run")],
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="new rows: a CSV, Parquet or Arrow file")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.csv", help="[default: print]")] = None,
    json: Json = False,
) -> None:
    """Predict the label of new rows, as CSV (or JSON): one line per row, with the probability of each class.

    sottovoce predict runs/mine/auto/0/model.sv new.csv --out predicted.csv
    """
    from sottovoce.defused import cell
    from sottovoce.files import to_json, write_atomically
    from sottovoce.runtime.model_file import load

    # None in the folder of one run; a site's folder has one below it, a folder of experiments one per variant and seed.
    runs = sorted(str(one.parent) for below in ("*", "*/*") for one in model.glob(f"{below}/model.sv"))
    if len(runs) > 1:
        raise ValueError(f"{model} holds {len(runs)} runs: name the one that predicts, such as {runs[0]}")
    opened = load(runs[0] if runs else model)
    if opened.columns is None or opened.label is None:
        raise ValueError(f"{model} was saved without its columns: it predicts from arrays, in Python (sv.load)")
    heads, rows = [opened.label], [[_short(value)] for value in opened.predict(table).tolist()]
    if opened.classes:
        heads += [f"{opened.label}={name}" for name in opened.classes]
        chances = opened.probabilities(table).tolist()
        rows = [[*row, *map(_short, own)] for row, own in zip(rows, chances)]
    if json:
        found = [dict(zip(heads, row)) for row in rows]
        if out is None:
            return print_json(found)
        write_atomically(out, (to_json(found) + "\n").encode())
        return print_json({"wrote": out, "rows": len(found)})
    target = out.open("w", newline="") if out is not None else sys.stdout
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(map(cell, heads))
    writer.writerows(map(cell, row) for row in rows)
    if out is not None:
        target.close()
        notes.print(f"wrote {escape(str(out))}")


def _short(value: object) -> object:
    """Write a number with six digits: a private model knows no more.

    >>> _short(203102.47663680668), _short("yes")
    (203102.0, 'yes')
    """
    return float(f"{value:.6g}") if isinstance(value, float) else value
