"""Define the commands for one's own table: ``init``, ``check`` and ``predict``.

Slow imports stay inside the commands, so that the help text appears at once.
"""

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from sottovoce.experiments.setup import Setup
    from sottovoce.methods import Method
    from sottovoce.privacy.report import PrivacyReport

console = Console()
notes = Console(stderr=True, highlight=False)
RunFilePath = Annotated[Path, typer.Argument(help="a run file", metavar="FILE.toml")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change one key, e.g. run.steps=100")]
Quick = Annotated[bool, typer.Option("--quick", help="apply the file's [quick] table")]


def say(line: str) -> None:
    """Print what is being done, beside the results.

    >>> say("loading")
    """
    notes.print(f"[dim]{escape(line)}[/]", soft_wrap=True)


@contextmanager
def stoppable(remedy: str) -> Iterator[None]:
    """On Ctrl-C, print what to do next and exit with the usual code.

    >>> with stoppable("The same command starts again."):
    ...     print("done")
    done
    """
    try:
        yield
    except KeyboardInterrupt:
        notes.print(f"Stopped. {escape(remedy)}", soft_wrap=True)
        raise typer.Exit(130) from None


def say_replaced(lines: Any) -> None:
    """Say what --set replaced."""
    for line in lines:
        notes.print(f"[dim]--set {escape(line)}[/]")


def init(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="a CSV, Parquet or Arrow file")],
    label: Annotated[str | None, typer.Option("--label", help="the column to predict")] = None,
    party: Annotated[str | None, typer.Option("--party", help="the column that says who holds a row")] = None,
    public_sample: Annotated[
        bool, typer.Option("--public-sample", help="the rows are public: read ranges and categories off them")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="[default: TABLE with .toml]")] = None,
) -> None:
    """Write a commented run file for a table, with a line per column to fill in.

    sottovoce init patients.csv --label death

    Only the names of the columns are looked at (of Parquet and Arrow files, their types too).
    """
    from sottovoce.experiments.template import template
    from sottovoce.files import write_atomically

    target = out or Path(table.with_suffix(".toml").name)
    text = template(table, label, party, public_sample)
    if target.exists():
        raise ValueError(f"{target} is there already: give another --out, or remove it")
    if target.resolve().parent != table.resolve().parent:
        notes.print(f"[dim]data.file is looked for beside {escape(str(target))}: put the table there[/]")
    write_atomically(target, text.encode())
    console.print(f"wrote {escape(str(target))}: fill in \\[data.columns], then sottovoce check {escape(str(target))}",
                  highlight=False, soft_wrap=True)  # fmt: skip


def check(file: RunFilePath, set_: Set = None, quick: Quick = False) -> None:
    """Check a run file with its table, and print what each party pays, before any work is done.

    sottovoce check mine.toml
    """
    from sottovoce.experiments.execute import plan
    from sottovoce.experiments.runfile import RunFile
    from sottovoce.reports.comparison import upward

    runfile = RunFile.load(file, set_ or (), quick)
    say_replaced(runfile.replaced)
    for row in plan(runfile, draws=False):
        setup, report = row.setup, row.setup.account
        facts = Table(title=escape(row.name), title_justify="left", show_header=False, box=None)
        for name, value in (*_built(setup), *_privacy(report)):
            facts.add_row(name, escape(value))
        console.print(facts)
        if report.parties and len(report.parties) > 1:
            paid = Table("party", f"{report.unit}s", "epsilon", box=None, header_style="dim")
            for name, size, epsilon in zip(report.parties, _sizes(setup), report.per_agent):
                paid.add_row(escape(name), size, upward(epsilon, 5))
            console.print(paid)
        console.print("")
    seeds = sum(len(case.run.seeds) for case in runfile.cases.values())
    chosen = any(case.select is not None for case in runfile.cases.values())
    runs = "one is chosen after a random number of runs" if chosen else f"{seeds} runs"
    console.print(f"Fine: {len(runfile.cases)} variants, {runs}. Nothing was run.", highlight=False)


def _built(setup: "Setup") -> list[tuple[str, str]]:
    graph = setup.graph
    lines = [("method", _described(setup.method)), ("steps", str(setup.steps))]
    if setup.case.task is not None:
        lines.insert(0, ("task", setup.case.task.name))
    lines += [("why", line) for line in setup.why]
    return [*lines, ("network", graph.name if graph is not None else "parties talk to a server")]


def _described(method: "Method") -> str:
    """Return the method's name and its plain settings; clips and noise stand in the lines on releases."""
    from dataclasses import fields

    from sottovoce.privacy.release import Release

    told = {field.name: getattr(method, field.name) for field in fields(method)}
    plain = [
        f"{name} = {value}" for name, value in told.items() if value is not None and not isinstance(value, Release)
    ]
    return ", ".join([type(method).__name__, *plain])


def _privacy(report: "PrivacyReport") -> list[tuple[str, str]]:
    from sottovoce.reports.comparison import upward

    said = f"{upward(report.epsilon, 5)} at delta {report.delta:g}, per {report.unit}, {report.adjacency} adjacency"
    released = [("released", event) for event in report.events]
    return [("epsilon", said), *released, *(("note", caveat) for caveat in report.caveats)]


def _sizes(setup: "Setup") -> list[str]:
    from sottovoce.data import Population

    by_level = Population.of(setup.data).sizes.values()
    return [" + ".join(map(str, sizes)) for sizes in zip(*by_level)]


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="a file that sv.save wrote, or the folder of a run")],
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="new rows: a CSV, Parquet or Arrow file")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.csv", help="[default: print]")] = None,
) -> None:
    """Predict the label of new rows, as CSV: one line per row, with the probability of each class.

    sottovoce predict runs/mine/auto/0/model.sv new.csv --out predicted.csv
    """
    from sottovoce.runtime.model_file import load

    opened = load(model)
    if opened.columns is None or opened.label is None:
        raise ValueError(f"{model} was saved without its columns: it predicts from arrays, in Python (sv.load)")
    heads, rows = [opened.label], [[value] for value in opened.predict(table).tolist()]
    if opened.classes:
        heads += [f"{opened.label}={name}" for name in opened.classes]
        chances = opened.probabilities(table)
        rows = [[*row, *(f"{chance:.6g}" for chance in own)] for row, own in zip(rows, chances)]
    target = out.open("w", newline="") if out is not None else sys.stdout
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(rows)
    if out is not None:
        target.close()
        notes.print(f"wrote {escape(str(out))}")
