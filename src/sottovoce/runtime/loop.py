"""Drive jobs to their last steps: charge, advance, measure, store. There is one loop for every place to run.

Example: a simulation of a thousand agents, a run on threads with exact noise, and a table split by columns are resumed,
measured, stopped and checked for divergence by the same lines.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.privacy.report import PrivacyReport
from sottovoce.runtime import generations, peers
from sottovoce.runtime.about import About
from sottovoce.runtime.members import Members
from sottovoce.runtime.place import NEVER, Metrics, Place
from sottovoce.runtime.progress import Progress
from sottovoce.runtime.run_state import RunFolder, RunState

_SAVE_SECONDS = 2.0  # between checkpoints, so that small runs do not spend their time on the disk


@dataclass(frozen=True, eq=False)
class Job:
    """Hold all that the loop needs: a place, what to charge before a stretch, and what makes this run the same run."""

    place: Place
    report: PrivacyReport
    identity: Mapping[str, Any]
    charge: Callable[[int, int], None]  # before steps `start` to `stop` - 1 are run
    starting: Callable[[int], None]  # once, before the run starts at step 0 or goes on from a later one
    about: Callable[[], About]  # once, after the last step


@dataclass(frozen=True, eq=False)
class Run:
    """Hold a job, how far it goes, how it is measured, and where it is stored."""

    job: Job
    folder: RunFolder
    resume: bool
    steps: int
    every: int
    evaluate: Metrics | None
    title: str  # in the progress bar
    progress: bool | None


def drive(run: Run) -> RunState:
    """Run one job to its last step, as `drive_all` does; raise FloatingPointError if it diverges."""
    (end,) = drive_all([run])
    if isinstance(end, FloatingPointError):
        raise end
    return end


def drive_all(runs: Sequence[Run]) -> list[RunState | FloatingPointError]:
    """Run one job, or several of one form, to their last steps: the one loop.

    What a stretch will spend is charged before it runs. After each stretch every state is measured and, if it is time,
    stored. A run that diverges ends with its own error, and the others go on. An interrupt stores the last complete
    stretch of each.
    """
    members, company, title = Members([run.job.place for run in runs]), peers.current(), runs[0].title
    ways = _started(runs, members)
    title = title if len(runs) == 1 else f"{len(runs)} runs, {title}"

    def keep() -> str:
        """Store the last complete stretch of each."""
        if not (at := _stored(ways)):
            return "Nothing is stored, because the run has no folder"
        return f"Stored at step {at}; resume=True (--resume) goes on from the last step that all have stored"

    with Progress(title, runs[0].steps, ways[0].now.step, runs[0].progress) as bar, company.guard(keep):
        try:
            while going := [way for way in ways if way.going]:
                first, count = min(way.stretch for way in going)
                together = [way for way in going if way.stretch == (first, count)]
                for way in together:
                    way.run.job.charge(first, first + count)
                began = time.perf_counter()
                states = [way.now.leaves for way in together]
                moved = members.advance([way.number for way in together], states, first, count)
                seconds = (time.perf_counter() - began) / len(together)
                for way, (leaves, broken) in zip(together, moved):
                    way.moved(leaves, broken, count, seconds)
                bar.show(first + count, together[0].now.latest())
        except KeyboardInterrupt:
            if at := _stored(ways):
                print(f"stopped at step {at}; resume=True (--resume) goes on from there", file=sys.stderr)
            raise
    return [way.now if way.failed is None else way.failed for way in ways]


@dataclass(eq=False)
class _Way:
    """Hold how far one of the runs is."""

    number: int
    run: Run
    now: RunState
    saved: float = field(default_factory=time.monotonic)
    failed: FloatingPointError | None = None

    @property
    def going(self) -> bool:
        """Say whether there are steps to run."""
        return self.failed is None and self.now.step < self.run.steps

    @property
    def stretch(self) -> tuple[int, int]:
        """Return the next step, and how many steps are run before the next measurement."""
        step, every = self.now.step, self.run.every
        return step, min(every - step % every, self.run.steps - step)

    def moved(self, leaves: list[Any], broken: np.ndarray, count: int, seconds: float) -> None:
        """Measure the state after a stretch, and store it if it is time; or note that the run diverged."""
        run, place, company = self.run, self.run.job.place, peers.current()
        self.failed = _diverged(place.names, broken, self.now.step)
        if self.failed is not None:
            return
        after = self.now.moved(leaves, count, seconds)
        self.now = after.noted(place.measure(leaves, after.step, run.evaluate))
        due = time.monotonic() - self.saved > _SAVE_SECONDS or self.now.step == run.steps
        if run.folder.path is not None and company.lead(partial(bool, due)):
            self.save(run.folder.path)
            generations.tidy(run.folder.path, self.now.step, company)
            self.saved = time.monotonic()

    def save(self, path: Path) -> None:
        """Store the last complete stretch in the run's folder."""
        self.now.save(path, self.run.job.identity, self.run.job.place, peers.current())


def _stored(ways: Sequence[_Way]) -> str:
    """Store all runs that have a folder, and return their steps in words."""
    steps = set()
    for way in ways:
        if way.run.folder.path is not None:
            way.save(way.run.folder.path)
            steps.add(way.now.step)
    return " and ".join(map(str, sorted(steps)))


def _started(runs: Sequence[Run], members: Members) -> list[_Way]:
    """Return the ways of all runs, from where they were stored or from the start, which is charged before it is made.

    What `init` releases is charged with the first stretch.
    """
    company = peers.current()
    states: dict[int, RunState] = {}
    for number, run in enumerate(runs):
        path = run.folder.path
        stored = generations.latest(path, company) if run.resume and path is not None else None
        if stored is not None:
            assert path is not None
            states[number] = RunState.restore(path, stored, run.job.identity, run.job.place, company)
    for number, run in enumerate(runs):
        run.job.starting(states[number].step if number in states else 0)
        if number not in states:
            run.job.charge(0, min(run.every, run.steps))
    fresh = [number for number in range(len(runs)) if number not in states]
    for number, leaves in zip(fresh, members.begin(fresh)):
        now = RunState(leaves)
        states[number] = now.noted(runs[number].job.place.measure(leaves, 0, runs[number].evaluate))
    return [_Way(number, run, states[number]) for number, run in enumerate(runs)]


def _diverged(names: Sequence[str], broken: np.ndarray, good: int) -> FloatingPointError | None:
    """Return the error of a run whose state is no longer finite."""
    if not broken.size or broken.min() == NEVER:
        return None
    name = names[int(broken.argmin())]
    what = f"the optimiser's {name}" if name.startswith("memory") else name
    return FloatingPointError(
        f"{what} is no longer finite after step {int(broken.min())}: the run diverges. "
        f"Lower the step size or the noise; the last good state is that of step {good}."
    )
