"""Run one party: from the text of a run file to its own result, with its own policy, ledger and checkpoints.

The policy is asked before a record is read. Then a party with rows (`sottovoce.deploy.rows`), or one with columns
(`sottovoce.deploy.columns`), takes part.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sottovoce.deploy import columns, rows, said, sums
from sottovoce.deploy.bounds import GIGABYTE
from sottovoce.deploy.flare import Call, FlareTransport
from sottovoce.deploy.order import Order, Seat
from sottovoce.deploy.outbox import Outbox
from sottovoce.deploy.presence import Absences
from sottovoce.deploy.tunnel import Identity
from sottovoce.experiments import execute
from sottovoce.privacy.ledger import BudgetExceeded
from sottovoce.reports import comparison
from sottovoce.runtime.run_state import keep_for_one_run
from sottovoce.runtime.transport import Patience, Stopped

_ENDING = 120.0  # seconds for an earlier process of this party to end
_log = logging.getLogger(__name__)


@dataclass
class Party:
    """Play a site's part in one run. `home` is the site's folder: kit, policy, ledger and runs."""

    home: Path
    name: str
    order: Order
    call: Call
    agreed: Callable[[str, int, bool], bool] | None = None  # asks the relay who is away
    caveats: tuple[str, ...] = ()  # what the statement says of this system
    transport: FlareTransport | None = None
    finished: bool = False
    stopped: bool = False
    seat: Seat = field(init=False)

    def __post_init__(self) -> None:
        self.seat = Seat(self.home, self.name, self.order, self.caveats)
        self.identity = Identity.of(self.home, self.seat.policy.peers)

    def live(self) -> None:
        """Take part from the beginning to the end, or from where an earlier process stopped.

        One process at a time: two would draw and send different things. An earlier one that is about to end is waited
        for.
        """
        deadline = time.monotonic() + _ENDING
        while True:
            try:
                with keep_for_one_run(self.seat.folder / "run"):
                    self.prepare()
                    return self.run()
            except BudgetExceeded:
                self.seat.close_budget()
                raise
            except TimeoutError as error:
                if self.stopped:
                    raise Stopped("the run was interrupted") from None
                if self.transport is not None or time.monotonic() > deadline:
                    raise
                _log.info("%s", error)
                time.sleep(1.0)

    def prepare(self) -> None:
        """Ask the policy, and open the line to the others; no record is read."""
        seat, deploy = self.seat, self.seat.deploy
        seat.require()
        if (seat.folder / "run" / "result.json").exists():
            self.finished = True
        self.transport = FlareTransport(
            seat.me, deploy.sites, self.order.run, self._outbox(), self.identity, self.call,
            Patience(deploy.deadline), self.agreed if deploy.absent == "go on" else None,
            Absences(seat.folder / "absent.json"),
        )  # fmt: skip
        if self.stopped:  # `stop` was called before the line was open
            self.transport.stop()
        if self.finished:  # the others may still need earlier messages
            self.transport.outbox.end()

    def _outbox(self) -> Outbox:
        return Outbox(self.seat.folder / "outbox", int(self.seat.policy.disk * GIGABYTE))

    def run(self) -> None:
        """Run to the end, and write this party's result and report."""
        assert self.transport is not None
        seat = self.seat
        if not self.finished:
            wing = rows if seat.case.columns is None else columns
            wing.take_part(seat, self.transport)
        self.transport.outbox.forget_draws()
        sums.forget(seat)
        if self.finished and (seat.folder / "report.html").exists():  # a kill may have left no report
            return
        row = {"name": self.name, "kind": "together", "metric": seat.case.run.metric, "runs": ["run"]}
        comparison.save_plan(seat.folder, f"{seat.title}, {self.name}", self.order.text, (), [row])
        execute.report(seat.folder)
        self.finished = True

    def stop(self) -> None:
        """End this party at its next exchange, even if its line to the others is not open yet."""
        self.stopped = True  # first the flag, then the line: `prepare` goes the other way round, so one of them sees
        if self.transport is not None:
            self.transport.stop()

    def close(self) -> None:
        """Answer nobody any more; what is stored stays."""
        if self.transport is not None:
            self.transport.close()

    def where(self) -> dict[str, Any]:
        """Say how far this party is, and for whom it waits: public facts only."""
        transport = self.transport
        waits = None if transport is None else transport.waits_for
        words = {
            "state": "done" if self.finished else "running",
            "steps": None if transport is None else transport.steps,
            "round": None if transport is None else transport.round,
            "waits for": None if waits is None else self.seat.deploy.sites[waits[0]],
            "since": None if waits is None else waits[1],
        }
        return said.listed("status", words)
