"""Define the command line, for example ``sottovoce run mine.toml``.

Slow imports stay inside the commands, so that the help text appears at once.
"""

import os
import shlex
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sottovoce.commands.audit import audit
from sottovoce.commands.costs import account, calibrate, show_ledger
from sottovoce.commands.table import check, init, predict
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
    say,
    say_replaced,
    scale_of,
    stoppable,
)
from sottovoce.deploy.commands import app as deploy

if TYPE_CHECKING:
    from sottovoce.experiments.runfile import RunFile
    from sottovoce.reports.comparison import Comparison

_HELP = """Train and tune models across organisations that cannot share their data, with differential privacy.

**Start here**

    sottovoce demo                      ten parties, a private model, a report
    sottovoce init patients.csv         a run file for your own table
    sottovoce check FILE.toml           is it right, and what does it cost
    sottovoce list                      methods, tasks, data sets, experiments
    sottovoce run FILE.toml             your own experiment
    sottovoce account FILE.toml         its epsilon, without running it

Every command has its own --help, with examples.
"""
_RUN_HELP = """Run an experiment described by a TOML file, and write a report.

Examples:

    sottovoce run mine.toml
    sottovoce run mine.toml --set run.steps=100 --out runs/short
    sottovoce run mine.toml --resume
    # on four processes of this machine; as the second of two machines
    sottovoce run mine.toml --processes 4
    sottovoce run mine.toml --processes 2 --coordinator 10.0.0.5:7000 --rank 1

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


def _version(asked: bool) -> None:
    if asked:
        from sottovoce import __version__

        print_line(f"sottovoce {__version__}")
        raise typer.Exit


@app.callback(help=_HELP)
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="show the version, and stop")
    ] = False,
) -> None:
    """Take what stands before a command; the help that users see is `_HELP`."""


for command in (init, check, predict, account, calibrate):
    app.command()(command)
ledgers.command("show")(show_ledger)


def _run_help() -> str:
    """Return the help of `run`: the docstring of the run file module, read without importing the module."""
    import ast

    source = Path(__file__).parent / "experiments" / "runfile.py"
    return _RUN_HELP + (ast.get_docstring(ast.parse(source.read_text())) or "").partition("\n")[2]


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="where results go")] = Path("demo"),
    set_: Set = None,
    json: Json = False,
) -> None:
    """Let ten clinics tune a model together in private; prints a table and writes a report. Takes about a minute."""
    say("Ten clinics tune a model together, simulated on this machine. Loading JAX ...")  # loading is slow
    from sottovoce.experiments.demo import demo as run_demo

    with stoppable("sottovoce demo starts again from the beginning."):
        _show(run_demo(out, set_ or (), say=say), out / "report.html", json)


@app.command("run", help=_run_help())
def run(
    file: RunFilePath,
    set_: Set = None,
    out: Out = None,
    resume: Resume = False,
    reduced: Reduced = False,
    quick: Quick = False,
    processes: Annotated[int | None, typer.Option("--processes", metavar="N", help="spread over N processes")] = None,
    coordinator: Annotated[
        str | None, typer.Option("--coordinator", metavar="HOST:PORT", help="several machines: where rank 0 listens")
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", metavar="K", help="several machines: which process")] = None,
    json: Json = False,
    worker: Annotated[bool, typer.Option("--worker", hidden=True)] = False,
) -> None:
    """Run a file; the help that users see is `_run_help`."""
    from sottovoce.experiments.runfile import RunFile

    folder, runfile = out or Path("runs") / file.stem, RunFile.load(file, set_ or (), scale_of(reduced, quick))
    if processes is None:
        if coordinator is not None or rank is not None:
            raise ValueError("--coordinator and --rank are for several processes: give --processes N too")
        return _execute(runfile, folder, resume, json)
    if worker:
        assert coordinator is not None
        assert rank is not None
        return _work(runfile, folder, resume, json, coordinator, processes, rank)
    same = [str(file), *(f"--set={one}" for one in set_ or ()), f"--out={folder}"]
    same += ["--resume"] * resume + ["--reduced"] * reduced + ["--quick"] * quick + ["--json"] * json
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


def _work(runfile: "RunFile", out: Path, resume: bool, json: bool, coordinator: str, processes: int, rank: int) -> None:
    """Take part in a run as one of several processes; the leader writes and shows the report."""
    from sottovoce.experiments.execute import take_part
    from sottovoce.runtime import cluster

    joined = cluster.join(coordinator, processes, rank, cluster.facts(runfile.text))
    try:
        if joined.leads:
            _execute(runfile, out, resume, json)
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
    reduced: Reduced = False,
    quick: Quick = False,
    results: Annotated[
        Path | None, typer.Option("--results", metavar="DIR", help="write DIR/PAPER/EXPERIMENT.csv, and curves")
    ] = None,
    json: Json = False,
) -> None:
    """Run a paper's experiment, and compare its printed figures with ours; the epsilon of each is shown.

    Examples:

        # a try, under two minutes; smaller, in minutes; as large as in the paper
        sottovoce reproduce ldp-dsbo/mnist --quick
        sottovoce reproduce ldp-dsbo/mnist --reduced
        sottovoce reproduce ldp-dsbo/mnist
        # go on after a stop
        sottovoce reproduce ldp-dsbo/mnist --reduced --resume

    Settings of every method are chosen first, by the same number of trials, on records and seeds that are not
    reported. `sottovoce list` says how long each experiment takes.
    """
    from sottovoce.experiments.runfile import RunFile
    from sottovoce.laboratory.reproduce import find

    scale = scale_of(reduced, quick)
    runfile = RunFile.load(find(experiment), set_ or (), scale)
    folder = out or Path("runs") / (experiment.replace("/", "-") + ("" if scale == "full" else f"-{scale}"))
    for line in (runfile.about, *(f"This takes {words}." for words in [getattr(runfile.takes, scale)] if words)):
        say(line)
    _execute(runfile, folder, resume, json)
    if results is not None:
        from sottovoce.laboratory.results import write

        sets = "".join(f" --set {shlex.quote(one)}" for one in set_ or ())
        command = f"sottovoce reproduce {experiment}{'' if scale == 'full' else f' --{scale}'}{sets}"
        for path in write(results, experiment, command, runfile, folder):
            say(f"wrote {path}")


@app.command("list")
def list_(json: Json = False) -> None:
    """List methods, tasks, data sets and experiments by name."""
    import inspect

    from sottovoce import data, methods
    from sottovoce.experiments import build
    from sottovoce.experiments.runfile import RunFile
    from sottovoce.laboratory import reproduce
    from sottovoce.problems import tasks

    def here(name: str) -> str:
        return "" if name not in data.names() or data.available(name) else "to be downloaded"

    groups: dict[str, dict[str, str]] = {
        "Methods": {name: methods.summary(cls) for name, cls in methods.available.items()},
        "Tasks": {name: (inspect.getdoc(builder) or "").split("\n")[0] for name, builder in tasks.available.items()},
        "Data": {name: here(name) for name in build.data_names()},
        "Experiments": {name: _titled(RunFile.load(reproduce.find(name))) for name in reproduce.experiments()},
    }
    if json:
        return print_json(groups)
    table = Table(box=None, show_header=False)
    for title, entries in groups.items():
        table.add_row(f"[bold]{title}[/]")
        for name, words in entries.items():
            table.add_row(f"  {name}", escape(words))
    console.print(table)


def _titled(runfile: "RunFile") -> str:
    """Return an experiment's title, and how long it takes."""
    takes = {"": runfile.takes.full, "--reduced": runfile.takes.reduced, "--quick": runfile.takes.quick}
    told = "; ".join(f"{flag} {words}".strip() for flag, words in takes.items() if words)
    return f"{runfile.title} ({told})" if told else runfile.title


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="what run, reproduce or demo wrote")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.html", help="where the report goes [default: DIR/report.html]")
    ] = None,
    json: Json = False,
) -> None:
    """Show the table of a finished (or stopped) experiment, and write its report again; several are compared.

    sottovoce report runs/mine

    sottovoce report runs/ring runs/star --out compared.html
    """
    from sottovoce.experiments.execute import report as write
    from sottovoce.reports import load

    made = load(*folders)
    path = write(*folders, path=out)
    _show(made, path, json)


