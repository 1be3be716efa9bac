"""Rounds per second and bytes per round of a federation on this machine, beside FLARE's bare exchange and one machine.

    python -m benchmarks.federation [--write] [5x10000 5x1000000 20x10000 20x1000000 5x10000+50 5x1000000+50]

A case is parties x floats: each party says that many float32 to both neighbours of a ring, round by round. Mutual TLS
on loopback, a process per running job and site. *bare*: each site calls each neighbour with the bytes. *ours*: kept on
disk before it is sent, TLS from site to site inside the calls, every message checked. Both take turns in the same
processes. *one machine*: a whole step of DP-SGD on two records per party, in one process, before and after.

With +50 a relay between the sites and the server holds all bytes back for 50 ms: a message from site to site takes 100
ms longer, a call with its answer 200 ms. These cases have a table of their own.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from benchmarks import measure, page
from benchmarks.delay import Delay
from sottovoce.deploy import job, kits
from sottovoce.deploy.engine import RELAY, network
from sottovoce.deploy.federation import DONE, Administrator, Federation
from sottovoce.deploy.poc import await_sites, free_port
from sottovoce.deploy.tunnel import IDENTITY
from sottovoce.experiments.toml import dump

SITE, WATCH = "federation_site.Exchanges", "federation_site.Watch"
WAYS, TURNS = ("bare", "ours"), 3
_PATH = os.environ.get("PYTHONPATH")
ROUNDS = 100  # per turn of a case with delay; without, as many as take some seconds


class Case(NamedTuple):
    """How many parties exchange how many numbers, and how many milliseconds a line takes."""

    parties: int
    floats: int
    delay: int = 0

    @classmethod
    def of(cls, word: str) -> "Case":
        if (found := re.fullmatch(r"(\d+)x(\d+)(?:\+(\d+))?", word)) is None:
            sys.exit(f"{word} is no case: give parties x floats, such as 5x10000, or 5x10000+50 for 50 ms of delay")
        return cls(int(found[1]), int(found[2]), int(found[3] or 0))

    @property
    def rounds(self) -> int:
        """Rounds per turn: about 5 seconds."""
        return ROUNDS if self.delay else max(5, min(60, 10**8 // (self.parties * max(self.floats, 10**5))))

    @property
    def name(self) -> str:
        return f"{self.parties}x{self.floats}-{self.delay}"


ALL = ("5x10000", "5x1000000", "20x10000", "20x1000000", "5x10000+50", "5x1000000+50")


class Seen(NamedTuple):
    """Seconds and bytes on the loopback device per round, turn by turn, and MiB of the job's process at a site."""

    seconds: dict[str, list[float]]
    bytes: dict[str, list[float]]
    memory: float


def main() -> None:
    cases = [Case.of(word) for word in [word for word in sys.argv[1:] if word != "--write"] or ALL]
    near, far = ([case for case in cases if bool(case.delay) == late] for late in (False, True))
    if near:
        _show("federation", "| parties | floats | one machine, rounds/s | FLARE alone, rounds/s | ours, rounds/s | "
              "ours / FLARE | MB per round, FLARE alone | MB per round, ours |\n|--:|--:|--:|--:|--:|--:|--:|--:|",
              _row, near, " MB: what goes over loopback, in from a site and out to another.")  # fmt: skip
    if far:
        _show("federation with delay", "| parties | floats | delay per line, ms | 100 rounds, FLARE alone, s | "
              "100 rounds, ours, s | FLARE / ours |\n|--:|--:|--:|--:|--:|--:|", _late, far, "")  # fmt: skip


def _show(section: str, head: str, row: Callable[[Case], str], cases: list[Case], notes: str) -> None:
    """Print a table row by row; with --write, put it into docs/benchmarks.md."""
    busy, began, lines = measure._busy(), time.perf_counter(), [head]
    print(head, flush=True)
    for case in cases:
        lines.append(row(case))
        print(lines[-1], flush=True)
    used = ((measure._busy() or 0.0) - (busy or 0.0)) / (time.perf_counter() - began) / (os.cpu_count() or 1)
    lines.append(f"\nMedians of {TURNS} turns, lowest and highest in brackets.{notes} The machine was busy for "
                 f"{100 * used:.0f}% of the time.")  # fmt: skip
    print(lines[-1], flush=True)
    if "--write" in sys.argv:
        page.write(section, "\n".join(lines))


def _row(case: Case) -> str:
    alone = [_one_machine(case)]
    seen = _exchanged(case)
    alone.append(_one_machine(case))
    speed = {way: [1 / one for one in seen.seconds[way]] for way in WAYS}
    print(f"({case.name}: {seen.memory:.0f} MiB per job's process)", file=sys.stderr, flush=True)
    cells = [str(case.parties), measure._short(case.floats), _spread(alone), *(_spread(speed[way]) for way in WAYS),
             _spread([ours / bare for ours, bare in zip(speed["ours"], speed["bare"])]),
             *(measure._short(statistics.median(seen.bytes[way]) / 1e6) for way in WAYS)]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _late(case: Case) -> str:
    seen = _exchanged(case)
    took = {way: [ROUNDS * one for one in seen.seconds[way]] for way in WAYS}
    ratio = [bare / ours for ours, bare in zip(took["ours"], took["bare"])]
    cells = [str(case.parties), measure._short(case.floats), str(case.delay), *(_spread(took[way]) for way in WAYS)]
    return f"| {' | '.join([*cells, _spread(ratio)])} |"


