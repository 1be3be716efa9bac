"""Run one party, in a process of the site's own: its table, keys, policy and ledger are opened here and nowhere else.

`sottovoce.deploy.own_process` starts it for a process of FLARE that runs a job, and which may be an attacker's. So what
it can ask is short (`_Run.respond`): begin the run of a run file, which the policy is asked about; hand over a call of
another site, which the TLS inside it proves; say how far the party is; end.
"""

import json
import logging
import os
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.deploy import said
from sottovoce.deploy.confine import end_with_parent, hide, in_words, limit_memory
from sottovoce.deploy.engine import log_ours
from sottovoce.deploy.pipe import Pipe

if TYPE_CHECKING:
    from sottovoce.deploy.party import Party

_ENDING = 5.0  # seconds for the party to stop
_HANDOVER = 5.0  # seconds in addition to those that a call may take
_log = logging.getLogger("sottovoce.deploy.party_process")


def main() -> None:
    """Run the party of the process at the other end of the standard input."""
    os.umask(0o077)
    hide()
    end_with_parent(int(sys.argv[2]))
    log_ours()
    run = Run(Path(sys.argv[1]), socket.socket(fileno=os.dup(0)))
    run.pipe.start()
    run.pipe.ended.wait()
    run.end()
    os._exit(0)


class Run:
    """Answer FLARE's process of one job. `home` is the site's kit."""

    def __init__(self, home: Path, line: socket.socket) -> None:
        self._home, self._name = home, home.name
        self._failure, self._paused, self._ended = "", False, False
        self._party: Party | None = None
        self._living: threading.Thread | None = None
        self._lock = threading.Lock()
        self.pipe = Pipe(line, self.respond)

    def respond(self, question: dict[str, Any], data: bytes) -> bytes:
        """Answer one question; ValueError if it is none of these."""
        what = question.get("what")
        if what == "begin":
            return self._begin(str(question["run"]), data.decode())
        if what == "ask":
            return self._asked(str(question["caller"]), data)
        if what == "where":
            return json.dumps(self._where()).encode()
        if what == "end":
            self.end()
            return b""
        raise ValueError("that is no question of a run")

    def end(self) -> None:
        """Stop the party where it is; what it has stored stays."""
        self._ended = True
        if self._party is not None:
            self._party.stop()
            self._party.close()
        if self._living is not None:
            self._living.join(_ENDING)

    def _begin(self, run: str, text: str) -> bytes:
        with self._lock:
            if self._living is not None:
                raise ValueError("a run has begun here")
            self._living = threading.Thread(
                target=self._live, args=(run, text), daemon=True, name=f"party {self._name}"
            )
            self._living.start()
        return b""

    def _asked(self, caller: str, data: bytes) -> bytes:
        party = self._party
        return b"" if party is None or party.transport is None else party.transport.answer(caller, data)

    def _where(self) -> dict[str, Any]:
        if self._failure:
            return said.listed("status", {"state": "paused" if self._paused else "failed", "why": self._failure})
        return said.listed("status", {"state": "starting"}) if self._party is None else self._party.where()

    def _live(self, run: str, text: str) -> None:
        name = self._name
        try:
            from sottovoce.data.notes import be_silent  # JAX takes seconds to load
            from sottovoce.deploy.order import Order
            from sottovoce.deploy.party import Party
            from sottovoce.privacy.ledger import BudgetExceeded
            from sottovoce.runtime.transport import Stopped
        except BaseException:
            self._failure = f"{name} cannot load sottovoce: its owner finds why in console.log of its kit"
            raise
        be_silent()  # a log may be shown to others
        try:
            self._party = Party(self._home, name, Order(text, run), self._call, self._agreed, caveats=(in_words(),))
            limit_memory(self._party.seat.policy.memory)
            if self._ended:  # `end` was called before the party was made
                self._party.stop()
            self._party.live()
        except (Stopped, TimeoutError) as pause:  # nothing is wrong here: the run may be resumed
            self._failure, self._paused = f"{name}: {pause}", True
            _log.warning("%s", pause)
        except BudgetExceeded as refusal:
            assert self._party is not None
            self._failure = self._party.seat.refusal  # in the words of a policy: others do not learn what is left
            _log.warning("%s", refusal)
        except PermissionError as refusal:
            self._failure = str(refusal).partition(":")[0]  # what the policy allows is not shown to others
            _log.warning("%s", refusal)
        except BaseException as failure:
            self._failure = f"{type(failure).__name__} at {name}: its owner finds why in console.log of its kit"
            _log.exception("the party failed")

    def _call(self, name: str, data: bytes, seconds: float) -> bytes:
        return self.pipe.ask({"what": "call", "name": name, "seconds": seconds}, data, seconds + _HANDOVER)

    def _agreed(self, name: str, round: int, silent: bool) -> bool:
        return self.pipe.ask({"what": "away", "name": name, "round": round, "silent": silent}) == b"1"


if __name__ == "__main__":
    main()