app.command()(audit)


def _execute(runfile: "RunFile", out: Path, resume: bool, json: bool) -> None:
    from sottovoce.experiments.execute import execute, report

    say_replaced(runfile.replaced)
    folder = shlex.quote(str(out))
    with stoppable(f"The same command with --out {folder} --resume goes on from what is stored there, if anything is."):
        _show(execute(runfile, out, resume, say=say), report(out), json)


def _show(made: "Comparison", report: Path, json: bool) -> None:
    from sottovoce.reports import findings
    from sottovoce.reports.exports import facts
    from sottovoce.reports.words import chances

    if json:
        return print_json({"report": report, **facts(made)})
    print_line(made.title)
    heads, rows = made.table(brief=True)
    table = Table(box=None, header_style="dim")
    for number, head in enumerate(heads):
        table.add_column(escape(head), justify="right" if number else "left")
    for cells in rows:
        table.add_row(*map(escape, cells))
    for entry in made.printed:
        epsilon = "" if entry.epsilon is None else f", epsilon {entry.epsilon:g}"
        table.add_row(
            f"[dim]printed: {escape(entry.what)} ({escape(entry.source)}{epsilon})[/]", f"[dim]{entry.value:g}[/]"
        )
    console.print(table)
    if not made.metrics:
        print_line("No figures: no row was held out (data.test), or no held-out label fits its declaration.")
    if made.sense is not None:
        console.print(f"Epsilon is {escape(made.sense)}.", highlight=False)
    for line in (*chances(made), *findings(made)):
        print_line(line)
    print_line(f"Report: {report}")


def main() -> None:
    """Run the command line: an error is one clear line and exit code 2; SOTTOVOCE_DEBUG=1 shows where it came from."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            app()
    except BrokenPipeError:  # as in `sottovoce list | head`: nobody reads the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get("SOTTOVOCE_DEBUG"):
            raise
        notes.print(f"[bold red]error[/] {escape(_in_words(error))}", soft_wrap=True)
        sys.exit(2)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line: where in the program it was made tells its reader nothing."""
    notes.print(f"[bold yellow]warning[/] {escape(str(message))}", soft_wrap=True)


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:  # an error of the operating system
        return f"{error.filename} cannot be used ({error.strerror}): choose another path, or ask for access to it"
    if isinstance(error, ValueError | TypeError | FloatingPointError | OSError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"the memory is full ({error}): lower run.chunk, data.limit or data.agents"
    return f"{type(error).__name__}: {error}. {FAULT}: SOTTOVOCE_DEBUG=1 shows where it comes from; please report it"
