"""Define the command line, for example ``sottovoce run mine.toml``.

Slow imports stay inside the commands, so that the help text appears at once.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from sottovoce.commands import (
    Quick,
    RunFilePath,
    Set,
    check,
    console,
    init,
    notes,
    predict,
    say,
    say_replaced,
    stoppable,
)
from sottovoce.deploy.commands import app as deploy

if TYPE_CHECKING:
    from sottovoce.experiments.execute import Setup
    from sottovoce.experiments.runfile import RunFile
    from sottovoce.reports.comparison import Comparison

_HELP = """Train and tune models across organisations that cannot share their data, with differential privacy.

**Start here**

    sottovoce demo                      ten parties, a private model, a report
    sottovoce init patients.csv         a run file for your own table
    sottovoce check FILE.toml           is it right, and what does each party pay
    sottovoce list                      methods, tasks, data sets, experiments
    sottovoce run FILE.toml             your own experiment (see: sottovoce run --help)
    sottovoce account FILE.toml         its epsilon, without running it

Every command has its own --help, with examples.
"""
_RUN_HELP = """Run an experiment described by a TOML file, and write a report.

Examples:

    sottovoce run mine.toml
    sottovoce run mine.toml --set run.steps=100 --out runs/short
    sottovoce run mine.toml --resume
    sottovoce run mine.toml --processes 4                                             on this machine
    sottovoce run mine.toml --processes 2 --coordinator 10.0.0.5:7000 --rank 1        one of two machines

A whole file (only data, task, method and run are required):

