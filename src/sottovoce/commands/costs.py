"""Define the commands that say what something costs: ``account``, ``calibrate`` and ``ledger show``.

Slow imports stay inside the commands, so that the help text appears at once.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

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
    from sottovoce.experiments.runfile import Scale
    from sottovoce.experiments.setup import Setup
    from sottovoce.privacy.report import PrivacyReport


def setups(file: Path, sets: list[str] | None, scale: "Scale") -> list[tuple[str, "Setup"]]:
    """Build every case of a run file, without drawing anything about its rows."""
    from sottovoce.experiments import planned
    from sottovoce.experiments.runfile import RunFile

    runfile = RunFile.load(file, sets or (), scale)
    say_replaced(runfile.replaced)
    return list(planned.setups(runfile, draws=False).items())


def facts_of(report: "PrivacyReport") -> dict[str, Any]:
    """Return a statement as plain data: its fields, its sentences, and the terms of other libraries.

    There is no event without the extra `events`.
    """
    own = {name: value for name, value in report.to_dict().items() if name != "spent"}
    told = {"statement": report.statement(), "in plain words": report.words(), "technical": report.technical()}
    event = None if find_spec("dp_accounting") is None else repr(report.dp_event)
    return {**told, **own, "attack": report.power(), "dp_event": event}


def account(
    file: RunFilePath, set_: Set = None, reduced: Reduced = False, quick: Quick = False, json: Json = False
) -> None:
    """Show what a run file guarantees, without running it: in plain words, then epsilon and how it was computed.

    sottovoce account mine.toml --set run.steps=500
    """
    made = setups(file, set_, scale_of(reduced, quick))
    if json:
        return print_json({name: facts_of(setup.account) for name, setup in made})
    for name, setup in made:
        table = Table(title=escape(name), title_justify="left", show_header=False, box=None)
        for key, value in (*_in_words(setup.account), *_in_terms(setup)):
            table.add_row(escape(key), value)  # values are escaped where they are made
        console.print(table, "")


def _in_words(report: "PrivacyReport") -> Iterator[tuple[str, str]]:
    for line in report.words():
        key, _, words = line.partition(": ")
        yield key.lower(), escape(words)


def _in_terms(setup: "Setup") -> Iterator[tuple[str, str]]:
    """Return the technical lines: numbers, how they were found, and the terms that other libraries use."""
    import numpy as np

    from sottovoce.reports.comparison import upward

    report = setup.account
    each = np.array(report.per_agent)
    if len(each) > 1:
        low, middle, high = (upward(float(f(each)), 5) for f in (np.min, np.median, np.max))
        yield "epsilon per party", f"{low} lowest, {middle} median, [bold]{high}[/] highest"
    else:
        yield "epsilon", f"[bold]{upward(report.epsilon, 5)}[/]"
    for level, epsilon in report.per_level.items() if len(report.per_level) > 1 else ():
        yield f"  {level} level", upward(epsilon, 5)
    yield "delta", f"{report.delta:g}, per {escape(report.unit)}, {report.adjacency} adjacency"
    yield "accountant", f"{report.accountant} ({report.library})"
    yield "design", report.design
    if report.published is not None:
        yield "as published", upward(report.published, 5)
    for event in report.events:
        yield "released", escape(event)
    for line in (*(f"{one.name}: max_grad_norm {one.clip:g}" for one in setup.method.releases()), *report.technical()):
        yield "technical", escape(line)
    for caveat in report.caveats:
        yield "note", escape(caveat)


def calibrate(
    file: RunFilePath,
    set_: Set = None,
    reduced: Reduced = False,
    quick: Quick = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="write the run file with this noise")
    ] = None,
    json: Json = False,
) -> None:
    """Show the noise that a file's privacy.epsilon needs; --out writes a run file with this noise.

    sottovoce calibrate mine.toml --set privacy.epsilon=1 --out calibrated.toml
    """
    from sottovoce.experiments.calibrated import written
    from sottovoce.experiments.runfile import RunFile
    from sottovoce.files import write_atomically
    from sottovoce.reports.comparison import upward

    if out is not None and not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent} for {out.name}: make it first")
    scale = scale_of(reduced, quick)
    runfile, made = RunFile.load(file, set_ or (), scale), setups(file, set_, scale)
    rows: list[dict[str, Any]] = []
    for name, setup in made:
        if setup.case.privacy.epsilon is None:
            raise ValueError(f"{name}: there is no epsilon to calibrate to; add --set privacy.epsilon=1")
        reached = {"epsilon": setup.account.epsilon, "adjacency": setup.account.adjacency}
        for release in setup.method.releases():
            first = {"clip": release.clip, "noise at first": float(release.scale(0, 0))}
            rows.append({"": name, "release": release.name, "mechanism": release.mechanism, **first, **reached})
        if not setup.method.releases():  # labels are drawn once, at the epsilon of the whole run
            rows.append({"": name, "release": "labels", "mechanism": "randomised response", **reached})
    if out is not None:
        write_atomically(out, written(runfile.title, dict(made)).encode())
    if json:
        named = [{"variant" if key == "" else key: value for key, value in row.items()} for row in rows]
        return print_json({"releases": named, "wrote": out})
    table = Table("", "release", "mechanism", "clip", "noise at first", "epsilon", "adjacency", box=None)
    for row in rows:
        clip, noise = (f"{row[key]:.6g}" if key in row else "" for key in ("clip", "noise at first"))
        told = [str(row[key]) for key in ("", "release", "mechanism")]
        table.add_row(*map(escape, told), clip, noise, upward(row["epsilon"], 5), row["adjacency"])
    console.print(table)
    if out is not None:
        notes.print(f"wrote {escape(str(out))}")


def show_ledger(
    files: Annotated[list[Path], typer.Argument(metavar="LEDGER.jsonl...", help="ledgers of runs or of agents")],
    delta: Annotated[float, typer.Option("--delta")] = 1e-5,
    adjacency: Annotated[str, typer.Option("--adjacency", help="zero-out or replace-one")] = "zero-out",
    json: Json = False,
) -> None:
    """Show what each party has spent, all its runs together.

    Examples:

        sottovoce ledger show runs/mine/DpSgd/0/ledger.jsonl
        sottovoce ledger show deployed/ledger-*.jsonl

    A ledger may hold several parties, and each party of a federation has one of its own.
    """
    from sottovoce.privacy.accountant import check_adjacency
    from sottovoce.privacy.ledger import Ledger, show, totals

    relation = check_adjacency(adjacency)
    for file in files:
        if not file.exists():
            raise ValueError(f"there is no ledger {file}: it is called ledger.jsonl, in the folder of a run")
    if json:
        told = {str(file): totals(Ledger(file), delta, relation) for file in files}
        return print_json({"delta": delta, "adjacency": relation, "ledgers": told})
    for file in files:
        if len(files) > 1:
            print_line(f"{file}:")
        print_line(show(Ledger(file), delta, relation))
