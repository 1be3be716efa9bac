"""Execute a run file: every variant with every seed, and the comparisons it asks for. Each run can be resumed."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sottovoce.experiments import build, choice, search, together, toml
from sottovoce.experiments.planned import Planned, plan
from sottovoce.experiments.rows import RowsSetup
from sottovoce.experiments.runfile import RunFile
from sottovoce.experiments.schema import Settings, worded
from sottovoce.experiments.search import Trial
from sottovoce.files import reserved
from sottovoce.reports import comparison, write_report
from sottovoce.reports.comparison import Comparison
from sottovoce.runtime.run_state import AnotherRun


def execute(
    runfile: RunFile, out: str | Path, resume: bool = False, say: Callable[[str], None] = lambda line: None
) -> Comparison:
    """Run everything a run file asks for, into ``out/<variant>/<seed>``; `resume` continues what is there.

    `say` is called with a line of text when a run begins.
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: give a folder with --out")
    refuse_over_another(out, resume)
    say(f"preparing {runfile.title}")
    rows = plan(runfile)
    for row in rows:
        search.check(row)
        warned = (f"warning: {line}" for line in row.setup.expected)  # the run itself warns of the rest
        for line in (*row.setup.why, *warned) if row.kind == "together" else ():
            say(f"{row.name}: {line}")
    with reserved(out / "comparison.json"):
        refuse_over_another(out, resume)  # another process may have begun meanwhile
        if next(iter(runfile.cases.values())).select is None:
            _run_all(runfile, rows, out, resume, say)
        else:
            _choose(runfile, rows, out, say)
    return comparison.load(out)


def refuse_over_another(out: Path, resume: bool) -> None:
    """Refuse a folder that holds an experiment, unless that one is continued."""
    if (out / "comparison.json").exists() and not resume:
        raise ValueError(f"{out} holds an experiment already: choose another --out, or continue it with --resume")


def _run_all(runfile: RunFile, rows: Sequence[Planned], out: Path, resume: bool, say: Callable[[str], None]) -> None:
    settings, left = _searched(rows, out, say)
    entries = [row.entry(settings[row.name]) for row in rows]
    before = comparison.stored_plan(out)
    comparison.save_plan(out, runfile.title, runfile.text, runfile.printed, entries)
    runs, lost = [(row, seed) for row in rows for seed in row.case.run.seeds], list[str]()

    def begun() -> Iterator[together.OneRun]:
        for number, (row, seed) in enumerate(runs, 1):
            say(f"{number} of {len(runs)}: {row.name}, seed {seed}{left.words}")
            yield row.at(seed, settings[row.name]), seed, out / row.folder(seed)

    try:
        for number, end in together.as_they_end(begun(), resume):
            left.took(1)
            if isinstance(end, FloatingPointError):  # a method that diverges is a result too: the others continue
                lost.append(str(end))
            elif not comparison.finite(end.history):
                lost.append("its state is not finite at the end. Lower the step size or the noise")
            else:
                continue
            row, seed = runs[number]
            say(f"left out: {row.name}, seed {seed}: {lost[-1]}")
    except AnotherRun as error:
        comparison.restore_plan(out, before)
        raise ValueError(_edited(before, runfile, out, error)) from None
    except (ValueError, TimeoutError):  # these settings do not fit what is there: leave it as it was
        comparison.restore_plan(out, before)
        raise
    if len(lost) == len(runs):
        raise FloatingPointError(
            f"nothing is left to report: {lost[0]} To resume would end in the same way: change the settings (method = "
            '"auto" chooses some that fit), and give another --out. Steps are charged before they run, so the ledgers '
            f"in {out} hold those of this run too"
        )


def _edited(before: Mapping[str, bytes], runfile: RunFile, out: Path, error: AnotherRun) -> str:
    """Say by the keys of the run file why a run cannot be resumed; in the run's own terms if the file is the same."""
    try:
        stored = toml.read(before[comparison.RUN_FILE].decode())
        edited = toml.differences(stored, toml.read(runfile.text))
    except (KeyError, ValueError):
        edited = []
    if not edited:
        return str(error)
    remedy = "Undo the change to go on with it (--resume), or give another --out"
    return f"{out} holds another run: {'; '.join(edited)}. {remedy}"


