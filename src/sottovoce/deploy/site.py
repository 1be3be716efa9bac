"""Run inside FLARE: `Site`, in the job's process at each site, and `Relay`, at the server.

Both are named by a job's configuration, and built by FLARE. A site starts its party on a thread; calls of other sites
are handed to the party's transport as opaque bytes. The relay hands calls over, asks everybody how far they are, and
ends the job when all are done or one has failed. It computes nothing, and sees no message.
"""

import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from nvflare.collab.api import decorators as collab
from nvflare.collab.api.constants import FL_CONTEXT_PROP
from nvflare.collab.api.context import Context

from sottovoce.data.notes import be_silent
from sottovoce.deploy import said
from sottovoce.deploy.job import RUN_FILE
from sottovoce.deploy.presence import Presence
from sottovoce.deploy.progress import understood

if TYPE_CHECKING:
    from sottovoce.deploy.party import Party

STATUS = "sottovoce"  # the topic under which an administrator asks how far a run is
STOP = "sottovoce-stop"  # the topic under which it says that it will abort the run
_LOST = 5.0  # seconds for a site to say how far it is
_LOOK = 2.0  # seconds after which a job's process looks whether the one that started it is still there
_log = logging.getLogger(__name__)


class Site:
    """Run one party inside FLARE."""

    def __init__(self, run: str) -> None:
        be_silent()  # what a site writes to its logs may be sent to the server
        self._run, self._failure, self._paused, self._ended = run, "", False, False
        self._party: Party | None = None
        _end_with_parent()

    @collab.init
    def begin(self, context: Context) -> None:
        """Start the party; FLARE calls this when all sites are there."""
        home, name = Path(context.workspace.get_root_dir()), context.app.name
        job = context.app.get_prop(FL_CONTEXT_PROP).get_job_id()
        text = (Path(context.workspace.get_app_config_dir(job)) / RUN_FILE).read_text()
        self._server = context.server
        self._sites = {proxy.name: proxy for proxy in context.clients}
        threading.Thread(target=self._live, args=(home, name, text), daemon=True, name=f"party {name}").start()

    @collab.publish
    def ask(self, data: bytes, context: Context) -> bytes:
        """Answer another site: opaque bytes in, opaque bytes out; none if this party is not ready, or refuses."""
        party = self._party
        if party is None or party.transport is None or not isinstance(data, bytes):
            return b""
        return party.transport.answer(context.caller, data)

    @collab.publish
    def where(self) -> dict[str, Any]:
        """Say how far this party is; nothing that depends on a record."""
        if self._failure:
            return said.listed("status", {"state": "paused" if self._paused else "failed", "why": self._failure})
        return said.listed("status", {"state": "starting"}) if self._party is None else self._party.where()

    @collab.final
    def end(self) -> None:
        """Stop the party where it is; what it has stored stays."""
        self._ended = True
        if self._party is not None:
            self._party.stop()
            self._party.close()

    def _live(self, home: Path, name: str, text: str) -> None:
        try:
            from sottovoce.deploy.bounds import limit_memory
            from sottovoce.deploy.order import Order  # JAX takes seconds to load
            from sottovoce.deploy.party import Party
            from sottovoce.privacy.ledger import BudgetExceeded
            from sottovoce.runtime.transport import Stopped
        except BaseException:
            self._failure = f"{name} cannot load sottovoce: its owner finds why in console.log of its kit"
            raise
        try:
            self._party = Party(home, name, Order(text, self._run), self._call, self._agreed)
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
        try:
            answer = self._sites[name](timeout=seconds).ask(data)
        except Exception as error:  # FLARE raises its own kinds
            raise ConnectionError(f"{name} cannot be reached ({type(error).__name__})") from error
        return answer if isinstance(answer, bytes) else b""

    def _agreed(self, name: str, round: int, silent: bool) -> bool:
        try:
            return bool(self._server(timeout=_LOST).away(name, round, silent))
        except Exception as error:
            raise ConnectionError(f"the relay cannot be reached ({type(error).__name__})") from error


def _end_with_parent() -> None:
    """End this process once the site or server that started it is gone: it would keep the run's folder from the next.

    FLARE does so as well, but never if the parent was killed while this process was starting. What is stored stays, as
    after every kill.
    """

    def look() -> None:
        while _has_parent():
            time.sleep(_LOOK)
        _log.warning("the process that started this job's is gone: this one ends too")
        os._exit(1)

    threading.Thread(target=look, daemon=True, name="looks after the parent").start()


def _has_parent() -> bool:
    try:
        words = psutil.Process(os.getppid()).cmdline()
    except psutil.Error:
        return False
    return any(word.endswith(("client_train", "server_train")) for word in words)


class Relay:
    """Watch the sites from the server."""

    def __init__(self, run: str, sites: list[str]) -> None:
        self._run, self._names = run, sites
        self._known: dict[str, dict[str, Any]] = {name: {"state": "starting"} for name in sites}
        self._presence, self._stopped = Presence(self._round_of), False
        _end_with_parent()

    @collab.publish
    def away(self, name: str, round: int, silent: bool, context: Context) -> bool:
        """Say whether all go on without a site in a round."""
        return self._presence.away(name, round, silent, context.caller)

    def _stop(self, topic: str, data: object, fl_ctx: object) -> dict[str, Any]:
        """Tell all watching programs that an administrator stops the run, so that nobody submits it again."""
        self._stopped = True
        return {}

    def _sites(self) -> dict[str, dict[str, Any]]:
        stopped = {"state": "stopped", "why": "an administrator stopped it"}
        return dict.fromkeys(self._names, stopped) if self._stopped else self._known

    def _round_of(self, name: str) -> int | None:
        said = self._known.get(name, {})
        return None if said.get("state") == "not reached" else said.get("round", 0)

    @collab.main
    def watch(self, context: Context) -> str:
        """Ask all sites how far they are until all are done; a site that failed ends the job, which may be resumed."""
        engine = context.app.get_prop(FL_CONTEXT_PROP).get_engine()
        engine.register_app_command(STATUS, lambda topic, data, fl_ctx: {"run": self._run, "sites": self._sites()})
        engine.register_app_command(STOP, self._stop)
        while not context.is_aborted():
            for proxy in context.clients:
                try:
                    self._known[proxy.name] = {**understood(proxy(timeout=_LOST).where()), "seen": time.time()}
                except Exception:  # it may be cut off for a while; the others say whom they wait for
                    self._known[proxy.name] = {**self._known[proxy.name], "state": "not reached"}
            ended = [said["why"] for said in self._known.values() if said["state"] in ("failed", "paused")]
            if ended:
                time.sleep(2.0)  # so that an administrator who watches sees why
                raise RuntimeError(f"stopped: {'; '.join(ended)}")
            if all(said["state"] == "done" for said in self._known.values()):
                return "done"
            time.sleep(0.5)
        return "aborted"
