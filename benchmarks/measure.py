"""Measure contenders side by side: they take turns in one run, and a Markdown table says what was seen.

    from benchmarks import measure

    turns = {"whole": measure.Turns(whole, 300), "Poisson": measure.Turns(poisson, 300)}
    seen = measure.compare("Batches of 64", turns)
    seen.show()
    seen.want("Poisson", "whole", at_least=0.5)

A contender is anything with `turn() -> Turn`: `Turns` calls a function of this process, `Remote` asks another process
(another environment, or several ranks). A busy machine slows all alike, so ratios are taken turn by turn. CPU time
counts every thread of the contender's process; peak memory is that of its process during its turns. `Comparison.load`
says how much of the machine other processes used meanwhile.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

ROOT = Path(__file__).parent.parent


class Turn(NamedTuple):
    """What one turn took: seconds and CPU seconds per step, steps made, and the process's peak memory in MiB."""

    seconds: float
    cpu: float
    steps: int
    peak: float


class Contender(Protocol):
    def turn(self) -> Turn: ...


class Turns:
    """A function of this process that makes `steps` steps and returns when they are done; the first call is not timed.

    What the function returns is waited for, so a jitted function can be given as it is.
    """

    def __init__(self, run: Callable[[], Any], steps: int = 1) -> None:
        self.run, self.steps = run, steps
        _wait(run())

    def turn(self) -> Turn:
        """Time one call."""
        _forget_peak()
        began, cpu = time.perf_counter(), time.process_time()
        _wait(self.run())
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        return Turn(took / self.steps, cpu / self.steps, self.steps, peak_mib())


class Remote:
    """A contender in a process of its own, started by `command`, which calls `serve`.

    It writes one line when it is ready, then one line per turn: the fields of `Turn` as JSON. What else it prints to
    standard output must not happen; standard error passes through.
    """

    def __init__(self, command: Sequence[str | Path], **environment: str) -> None:
        env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"} | environment
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT
        )
        self.ready = self._line()

    def turn(self) -> Turn:
        """Ask for one turn and return what it took."""
        assert self.process.stdin is not None
        self.process.stdin.write("turn\n")
        self.process.stdin.flush()
        return Turn(*self._line())

    def close(self) -> None:
        """Let the process end."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("end\n")
            self.process.stdin.close()
            self.process.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            self.process.terminate()
            self.process.wait()

    def _line(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(map(str, self.process.args))} ended with status {self.process.wait()}")  # type: ignore[arg-type]
        return json.loads(line)


def serve(contender: Contender, **facts: Any) -> None:
    """Answer a `Remote`: say that the contender is ready, then make a turn per line until the line "end"."""
    print(json.dumps(facts), flush=True)
    for line in sys.stdin:
        if line.strip() == "end":  # the end of the input does not reach a program that mpirun has started
            return
        print(json.dumps(contender.turn()), flush=True)


@dataclass(frozen=True)
class Comparison:
    """Turns of several contenders, in the order in which they were made."""

    title: str
    turns: Mapping[str, list[Turn]]
    load: str

    def speeds(self, name: str) -> list[float]:
        """Steps per second, turn by turn."""
        return [1 / one.seconds for one in self.turns[name]]

    def ratio(self, name: str, base: str) -> tuple[float, float, float]:
        """How many times faster `name` is than `base`, turn by turn: lower quartile, median, upper quartile."""
        return _quartiles([a / b for a, b in zip(self.speeds(name), self.speeds(base))])

    def show(self, base: str | None = None) -> None:
        """Print the table. Speeds are relative to `base`, the first contender if not given."""
        base = base or next(iter(self.turns))
        print(f"**{self.title}**\n")
        print(f"| | steps/s | middle half | CPU ms per step | peak MiB | times {base} | middle half |")
        print("|---|--:|--:|--:|--:|--:|--:|")
        for name, turns in self.turns.items():
            low, middle, high = _quartiles(self.speeds(name))
            cells = [_short(middle), f"{_short(low)} to {_short(high)}"]
            cells += [_short(1e3 * statistics.median(one.cpu for one in turns)), f"{max(t.peak for t in turns):.0f}"]
            low, middle, high = self.ratio(name, base)
            cells += [_short(middle), f"{_short(low)} to {_short(high)}"]
            print(f"| {name} | {' | '.join(cells)} |")
        count = {len(turns) for turns in self.turns.values()}
        print(f"\n{max(count)} turns each; {self.load}\n", flush=True)

    def want(self, name: str, base: str, at_least: float) -> None:
        """Print the asked-for ratio of speeds beside the measured one."""
        low, middle, high = self.ratio(name, base)
        verdict = "reached" if middle >= at_least else "**not reached**"
        spread = f"{middle:.2f} measured ({low:.2f} to {high:.2f})"
        print(f"- {name}, times {base}: at least {at_least:g} wanted, {spread}, {verdict}", flush=True)

    def limit(self, name: str, at_most_ms: float) -> None:
        """Print the asked-for milliseconds per step beside the measured ones."""
        low, middle, high = _quartiles([1e3 * one.seconds for one in self.turns[name]])
        want_at_most(f"{name}: ms per step", middle, at_most_ms, f" ({_short(low)} to {_short(high)})")


def want_at_most(what: str, measured: float, limit: float, spread: str = "") -> None:
    """Print a limit beside what was measured."""
    verdict = "reached" if measured <= limit else "**not reached**"
    print(f"- {what}: at most {limit:g} wanted, {_short(measured)} measured{spread}, {verdict}", flush=True)


def compare(title: str, contenders: Mapping[str, Contender], turns: int = 15, pause: float = 0.0) -> Comparison:
    """Let the contenders take turns, and return what each turn took.

    `pause` is in seconds between turns: threads of other libraries spin for a while after their work.
    """
    seen: dict[str, list[Turn]] = {name: [] for name in contenders}
    before, machine, began = os.getloadavg()[0], _busy(), time.perf_counter()
    for _ in range(turns):
        for name, contender in contenders.items():
            time.sleep(pause)
            seen[name].append(contender.turn())
    span = time.perf_counter() - began
    own = sum(one.cpu * one.steps for all_turns in seen.values() for one in all_turns)
    load = f"load {before:.1f} before"
    if machine is not None:
        others = max(0.0, (_busy() or 0.0) - machine - own)
        load += f"; other processes used {100 * others / span / (os.cpu_count() or 1):.0f}% of the machine meanwhile"
    return Comparison(title, seen, load)


def machine() -> str:
    """Return one line about this machine and the versions that matter."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB, Python {platform.python_version()}"


def peak_mib() -> float:
    """Return this process's peak resident memory in MiB since `_forget_peak` (since its start, where that fails)."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 2**10
    scale = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # not Linux, or not allowed: the peak is then that since the start


def _busy() -> float | None:
    """CPU seconds that all processes have used since the machine started; None where it cannot be known."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    user, nice, system, _idle, _wait, irq, soft, steal = map(int, stat.read_text().split(maxsplit=9)[1:9])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _wait(value: Any) -> None:
    if "jax" in sys.modules:
        sys.modules["jax"].block_until_ready(value)


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _short(value: float) -> str:
    """Three figures, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}" if value >= 0.001 else f"{value:.1e}"


def yardstick() -> str:
    """Say how fast Python itself is at this moment: figures of two days, or of two machines, compare by it."""
    seconds = min(timeit.repeat("for i in range(5_000_000): s += i", "s = 0", number=1, repeat=3))
    return f"5 million additions in Python take {seconds:.2f} s"