def _spread(values: list[float]) -> str:
    middle = measure._short(statistics.median(values))
    return f"{middle} ({measure._short(min(values))} to {measure._short(max(values))})"


def _one_machine(case: Case) -> float:
    """Rounds per second in a process of its own, whose memory is gone before the sites start."""
    code = (
        "import sottovoce as sv; from benchmarks.cluster import rounds; "
        f"print(rounds({case.parties}, {case.floats}, sv.networks.ring({case.parties})))"
    )
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=measure.ROOT).stdout)


def _exchanged(case: Case) -> Seen:
    """Start a federation, let both ways take turns, and end it."""
    sites = [f"site{number}" for number in range(case.parties)]
    with tempfile.TemporaryDirectory() as folder, _line(case.delay) as (port, reached):
        made = kits.provision(sites, "localhost", port, Path(folder) / "kits")
        _allow(made, sites, port, reached)
        where = [str(network(made / name)) for name in (*sites, kits.SERVER)]
        os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [_PATH]), *where])
        with Federation(made, sites) as running:
            admin = Administrator(made / "admin")
            try:
                await_sites(admin, sites, running.revive, seconds=600.0)
                return _measured(admin, running, case)
            finally:
                admin.close()


@contextmanager
def _line(delay: int) -> Iterator[tuple[int, int]]:
    """Give the server's port, and the port where sites reach it."""
    port = free_port()
    if not delay:
        yield port, port
        return
    with Delay(port, delay / 1e3) as cable:
        yield port, cable.port


def _allow(made: Path, sites: list[str], port: int, reached: int) -> None:
    """Let the kits run the benchmark's classes, write policies with the fingerprints, and lay the line."""
    prints = kits.fingerprints(made, sites)
    for name in (*sites, kits.SERVER):
        inside = network(made / name)  # all that FLARE's process can read
        shutil.copy(Path(__file__).with_name("federation_site.py"), inside)
        path = inside / "local" / "resources.json"
        settings = json.loads(path.read_text())
        settings["class_allow_list"] += [SITE, WATCH]
        path.write_text(json.dumps(settings))
    for site in sites:
        inside = network(made / site)
        policy = {"methods": ["none"], "epsilon": 1.0, "delta": 0.0, "budget": 1.0, "data": {"name": "none"}}
        (inside / "policy.toml").write_text(dump({**policy, "peers": prints}))
        shutil.copytree(made / site / IDENTITY, inside / IDENTITY)  # here FLARE's process plays the party, too
        facts = inside / "startup" / "fed_client.json"
        facts.write_text(facts.read_text().replace(f"localhost:{port}", f"localhost:{reached}"))
        (made / site / RELAY).write_text(json.dumps({"host": "localhost", "port": reached}))


def _measured(admin: Administrator, running: Federation, case: Case) -> Seen:
    """Submit one job, and return what its sites measured."""
    made, sites = running.kits, running.sites
    folder = job.write(made / "jobs" / case.name, "", case.name, sites)
    given = {"ways": WAYS * TURNS, "floats": case.floats, "rounds": case.rounds, "sites": sites, "run": case.name}
    for name, kind, arguments in (("server", WATCH, {}), ("client", SITE, given)):
        path = folder / "app" / "config" / f"config_fed_{name}.json"
        settings: dict[str, Any] = json.loads(path.read_text())
        settings["components"][0] |= {"path": kind, "args": arguments}
        path.write_text(json.dumps(settings))
    memory, found = 0.0, made / kits.SERVER / "times.json"
    with Meter() as meter:
        number = admin.submit(folder)
        while not (status := admin.status(number)).startswith("FINISHED"):
            memory = max(memory, _largest(running))
            time.sleep(2.0)
    said = json.loads(found.read_text()) if found.exists() else []
    if status != DONE or any(one["state"] != "done" for one in said):
        raise RuntimeError(f"{case.name}: {status}, {said}")
    for site in sites:
        shutil.rmtree(network(made / site) / "runs", ignore_errors=True)
    seconds, passed = dict[str, list[float]](), dict[str, list[float]]()
    for turn, way in enumerate(WAYS * TURNS):  # a round is over when the slowest has it
        took = [one["turns"][turn] for one in said]
        seconds.setdefault(way, []).append(max(ended - began for began, ended in took) / case.rounds)
        bytes = statistics.median(meter.between(began, ended) for began, ended in took)
        if bytes <= 0:
            raise RuntimeError(f"{case.name}: no bytes were counted on the loopback device, so MB per round is unknown")
        passed.setdefault(way, []).append(bytes / case.rounds)
    return Seen(seconds, passed, memory)


class Meter(threading.Thread):
    """Counts the bytes on the loopback device every 20 ms, which FLARE's confined processes cannot do."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.times, self.counts, self._over = list[float](), list[int](), threading.Event()

    def __enter__(self) -> "Meter":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(0.02):
            self.counts.append(psutil.net_io_counters(pernic=True)["lo"].bytes_sent)
            self.times.append(time.time())

    def between(self, began: float, ended: float) -> float:
        """Return the bytes that went by between two times."""
        first, last = np.interp([began, ended], self.times, self.counts)
        return float(last - first)


def _largest(running: Federation) -> float:
    """MiB of the largest process of a job at the sites."""
    found = [0.0]
    for site in running.sites:
        try:
            children = psutil.Process(running.processes[site].pid).children(recursive=True)
            found += [child.memory_info().rss / 2**20 for child in children]
        except psutil.Error:
            continue
    return max(found)


if __name__ == "__main__":
    main()
