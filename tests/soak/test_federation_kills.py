"""kill -9 of each role of a real federation at random moments: it goes on, says the same bytes again, and pays once.

`make soak` kills each role 20 times per kind of run and of noise, `make test-all` once; runs follow each other until
all are killed. Kinds: parties with rows, parties with rows that add up under masks, and parties with columns, which
join their rows first. Roles: the agent (the process of a party), the job (FLARE's process of a running job at a site),
the network (FLARE's process of a site), the site (its own process), the server. Needs the extra [deploy].
"""

import json
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from sottovoce.privacy.ledger import Ledger
from sottovoce.runtime import checkpoint
from sottovoce.runtime.frames import Message

from .campaign import cases

pytest.importorskip("nvflare")
psutil = pytest.importorskip("psutil")
from sottovoce.deploy import joins  # noqa: E402
from sottovoce.deploy.federation import Administrator, Federation  # noqa: E402
from sottovoce.deploy.kits import SERVER, provision  # noqa: E402
from sottovoce.deploy.order import Order  # noqa: E402
from sottovoce.deploy.poc import agree, free_port, submitted  # noqa: E402

MARKS = {"agent": "sottovoce.deploy.party_process", "job": "engine site-job", "network": "engine site "}
ROLES, KILLS = (*MARKS, "site", "server"), cases(20, 1)
SITES = ["north", "south", "east"]
STEPS = {"rows": 300, "sums": 300, "columns": 60}
KEY = "one key for all runs: then all have one order of the rows"
ROWS = """
title = "kills"
[data]
name = "digits"
agents = 3
limit = 150
[task]
name = "softmax"
[network]
kind = "ring"
[method]
name = "DpSgd"
rate = 0.5
sampling = {{kind = "poisson", batch = 20}}
gradient = {{clip = 1.0}}
[run]
steps = {steps}
every = 10
[privacy]
epsilon = 8.0
[deploy]
sites = ["north", "south", "east"]
noise = "{noise}"
deadline = 300
"""
COLUMNS = """
title = "kills"
[data]
file = "table.csv"
id = "who"
label = "y"
[data.columns]
a = {{range = [-3, 3]}}
b = {{range = [-3, 3]}}
c = {{range = [-3, 3]}}
y = {{categories = ["no", "yes"]}}
[columns]
active = "south"
[columns.holders]
north = ["a"]
south = ["b"]
east = ["c"]
[method]
name = "Bambi"
inner_steps = 2
batch = 50
rate_x = 0.1
rate_y = 0.5
[run]
steps = {steps}
every = 2
[privacy]
epsilon = 2.0
[deploy]
sites = ["north", "south", "east"]
noise = "{noise}"
deadline = 300
"""
SUMS = ROWS.replace('[network]\nkind = "ring"\n', "").replace("[privacy]", '[privacy]\ntrust = "sum"')
TEXTS = {"rows": ROWS, "sums": SUMS, "columns": COLUMNS}
KINDS = [("rows", "simulated"), ("rows", "exact"), ("sums", "exact"), ("columns", "simulated"), ("columns", "exact")]


