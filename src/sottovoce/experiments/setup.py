"""A case of a run file with everything built: what the doors `account`, `run` and `audit` take."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from sottovoce.experiments.runfile import Case
from sottovoce.methods import Method
from sottovoce.networks import Network
from sottovoce.privacy.report import PrivacyReport
from sottovoce.runtime.result import Result


class Setup(ABC):
    """One case, for parties with records or for parties with columns.

    Example: ``setup.data`` is a list of parts, or a `Table`; either way ``sv.audit(setup.method, setup.data, ...)``
    audits it.
    """

    case: Case
    method: Method
    why: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """The number of steps: of the file, or as `auto` chose it."""
        assert self.case.run.steps is not None
        return self.case.run.steps

    @property
    @abstractmethod
    def data(self) -> Any:
        """The parties' parts, or their table."""

    @property
    @abstractmethod
    def problem(self) -> Any:
        """What is solved."""

    @property
    @abstractmethod
    def graph(self) -> Network | None:
        """Who talks to whom; None where parties talk to a server."""

    @property
    @abstractmethod
    def delta(self) -> float:
        """The delta of the statement."""

    @property
    @abstractmethod
    def account(self) -> PrivacyReport:
        """The privacy statement, computed without running."""

    @abstractmethod
    def alone(self) -> "Setup":
        """Return the setup in which each party trains alone."""

    @abstractmethod
    def pooled(self) -> "Setup":
        """Return the setup of all data in one place, without privacy."""

    @abstractmethod
    def run(self, seed: int, out: Path | None = None, resume: bool = False) -> Result:
        """Run it once."""
