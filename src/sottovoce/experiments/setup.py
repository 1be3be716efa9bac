"""Hold a case of a run file with everything built: what the doors `account`, `run` and `audit` take."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sottovoce.experiments.schema import Case
from sottovoce.methods import Method
from sottovoce.networks import Network
from sottovoce.privacy.report import PrivacyReport
from sottovoce.privacy.trust import Sum
from sottovoce.problems.tasks.base import Evaluate
from sottovoce.runtime.result import TRAIN, Result


class Setup(ABC):
    """Hold one case, for parties with records or for parties with columns.

    Example: ``setup.data`` is a list of parts, or a `Table`; either way ``sv.audit(setup.method, setup.data, ...)``
    audits it.
    """

    case: Case
    method: Method
    trust: Sum | None = None  # secure sums over the parties
    why: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()  # warnings about what noise will do

    @property
    def gain(self) -> str:
        """Say what secure sums would change, if anything."""
        return ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what a user should look at before the run."""
        return self.expected

    @property
    def steps(self) -> int:
        """Return the number of steps: of the file, or as `auto` chose it."""
        assert self.case.run.steps is not None
        return self.case.run.steps

    @property
    @abstractmethod
    def data(self) -> Any:
        """Return the parties' parts, or their table."""

    @property
    @abstractmethod
    def problem(self) -> Any:
        """Return what is solved."""

    @property
    @abstractmethod
    def graph(self) -> Network | None:
        """Return who talks to whom; None where parties talk to a server, and where everybody sees sums."""

    @property
    @abstractmethod
    def delta(self) -> float:
        """Return the delta of the statement."""

    @property
    @abstractmethod
    def account(self) -> PrivacyReport:
        """Return the privacy statement, computed without running."""

    @abstractmethod
    def metrics(self) -> list[str]:
        """Return the names of what a run measures."""

    @abstractmethod
    def alone(self) -> "Setup":
        """Return the setup in which each party trains alone."""

    @abstractmethod
    def pooled(self) -> "Setup":
        """Return the setup of all data in one place, without privacy."""

    @abstractmethod
    def run(self, seed: int, out: Path | None = None, resume: bool = False) -> Result:
        """Run it once."""


def both(on_test: Evaluate, on_train: Evaluate) -> Evaluate:
    """Return metrics of test records and, under names of their own, of training records, the loss first.

    >>> both(lambda x: {"loss": x}, lambda x: {"accuracy": 1, "loss": 2 * x})(3)
    {'loss': 3, 'train loss': 6, 'train accuracy': 1}
    """

    def evaluate(*variables: Any) -> Mapping[str, Any]:
        own = on_train(*variables)
        named = {TRAIN + name: own[name] for name in sorted(own, key=lambda name: name != "loss")}
        return {**on_test(*variables), **named}

    return evaluate
