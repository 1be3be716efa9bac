"""Say what a site is asked to do (`Order`), and its place in that run (`Seat`): checked before a record is read."""

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.data import Declarations
from sottovoce.deploy import bounds
from sottovoce.deploy.flare import FlareTransport, fact
from sottovoce.deploy.policy import NAME, Policy
from sottovoce.experiments import columns
from sottovoce.experiments.runfile import RunFile
from sottovoce.experiments.schema import Case, DeployTable
from sottovoce.files import read_facts, write_facts

MEETING = 600.0  # seconds for all sites to be there
OTHERS = "of the other sites this says what the run that all agreed on asks of them: no site checks another's noise"
_CLOSED, _WHY = "budget-closed.json", "why no new run is begun"
_PINNED, _KIND = "order.json", "what a run was begun with"


@dataclass(frozen=True)
class Order:
    """State what a site is asked to do: nothing else travels. `text` is a run file, `run` the run's name."""

    text: str
    run: str

    def case(self, trial: bool = False) -> tuple[str, Case, DeployTable]:
        """Return the file's title, its one case and its table [deploy]; a `trial` may still lack ids."""
        bounds.require_one_run(self.text)
        runfile = RunFile.parse(self.text)
        case = next(iter(runfile.cases.values()))
        if len(case.run.seeds) > 1 or case.run.redraw:
            raise ValueError("run.seeds has several seeds, or run.redraw is set: a federation runs one; give one seed")
        for key in ("select", "search"):
            if getattr(case, key) is not None:
                raise ValueError(f"[{key}] is not for a federation: remove it")
        if case.deploy is None:
            raise ValueError('the run file has no [deploy]: add it, with sites = ["north", "south"]')
        if case.privacy.by_sums is not None:
            _require_sums(case.deploy)
        if case.columns is not None:
            _require_columns(case, case.deploy, trial)
        return runfile.title, case, case.deploy

    def digest(self) -> str:
        """Return a digest of what is computed: how long a silent party is waited for is no part of it.

        >>> begin = "data.name = 'digits'\\ntask.name = 'softmax'\\nmethod.name = 'DpSgd'\\ndeploy.sites = ['a']\\nrun."
        >>> Order(begin + "steps = 2", "r").digest() == Order(begin + "steps = 2\\ndeploy.deadline = 9", "r").digest()
        True
        >>> Order(begin + "steps = 2", "r").digest() == Order(begin + "steps = 3", "r").digest()
        False
        """
        _, case, deploy = self.case()
        waiting = deploy.model_copy(update={"deadline": 1.0, "absent": "pause"})
        said = f"{self.run}|{case.model_copy(update={'deploy': waiting}).model_dump_json()}"
        return hashlib.sha256(said.encode()).hexdigest()


