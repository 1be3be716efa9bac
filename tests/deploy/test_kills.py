"""kill -9 of each role at random moments: the run ends as if nothing had happened. ``SOAK=1``: 20 kills per role."""

import os
import random
import threading
import time
from collections import Counter

import numpy as np
import psutil
import pytest

from sottovoce.deploy.kits import SERVER
from sottovoce.privacy.ledger import Ledger
from tests.deploy import cases
from tests.deploy.test_federation import run, running  # noqa: F401  (a fixture)

KILLS = int(os.environ.get("KILLS", "20" if os.environ.get("SOAK") else "1"))
STEPS = 100 * KILLS + 50


class Killer(threading.Thread):
    """Kills one process of a role, waits until the run goes on, and again."""

    def __init__(self, federation, role, kills, seed=0):
        super().__init__(daemon=True)
        self.federation, self.role, self.left, self.done = federation, role, kills, 0
        self.random, self.over = random.Random(seed), threading.Event()

    def _agents(self):
        found = []
        for site in cases.SITES:
            try:
                children = psutil.Process(self.federation.processes[site].pid).children(recursive=True)
            except psutil.NoSuchProcess:
                continue
            found += [child for child in children if "worker_process" in " ".join(child.cmdline())]
        return found

    def _progress(self):
        """The number of messages that were ever kept, as far as they are still there."""
        return sum(len(list((self.federation.kits / site / "runs").glob("*/outbox/said/*/*"))) for site in cases.SITES)

    def run(self):
        while self.left and not self.over.is_set():
            before = self._progress()
            while not self.over.is_set() and (len(self._agents()) < 5 or self._progress() == before):
                time.sleep(0.2)
            time.sleep(self.random.uniform(0.0, 2.0))
            if self.over.is_set():
                return
            try:
                if self.role == "agent":
                    self.random.choice(self._agents()).kill()
                else:
                    name = SERVER if self.role == "server" else self.random.choice(cases.SITES)
                    psutil.Process(self.federation.processes[name].pid).kill()
            except (psutil.NoSuchProcess, IndexError):
                continue
            self.left, self.done = self.left - 1, self.done + 1


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["simulated", "exact"])
@pytest.mark.parametrize("role", ["agent", "site", "server"])
def test_a_run_survives_kills(running, role, noise, tmp_path):  # noqa: F811
    federation, _ = running
    text = cases.text("DpSgd", noise, steps=STEPS, every=10).replace("epsilon = 8.0", "epsilon = 8.0\nbudget = 1000.0")
    for site in cases.SITES:
        for old in (federation.kits / site).glob("ledger.jsonl*"):
            old.unlink()
    killer, lines = Killer(federation, role, KILLS), []
    killer.start()
    kits = run(running, text, f"kills-{role}-{noise}", tmp_path, lines.append)
    killer.over.set()
    killer.join(30)
    print(f"{role}, {noise}: {killer.done} kills, {sum('submitted' in line for line in lines)} submissions")
    assert killer.done >= 1
    states = cases.states(kits)
    if noise == "simulated":
        assert cases.furthest(states, cases.one_machine(text)) < 1e-5
    for site in cases.SITES:
        entries = Ledger(kits / site / "ledger.jsonl").entries.values()
        steps = Counter(step for entry in entries for step in range(entry.start, entry.stop))
        assert steps == Counter(range(STEPS))  # no charge is missing, none is there twice
        assert all(np.isfinite(leaf).all() for leaf in states)
        log = (kits / site / "console.log").read_text(errors="replace")
        assert "came out differently" not in log  # what was said again was the same bytes