class Killer(threading.Thread):
    """Kills one process per entry of `roles`: two of three in mid-run, the others whatever is going on then.

    The first one is always killed in mid-run: so something was said that is said again, however few are killed.
    """

    def __init__(self, federation: Federation, roles: list[str], rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.federation, self.roles, self.rng = federation, roles, rng
        self.pause, self.over = threading.Event(), threading.Event()
        self.killed = Counter[str]()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while self.roles and not self.over.is_set():
                self._kill_one()
        except BaseException as failure:
            self.failure = failure

    def _kill_one(self) -> None:
        first = not self.killed
        wait = 0.0 if first else self.rng.uniform(0.0, 4.0)
        if first or self.rng.random() < 2 / 3:
            while not self.over.is_set() and not self._rounds_go_on():
                pass
        self.over.wait(wait)
        busy = self._rounds_go_on()
        with suppress(psutil.NoSuchProcess):  # it ended while we looked: the next turn looks again
            found = [] if self.over.is_set() or self.pause.is_set() else self._of(self.roles[0])
            if not found:
                return
            self.rng.choice(found).kill()
            self.killed[f"{self.roles.pop(0)}, {'while rounds go on' if busy else 'else'}"] += 1

    def _of(self, role: str) -> "list[psutil.Process]":
        names = [SERVER] if role == "server" else SITES
        running = [one for name in names if (one := self.federation.processes[name]).poll() is None]
        found = [psutil.Process(one.pid) for one in running]
        if (mark := MARKS.get(role)) is None:
            return found
        return [child for one in found for child in one.children(recursive=True) if mark in _words(child)]

    def _rounds_go_on(self) -> bool:
        before = self._newest()
        self.over.wait(0.4)
        return any(now := self._newest()) and now != before  # the removal of an earlier run is no round

    def _newest(self) -> list[str]:
        """The newest message of each site."""
        return [max((path.name for path in _said(self.federation.kits, site)), default="") for site in SITES]


class Witness:
    """Keeps what was said as often as it looks, and compares it with what stands there after a kill."""

    def __init__(self, kits: Path, run: str) -> None:
        self.kits, self.run = kits, run
        self.kept = dict[Path, tuple[int, bytes]]()  # the number of submissions when it was first seen, and the bytes
        self.submissions = self.again = self.compared = 0
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(f"{time.strftime('%X')} {line}")
        if not line.startswith("submitted"):
            return
        self.submissions += 1
        for site in SITES:
            stored = self.kits / site / "runs" / self.run / "run" / "checkpoint.npz"
            step = int(checkpoint.read_meta(stored)["step"]) if stored.exists() else 0
            # These rounds are computed again.
            self.again += sum(int(path.name[:9]) >= step for path in _said(self.kits, site))
        self.look()

    def look(self) -> None:
        """Compare all stored messages with what was stored there before; finished rounds are tidied away meanwhile."""
        for path in (path for site in SITES for path in _said(self.kits, site)):
            if (whole := _whole(path)) is not None:
                since, before = self.kept.setdefault(path, (self.submissions, whole))
                assert before == whole, f"{path} was said in two ways"
                self.compared += since < self.submissions

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look every half second, on a thread, as long as the block lasts."""
        over, failures = threading.Event(), []

        def look() -> None:
            while not over.wait(0.5) and not failures:
                try:
                    self.look()
                except AssertionError as failure:
                    failures.append(failure)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(30)
        for failure in failures:
            raise failure


def _words(process: "psutil.Process") -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _said(kits: Path, site: str) -> list[Path]:
    return list((kits / site / "runs").glob("*/outbox/said/*/*"))


def _whole(path: Path) -> bytes | None:
    """The bytes of a message; None if it was removed meanwhile, or a kill left a part."""
    try:
        data = path.read_bytes()
        Message.from_bytes(data)
    except (OSError, ValueError):
        return None
    return data


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    kits = provision(SITES, "localhost", free_port(), tmp_path_factory.mktemp("kills") / "kits")
    with Federation(kits, SITES) as running:
        yield running


def _tables(kits: Path) -> None:
    """Give each site a column of 400 people, in an order of its own; each lacks some."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(400, 3)).round(3)
    label = np.where(values.sum(axis=1) > 0, "yes", "no")
    for number, site in enumerate(SITES):
        held = np.delete(rng.permutation(400), np.s_[: 20 * number])
        lines = [f"who,{'abc'[number]}" + ",y" * (site == "south")]
        lines += [f"person {k},{values[k, number]}" + f",{label[k]}" * (site == "south") for k in held]
        (kits / site / "table.csv").write_text("\n".join(lines))
        (kits / site / "join.key").write_text(KEY)


def _run(federation: Federation, kind: str, noise: str, name: str, folder: Path) -> tuple[Witness, list[np.ndarray]]:
    """Run from an empty start to the end; return what was seen, and the last states of all sites."""
    kits, order = federation.kits, Order(TEXTS[kind].format(steps=STEPS[kind], noise=noise), name)
    for site in SITES:
        shutil.rmtree(kits / site / "runs", ignore_errors=True)
        for pattern in ("ledger.jsonl*", "labels-y*", "joins.json"):
            for old in (kits / site).glob(pattern):
                old.unlink()
    agree(order, kits)
    if kind == "columns":
        _tables(kits)
    witness, admin = Witness(kits, name), Administrator(kits / "admin", 180.0, federation.revive)
    try:
        with witness.looking():
            submitted(order, admin, folder / name, witness, federation.revive)
    except BaseException:
        print("\n".join(witness.lines))
        raise
    finally:
        admin.close()
    states = []
    for site in SITES:
        with np.load(kits / site / "runs" / name / "run" / "checkpoint.npz") as file:
            states += [file[f"leaf{number}"] for number in range(len(file.files) - 1)]
    return witness, states


def _paid(kits: Path, site: str, kind: str, noise: str) -> None:
    """No charge is missing, none is there twice: of steps, or of labels and joins."""
    if kind != "columns":
        with tempfile.TemporaryDirectory() as folder:  # this process must not know a path that the next run uses anew
            for file in (kits / site).glob("ledger.jsonl*"):
                shutil.copy(file, folder)
            entries = Ledger(Path(folder) / "ledger.jsonl").entries.values()
        assert Counter(t for entry in entries for t in range(entry.start, entry.stop)) == Counter(range(STEPS[kind]))
        return
    assert len(joins.taken(kits / site)) == 1
    if site == "south" and noise == "exact":
        with np.load(kits / site / "labels-y.npz") as file:
            counts = file["counts0"]
        (found,) = (kits / site / "runs").glob("*/joined.json")
        common = len(json.loads(found.read_text())["ids"])
        assert sorted(Counter(counts.tolist())) == [0, 1]
        assert counts.sum() == common - round(0.2 * common)  # but for held-out rows


def _check(federation: Federation, kind: str, noise: str) -> None:
    """Look at ledgers and logs after a run."""
    kits = federation.kits
    for site in SITES:
        _paid(kits, site, kind, noise)
        log = (kits / site / "console.log").read_text(errors="replace")
        assert "came out differently" not in log, site  # what was computed again were the stored bytes


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "noise"), KINDS)
def test_a_federation_survives_kills_of_each_role(
    federation: Federation, kind: str, noise: str, tmp_path: Path
) -> None:
    seed = int(time.time())
    rng, roles, seen = random.Random(seed), list(ROLES) * KILLS, Counter[str]()
    print(f"\n{kind}, {noise} noise, seed {seed}", flush=True)
    rng.shuffle(roles)
    _, whole = _run(federation, kind, noise, f"{kind}-{noise}-whole", tmp_path)  # nobody is killed
    killer = Killer(federation, roles, rng)
    killer.start()
    try:
        while roles:
            killer.pause.clear()
            seen["runs"] += 1
            try:
                witness, states = _run(federation, kind, noise, f"{kind}-{noise}-{seen['runs']}", tmp_path)
            finally:
                killer.pause.set()  # what is checked now stays as it is
                print(f"{dict(sorted(killer.killed.items()))}, {dict(seen)}", flush=True)
            seen["submissions"] += witness.submissions
            seen["messages said again"] += witness.again
            seen["comparisons of stored bytes across kills"] += witness.compared
            _check(federation, kind, noise)
            if noise == "simulated":
                assert all(np.array_equal(one, other) for one, other in zip(states, whole, strict=True))
            assert killer.failure is None
    finally:
        killer.over.set()
        killer.join(30)
    print(f"{dict(sorted(killer.killed.items()))}, {dict(seen)}", flush=True)
    assert seen["messages said again"] > 0
    assert seen["comparisons of stored bytes across kills"] > 0