def _searched(rows: Sequence[Planned], out: Path, say: Callable[[str], None]) -> tuple[dict[str, Settings], "_Left"]:
    """Return the settings that were chosen for each row, and a clock of what is left to run."""
    trials = {row.name: len(search.settings_of(row.case, row.name)) for row in rows}
    each = {row.name: len(row.case.search.seeds) if row.case.search else 0 for row in rows}
    left = _Left(sum(len(row.case.run.seeds) + trials[row.name] * each[row.name] for row in rows))
    chosen: dict[str, Settings] = {}
    for row in rows:
        if not trials[row.name]:
            chosen[row.name] = {}
            continue

        def tell(number: int, trial: Trial, row: Planned = row) -> None:
            left.took(each[row.name])
            got = "diverged" if trial.score is None else f"{trial.score:.4g}"
            say(f"search, {row.name}, {number + 1} of {trials[row.name]}: {worded(trial.settings)}: {got}{left.words}")

        before = left.done
        chosen[row.name] = search.search(row, out / Path(row.folder(0)).parent, tell).settings
        left.runs -= trials[row.name] * each[row.name] - (left.done - before)  # those that were stored
        say(f"{row.name}: chosen {worded(chosen[row.name])}")
    return search.alike(rows, chosen), left


class _Left:
    """Estimate how long the remaining runs take."""

    def __init__(self, runs: int) -> None:
        self.runs, self.done, self.begun = runs, 0, time.monotonic()

    def took(self, runs: int) -> None:
        """Note that some runs were made."""
        self.done += runs

    @property
    def words(self) -> str:
        """Return the time that is left, in words, once a run has been made."""
        if not self.done:
            return ""
        minutes = (time.monotonic() - self.begun) / self.done * (self.runs - self.done) / 60
        return f" (about {minutes:.0f} min left)" if minutes >= 1 else f" (about {60 * minutes:.0f} s left)"


def take_part(runfile: RunFile, out: str | Path, resume: bool = False) -> None:
    """Run everything a run file asks for as one of several processes that does not lead: it writes no report."""
    for row in plan(runfile):
        for seed in row.case.run.seeds:
            with suppress(FloatingPointError):
                row.at(seed, {}).run(seed, Path(out) / row.folder(seed), resume)


def _choose(runfile: RunFile, rows: Sequence[Planned], out: Path, say: Callable[[str], None]) -> None:
    """Store one variant, chosen by a private score. Begun again it starts anew: the same seed makes the same choice."""
    first = next(iter(runfile.cases.values()))
    variants = {row.name: row.setup for row in rows if isinstance(row.setup, RowsSetup)}
    assert first.privacy.epsilon is not None
    found = choice.choose(variants, first.privacy.epsilon, say)
    best = next(row for row in rows if row.name == found.name)
    folder = best.folder(first.run.seeds[0])
    variants[found.name].save(found.output, out / folder)
    entry = {"name": best.name, "kind": best.kind, "metric": first.run.metric, "runs": [folder]}
    words = f"{found.name}, chosen among {', '.join(variants)}: {found.statement}"
    comparison.save_plan(out, runfile.title, runfile.text, runfile.printed, [entry], words)
    say(words)


def report(*folders: str | Path, path: str | Path | None = None) -> Path:
    """Write the report of a finished or stopped experiment, or of several, and return its path.

    By default it is ``report.html`` in the folder; several folders need a `path`.
    """
    if path is None and len(folders) != 1:
        raise ValueError("a report of several folders needs a file to write to: give --out FILE.html")
    made = comparison.load(*folders)
    sources = dict.fromkeys(line for folder in folders for line in _sources(Path(folder)))
    return write_report(
        replace(made, sources=tuple(sources)), Path(folders[0]) / "report.html" if path is None else path
    )


def _sources(folder: Path) -> list[str]:
    """Say where the data of an experiment come from, as far as its run file tells."""
    path = folder / "run.toml"
    if not path.is_file():
        return []
    try:
        cases = RunFile.parse(path.read_text()).cases.values()
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): put back the run file of this experiment") from None
    return list(dict.fromkeys(build.source(case.data) for case in cases))