@dataclass(frozen=True)
class Seat:
    """Describe one site's place in a run. `home` is the site's folder: kit, policy, ledger and runs."""

    home: Path
    name: str
    order: Order
    caveats: tuple[str, ...] = ()  # what the statement says of this site's system

    def __post_init__(self) -> None:
        if self.name not in self.deploy.sites:
            raise ValueError(
                f"{self.name} is not in deploy.sites ({', '.join(self.deploy.sites)}): add it, or use the kit "
                "of a listed site"
            )
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", self.order.run):  # it becomes a folder here
            raise ValueError(f"the run's name is {self.order.run!r}: use letters, digits, '.', '_' and '-'")

    @cached_property
    def _read(self) -> tuple[str, Case, DeployTable]:
        return self.order.case()

    @property
    def title(self) -> str:
        """Return the run file's title."""
        return self._read[0]

    @property
    def case(self) -> Case:
        """Return what is to be run."""
        return self._read[1]

    @property
    def deploy(self) -> DeployTable:
        """Return the table [deploy]."""
        return self._read[2]

    @property
    def me(self) -> int:
        """Return the site's number."""
        return self.deploy.sites.index(self.name)

    @property
    def folder(self) -> Path:
        """Return the folder of this run."""
        return self.home / "runs" / self.order.run

    @cached_property
    def policy(self) -> Policy:
        """Return what the site agrees to, as it is when the run starts."""
        return Policy.load(self.home / NAME)

    def require(self) -> None:
        """Refuse what the policy does not agree to, and another run file under the name of a run that was begun.

        The stored draws of the first file would be used for the second: two results with the same noise reveal what it
        hides.
        """
        self.policy.require(self.case, self.name, self.deploy.noise, self.deploy.sites)
        self._require_budget_open()
        pinned, mine = self.folder / _PINNED, self.order.digest()
        if not pinned.exists():
            return write_facts(pinned, _KIND, 1, {"order": mine}, private=True)
        if read_facts(pinned, _KIND, 1, "start a new run, with another name")["order"] != mine:
            raise PermissionError(
                f"{self.name} began {self.order.run} with another run file: submit the same one, or start a new run"
            )

    @property
    def refusal(self) -> str:
        """Return what is said to others where an epsilon is too large, for this run or for the budget that is left."""
        return f"the policy of {self.name} does not agree to epsilon {self.case.privacy.epsilon}"

    def close_budget(self) -> None:
        """Write down that the budget did not allow a run: until the policy is changed, no new run is begun here.

        Refusals cost nothing. Without this, runs with one epsilon after the other would find out what is left.
        """
        facts = {"policy": self._policy_digest(), "run": self.order.run}
        write_facts(self.home / _CLOSED, _WHY, 1, facts, private=True)

    def _require_budget_open(self) -> None:
        path = self.home / _CLOSED
        begun = any((self.folder / "run").glob("checkpoint*"))
        if not path.exists() or begun:
            return
        known = read_facts(path, _WHY, 1, "remove it, if you have changed policy.toml")
        if known["policy"] == self._policy_digest():
            raise PermissionError(
                f"{self.refusal}: the budget did not allow {known['run']}, so no new run is begun until policy.toml is "
                "changed; else refusals would tell what is left"
            )

    def _policy_digest(self) -> str:
        return hashlib.sha256((self.home / NAME).read_bytes()).hexdigest()

    def compare(self, transport: FlareTransport, tag: str, facts: Mapping[str, Any]) -> None:
        """State a digest of facts, and refuse to go on if another party's is different."""
        every = {"order": [self.order.text, self.order.run], "versions": _versions(), **facts}
        mine = hashlib.sha256(json.dumps(every, sort_keys=True).encode()).digest()
        transport.state(fact(self.order.run, self.me, tag, [np.frombuffer(mine, np.uint8)], disclosed=False))
        for peer, name in enumerate(self.deploy.sites):
            if peer == self.me:
                continue
            if [one.tobytes() for one in transport.learn(peer, tag, MEETING).values] != [mine]:
                raise ValueError(
                    f"{name} would run something else than {self.name}: all sites need the same version of sottovoce "
                    "and JAX, the same run file and the same declared columns"
                )


def _versions() -> list[str]:
    return [importlib.metadata.version(name) for name in ("sottovoce", "jax", "numpy")]


def _require_sums(deploy: DeployTable) -> None:
    """Refuse secure sums without exact noise, or without one of the sites."""
    if deploy.noise != "exact":
        raise ValueError('privacy.trust = "sum" masks whole numbers: set deploy.noise = "exact"')
    if deploy.absent != "pause":
        raise ValueError(
            'deploy.absent = "go on" is for sites with noise of their own: a sum without one of the sites would show '
            "what that site adds. Leave deploy.absent out, and the run waits for it; or start a new run without it"
        )


def _require_columns(case: Case, deploy: DeployTable, trial: bool) -> None:
    """Refuse a table split by columns that several sites cannot hold."""
    columns.check(case)
    asked = case.columns
    assert asked is not None
    declared = Declarations(case.data.columns)
    wrong = {
        "data.file is missing: a ready-made set has no ids to join by; give sites tables of their own": not (
            case.data.file
        ),
        'data.id is missing: name the column of ids by which the sites join their rows, such as id = "customer"': (
            case.data.id is None and not trial
        ),
        f"columns.holders must list the sites and their columns, in the order of deploy.sites ({_listed(deploy)})": (
            list(asked.holders or ()) != deploy.sites
        ),
        "columns.active is missing: say which site holds the label": asked.active is None,
        "columns.stages, models and question are for one machine: remove them": (
            max(asked.stages, asked.models) > 1 or asked.question != "groups"
        ),
        'deploy.absent = "go on" is for parties with rows: with [columns] every party is needed': (
            deploy.absent != "pause"
        ),
        'a range or list is "public" or "private": a federation over columns needs it declared': any(
            column.source for column in declared.values()
        ),
        f"data.label ({case.data.label}) needs declared categories in [data.columns]": (
            case.data.label not in declared or declared[str(case.data.label)].numeric
        ),
    }
    for words, so in wrong.items():
        if so:
            raise ValueError(words)
    columns.holders_of(asked, features_of(case))


def features_of(case: Case) -> list[str]:
    """Return the features of a run over columns: as listed, else all declared columns but the label.

    >>> from sottovoce.experiments.schema import Data
    >>> features_of(Case(data=Data(file="a.csv", label="y", columns={"age": {"range": [0, 9]}, "y": {}})))
    ['age']
    """
    return case.data.features or [name for name in case.data.columns if name != case.data.label]


def _listed(deploy: DeployTable) -> str:
    return ", ".join(deploy.sites)