"""

app = typer.Typer(
    help=_HELP,
    rich_markup_mode="markdown",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
ledgers = typer.Typer(help="Show what has been spent.", no_args_is_help=True)
app.add_typer(ledgers, name="ledger")
app.add_typer(deploy, name="deploy")

FAULT = "This is a fault in sottovoce, not in what you gave it"
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="where results go [default: runs/NAME]")]
Resume = Annotated[bool, typer.Option("--resume", help="continue what is in --out")]


for command in (init, check, predict):
    app.command()(command)


def _run_help() -> str:
    """Return the help of `run`: the docstring of the run file module, read without importing the module."""
    import ast

    source = Path(__file__).parent / "experiments" / "runfile.py"
    return _RUN_HELP + (ast.get_docstring(ast.parse(source.read_text())) or "").partition("\n")[2]


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="where results go")] = Path("demo"),
    set_: Set = None,
) -> None:
    """Let ten clinics tune a model together in private; prints a table and writes a report. Takes under a minute."""
    say("Ten clinics tune a model together; no record leaves its clinic. Loading JAX ...")  # a word before the wait
    from sottovoce.experiments.demo import demo as run_demo

    with stoppable("sottovoce demo starts again from the beginning."):
        _show(run_demo(out, set_ or (), say=say), out)


@app.command("run", help=_run_help())
def run(
    file: RunFilePath,
    set_: Set = None,
    out: Out = None,
    resume: Resume = False,
    quick: Quick = False,
    processes: Annotated[int | None, typer.Option("--processes", metavar="N", help="spread over N processes")] = None,
    coordinator: Annotated[
        str | None, typer.Option("--coordinator", metavar="HOST:PORT", help="several machines: where rank 0 listens")
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", metavar="K", help="several machines: which process")] = None,
    worker: Annotated[bool, typer.Option("--worker", hidden=True)] = False,
) -> None:
    """Run a file; the help that users see is `_run_help`."""
    from sottovoce.experiments.runfile import RunFile

    folder, runfile = out or Path("runs") / file.stem, RunFile.load(file, set_ or (), quick)
    if processes is None:
        if coordinator is not None or rank is not None:
            raise ValueError("--coordinator and --rank are for several processes: give --processes N too")
        return _execute(runfile, folder, resume)
    if worker:
        assert coordinator is not None
        assert rank is not None
        return _work(runfile, folder, resume, coordinator, processes, rank)
    same = [str(file), *(f"--set={one}" for one in set_ or ()), f"--out={folder}"]
    same += ["--resume"] * resume + ["--quick"] * quick
    raise typer.Exit(_keep(same, processes, coordinator, rank))


def _keep(same: list[str], processes: int, coordinator: str | None, rank: int | None) -> int:
    """Start the processes that belong here, and wait for them."""
    from sottovoce.runtime.cluster import check_rank
    from sottovoce.runtime.keeper import keep

    if (coordinator is None) != (rank is None):
        raise ValueError("give --coordinator HOST:PORT and --rank K together; without them all processes are here")
    check_rank(rank or 0, processes)

    def command(which: int, address: str) -> list[str]:
        who = [f"--processes={processes}", f"--coordinator={address}", f"--rank={which}", "--worker"]
        return [sys.executable, "-c", "from sottovoce.cli import main; main()", "run", *same, *who]

    return keep(processes, range(processes) if rank is None else [rank], coordinator, command)


def _work(runfile: "RunFile", out: Path, resume: bool, coordinator: str, processes: int, rank: int) -> None:
    """Take part in a run as one of several processes; the leader writes and shows the report."""
    from sottovoce.experiments.execute import take_part
    from sottovoce.runtime import cluster

    joined = cluster.join(coordinator, processes, rank, cluster.facts(runfile.text))
    try:
        if joined.leads:
            _execute(runfile, out, resume)
        else:
            take_part(runfile, out, resume)
    except (ValueError, TypeError, FloatingPointError, OSError) as error:
        cluster.fail(joined, str(error))
        raise
    cluster.finish(joined)


@app.command()
def reproduce(
    experiment: Annotated[str, typer.Argument(metavar="PAPER/EXPERIMENT", help="one that `sottovoce list` shows")],
    set_: Set = None,
    out: Out = None,
    resume: Resume = False,
    quick: Quick = False,
) -> None:
    """Run a paper's experiment and compare its printed figures with ours; the epsilon of each is shown.

    sottovoce reproduce ldp-dsbo/mnist --quick
    """
    from sottovoce.experiments.reproduce import find
    from sottovoce.experiments.runfile import RunFile

    default = Path("runs") / (experiment.replace("/", "-") + ("-quick" if quick else ""))
    _execute(RunFile.load(find(experiment), set_ or (), quick), out or default, resume)


@app.command()
def account(file: RunFilePath, set_: Set = None, quick: Quick = False) -> None:
    """Show what a run file guarantees, without running it: epsilon, how it was computed, and its caveats.

    sottovoce account mine.toml --set run.steps=500
    """
    import numpy as np

    from sottovoce.reports.comparison import upward

    for name, setup in _setups(file, set_, quick):
        report = setup.account
        table = Table(title=escape(name), title_justify="left", show_header=False, box=None)
        each = np.array(report.per_agent)
        if len(each) > 1:
            low, middle, high = (upward(float(f(each)), 5) for f in (np.min, np.median, np.max))
            table.add_row("epsilon per agent", f"{low} lowest, {middle} median, [bold]{high}[/] highest")
        else:
            table.add_row("epsilon", f"[bold]{upward(report.epsilon, 5)}[/]")
        for level, epsilon in report.per_level.items() if len(report.per_level) > 1 else ():
            table.add_row(f"  {level} level", upward(epsilon, 5))
        table.add_row("delta", f"{report.delta:g}, per {report.unit}, {report.adjacency} adjacency")
        table.add_row("accountant", f"{report.accountant} ({report.library})")
        table.add_row("design", report.design)
        if report.published is not None:
            table.add_row("as published", upward(report.published, 5))
        for event in report.events:
            table.add_row("released", escape(event))
        for caveat in report.caveats:
            table.add_row("note", escape(caveat))
        console.print(table, "")


@app.command()
def calibrate(
    file: RunFilePath,
    set_: Set = None,
    quick: Quick = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="write the run file with this noise")
    ] = None,
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
    runfile = RunFile.load(file, set_ or (), quick)
    table = Table("", "release", "mechanism", "clip", "noise at first", "epsilon", "adjacency", box=None)
    made = _setups(file, set_, quick)
    for name, setup in made:
        if setup.case.privacy.epsilon is None:
            raise ValueError(f"{name}: there is no epsilon to calibrate to; add --set privacy.epsilon=1")
        reached = (upward(setup.account.epsilon, 5), setup.account.adjacency)
        for release in setup.method.releases():
            first = f"{float(release.scale(0, 0)):.6g}"
            table.add_row(name, release.name, release.mechanism, f"{release.clip:g}", first, *reached)
        if not setup.method.releases():  # labels are drawn once, at the epsilon of the whole run
            table.add_row(name, "labels", "randomised response", "", "", *reached)
    console.print(table)
    if out is not None:
        write_atomically(out, written(runfile.title, dict(made)).encode())
        notes.print(f"wrote {escape(str(out))}")


@app.command("list")
def list_() -> None:
    """List methods, tasks, data sets and experiments by name."""
    import inspect

    from sottovoce import data, methods
    from sottovoce.experiments import build, reproduce
    from sottovoce.experiments.runfile import RunFile
    from sottovoce.problems import tasks

    def here(name: str) -> str:
        return "" if name not in data.names() or data.available(name) else "to be downloaded"

    groups: dict[str, dict[str, str]] = {
        "Methods": {name: methods.summary(cls) for name, cls in methods.available.items()},
        "Tasks": {name: (inspect.getdoc(builder) or "").split("\n")[0] for name, builder in tasks.available.items()},
        "Data": {name: here(name) for name in build.data_names()},
        "Experiments": {name: RunFile.load(reproduce.find(name)).title for name in reproduce.experiments()},
    }
    table = Table(box=None, show_header=False)
    for title, entries in groups.items():
        table.add_row(f"[bold]{title}[/]")
        for name, words in entries.items():
            table.add_row(f"  {name}", escape(words))
    console.print(table)


@app.command()
def report(folder: Annotated[Path, typer.Argument(metavar="DIR", help="what run, reproduce or demo wrote")]) -> None:
    """Show the table of a finished (or stopped) experiment, and write its report.html again.

    sottovoce report runs/mine
    """
    from sottovoce.reports import load

    _show(load(folder), folder, write=True)


@app.command()
def audit(
    file: Annotated[Path | None, typer.Argument(help="a run file", metavar="[FILE.toml]")] = None,
    exhibit: Annotated[str | None, typer.Option("--exhibit", help="a published claim under attack, or all")] = None,
    attack: Annotated[str | None, typer.Option("--attack", help="dlg: reconstruct pictures from messages")] = None,
    trials: Annotated[int, typer.Option("--trials", help="runs under each hypothesis")] = 20_000,
    adversary: Annotated[str, typer.Option("--adversary", help="canary, replay or one-run")] = "canary",
    repeat: Annotated[int, typer.Option("--repeat", help="number of audits; the largest bound counts")] = 1,
    runtime: Annotated[str, typer.Option("--runtime", help="vectorised or threads")] = "vectorised",
    noise: Annotated[str, typer.Option("--noise", help="simulated, or discrete on threads")] = "simulated",
    data: Annotated[str, typer.Option("--data", help="pictures for --attack")] = "mnist",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="where pictures of --attack go")] = Path("audit"),
    set_: Set = None,
    quick: Quick = False,
) -> None:
    """Measure a lower bound on epsilon by attacks, and compare it with the claimed epsilon.

    sottovoce audit mine.toml --trials 5000

    sottovoce audit mine.toml --adversary one-run --runtime threads --noise discrete

    sottovoce audit --exhibit bambi-multiclass --quick

    sottovoce audit --exhibit sound-designs

    sottovoce audit --attack dlg
    """
    if [file is not None, exhibit is not None, attack is not None].count(True) != 1:
        raise ValueError("give a run file, --exhibit NAME or --attack dlg: one of the three")
    if file is not None:
        how = {"adversary": adversary, "trials": trials, "repeat": repeat, "runtime": runtime, "noise": noise}
        _audit_file(file, set_, quick, how)
    elif exhibit is not None:
        _exhibit(exhibit, quick)
    elif attack == "dlg":
        from sottovoce.audit import leakage

        small = {"count": 4, "steps": 60, "batch": 0} if quick else {}
        leakage.main(out, data, **small)  # type: ignore[arg-type]
    else:
        raise ValueError(f"there is no attack {attack!r}: choose dlg")


def _audit_file(file: Path, sets: list[str] | None, quick: bool, how: dict[str, Any]) -> None:
    from sottovoce.audit import audit as measure

    failed = []
    for name, setup in _setups(file, sets, quick):
        finding = measure(
            setup.method,
            setup.data,
            problem=setup.problem,
            network=setup.graph,
            steps=setup.steps,
            delta=setup.delta,
            adjacency=setup.case.privacy.adjacency,
            **how,
        )
        console.print(f"{escape(name)}: {escape(str(finding))}", highlight=False, soft_wrap=True)
        failed += [] if finding.passed else [name]
    if failed:
        raise ValueError(f"measured above its claim: {', '.join(failed)}")


def _exhibit(name: str, quick: bool) -> None:
    from sottovoce.audit import exhibits
    from sottovoce.naming import unknown

    if name != "all" and name not in exhibits.available:
        raise ValueError(unknown("exhibit", name, exhibits.available))
    for one in exhibits.available if name == "all" else [name]:
        print(exhibits.table(exhibits.run(one, quick=quick)), flush=True)


@ledgers.command("show")
def show_ledger(
    files: Annotated[list[Path], typer.Argument(metavar="LEDGER.jsonl...", help="ledgers of runs or of agents")],
    delta: Annotated[float, typer.Option("--delta")] = 1e-5,
    adjacency: Annotated[str, typer.Option("--adjacency", help="zero-out or replace-one")] = "zero-out",
) -> None:
    """Show what each agent has spent, all runs composed.

    sottovoce ledger show runs/mine/DpSgd/0/ledger.jsonl
    sottovoce ledger show deployed/ledger-*.jsonl            # one file per agent
    """
    from sottovoce.privacy.accountant import check_adjacency
    from sottovoce.privacy.ledger import Ledger, show

    for file in files:
        if not file.exists():
            raise ValueError(f"there is no ledger {file}: it is called ledger.jsonl, in the folder of a run")
        if len(files) > 1:
            console.print(f"{file}:", highlight=False, soft_wrap=True)
        console.print(show(Ledger(file), delta, check_adjacency(adjacency)), highlight=False, soft_wrap=True)


def _execute(runfile: "RunFile", out: Path, resume: bool) -> None:
    from sottovoce.experiments.execute import execute

    say_replaced(runfile.replaced)
    with stoppable(f"What is done is in {out}; the same command with --out {out} --resume continues it."):
        _show(execute(runfile, out, resume, say=say), out, write=True)


def _setups(file: Path, sets: list[str] | None, quick: bool) -> list[tuple[str, "Setup"]]:
    from sottovoce.experiments.execute import setups
    from sottovoce.experiments.runfile import RunFile

    runfile = RunFile.load(file, sets or (), quick)
    say_replaced(runfile.replaced)
    return list(setups(runfile, draws=False).items())


def _show(made: "Comparison", out: Path, write: bool = False) -> None:
    from sottovoce.experiments import execute
    from sottovoce.reports import findings

    heads, rows = made.table(brief=True)
    table = Table(title=escape(made.title), title_justify="left", box=None, header_style="dim")
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left")
    for cells in rows:
        table.add_row(*map(escape, cells))
    for entry in made.printed:
        epsilon = "" if entry.epsilon is None else f", epsilon {entry.epsilon:g}"
        table.add_row(
            f"[dim]printed: {escape(entry.what)} ({escape(entry.source)}{epsilon})[/]", f"[dim]{entry.value:g}[/]"
        )
    console.print(table)
    for line in findings(made):
        console.print(line)
    if write:
        execute.report(out)
    console.print(f"Report: {escape(str(out / 'report.html'))}", highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command line: an error is one clear line and exit code 2; SOTTOVOCE_DEBUG=1 shows where it came from."""
    try:
        app()
    except BrokenPipeError:  # `sottovoce list | head`: nobody reads on, and there is nothing to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get("SOTTOVOCE_DEBUG"):
            raise
        notes.print(f"[bold red]error[/] {escape(_in_words(error))}", soft_wrap=True)
        sys.exit(2)


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:  # not a sentence of ours
        return f"{error.filename} cannot be used ({error.strerror}): choose another path, or ask for access to it"
    if isinstance(error, ValueError | TypeError | FloatingPointError | OSError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"the memory is full ({error}): lower run.chunk, data.limit or data.agents"
    return f"{type(error).__name__}: {error}. {FAULT}: SOTTOVOCE_DEBUG=1 shows where it comes from; please report it"
