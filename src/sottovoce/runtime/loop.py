"""Drive a job to its last step: charge, advance, measure, store. There is one loop for every place to run.

Example: a simulation of a thousand agents, a run on threads with exact noise, and a table split by columns are resumed,
measured, stopped and checked for divergence by the same lines.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sottovoce.privacy.report import PrivacyReport
from sottovoce.runtime import generations, peers
from sottovoce.runtime.about import About
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


def drive(
    job: Job, folder: RunFolder, resume: bool, steps: int, evaluate: Metrics | None, every: int, title: str,
    progress: bool | None,
) -> RunState:  # fmt: skip
    """Run a job to its last step: the one loop.

    What a stretch will spend is charged before it runs. After each stretch the state is measured and, if it is time,
    stored. An interrupt stores the last complete stretch.
    """
    place, company, path = job.place, peers.current(), folder.path
    stored = generations.latest(path, company) if resume and path is not None else None
    if stored is not None:
        assert path is not None
        now = RunState.restore(path, stored, job.identity, place, company)
        job.starting(now.step)
    else:
        job.starting(0)
        job.charge(0, min(every, steps))  # what `init` releases is charged with the first stretch
        now = RunState(place.begin())
        now = now.noted(place.measure(now.leaves, 0, evaluate))
    saved = time.monotonic()

    def keep() -> str:
        """Store the last complete stretch."""
        if path is None:
            return "Nothing is stored, because the run has no folder"
        now.save(path, job.identity, place, company)
        return f"Stored at step {now.step}; resume=True (--resume) goes on from the last step that all have stored"

    with Progress(title, steps, now.step, progress) as bar, company.guard(keep):
        try:
            while now.step < steps:
                count = min(every - now.step % every, steps - now.step)
                job.charge(now.step, now.step + count)
                began = time.perf_counter()
                leaves, broken = place.advance(now.leaves, now.step, count)
                _require_finite(place.names, broken, now.step)
                after = now.moved(leaves, count, time.perf_counter() - began)
                now = after.noted(place.measure(leaves, after.step, evaluate))
                bar.show(now.step, now.latest())
                due = time.monotonic() - saved > _SAVE_SECONDS or now.step == steps
                if path is not None and company.lead(partial(bool, due)):
                    now.save(path, job.identity, place, company)
                    generations.tidy(path, now.step, company)
                    saved = time.monotonic()
        except KeyboardInterrupt:
            if path is not None:
                now.save(path, job.identity, place, company)
                print(f"stopped at step {now.step}; resume=True (--resume) goes on from there", file=sys.stderr)
            raise
    return now


def _require_finite(names: Sequence[str], broken: np.ndarray, good: int) -> None:
    if broken.size and broken.min() < NEVER:
        name = names[int(broken.argmin())]
        what = f"the optimiser's {name}" if name.startswith("memory") else name
        raise FloatingPointError(
            f"{what} is no longer finite after step {int(broken.min())}: the run diverges. "
            f"Lower the step size or the noise; the last good state is that of step {good}."
        )
