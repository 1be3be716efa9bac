"""Read what a site agrees to, from a file of its own: everything else is refused before a record is read.

methods = ["DpSgd", "LdpDsbo"]  # which methods may run here
tasks = ["logistic"]            # leave it out to allow all
epsilon = 2.0                   # the most that one run may cost
delta = 1e-5                    # the most
budget = 8.0                    # the most that all runs together may cost (ledger.jsonl)
adjacency = "zero-out"          # in which sense: a record left out; "replace-one" is stricter, and refuses the other
noise = ["exact"]               # "simulated" too: only to compare with one machine, on data that are no secret
trust = ["local"]               # "sum" too: noise is shared with the other sites, see [sums]

steps = 1000                    # the most steps of a run; this and what follows bound the work of this machine
work = 5000                     # the most that whole numbers in the run file multiply to: batch, inner steps, layers
weights = 1000000               # the most numbers of a model
deadline = 3600                 # the most seconds that a silent party is waited for
memory = 8.0                    # gigabytes of the process of a run
disk = 10.0                     # gigabytes of messages that other sites have not fetched and stored

[data]
file = "patients.csv"           # this site's table, beside the policy; or name = "digits", for trials
columns = ["age", "sex", "death"]  # columns that a run may use; leave it out to allow all
unit = "patient"                # runs must protect all rows with one value here as a whole; without it, each row

[columns]                       # runs over columns of the same people; without this table they are refused
id = "customer"                 # the column of ids, by which rows are joined
key = "join.key"                # a file with the secret that ids are keyed with, the same at all sites
features = ["income", "debt"]   # what may be computed with: the label holder sees it through a head, without an epsilon
label = "default"               # may be the label, under epsilon and budget; without it this site never holds the label
joins = 1                       # runs in which rows may be joined: each lets the others test ids of their choice
longest = 1000000               # the most ids in another site's list
fewest = 100                    # common rows: with fewer the run is refused

[sums]                          # runs with privacy.trust = "sum"; without this table, any of them with one colluding
colluding = 1                   # the fewest sites that may pool what they know and learn no more than is stated
independent = ["south"]         # sites that do not pool with others; all that are not listed count as pooling

[peers]                         # SHA-256 fingerprints of certificates: this site talks to nobody else
north = "3f:5b:..."             # `sottovoce deploy fingerprint` prints a site's own
south = "90:aa:..."
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from sottovoce.data import Declarations
from sottovoce.deploy.bounds import work_of
from sottovoce.experiments.schema import AUTO, Case
from sottovoce.registry import usual_over_columns

NAME = "policy.toml"
# Keys of [data] that a run over sites' own tables may set. All others distribute one table, or read facts off its rows.
_OF_SITES = ("file", "label", "features", "weight", "columns", "test", "seed", "unit", "upper", "id", "share")
READ_OFF = "read off each site's rows, which no epsilon covers and which differs from site to site"


def method_of(case: Case) -> str:
    """Return the name by which policies agree to a method; over columns "auto" is the usual one.

    >>> from sottovoce.experiments.schema import Data, MethodTable
    >>> method_of(Case(data=Data(name="digits"), method=MethodTable(name="DpBilevel.paper")))
    'DpBilevel'
    """
    if case.columns is not None and case.method.name == AUTO:
        return usual_over_columns.__name__
    return case.method.name.partition(".")[0]


def require_own_tables(case: Case) -> None:
    """Refuse a run file that speaks of one table for all sites, or reads facts off tables that sites do not share.

    The author of a run file cannot declare for a site that its largest value is no secret. A key of [data] that is not
    listed here is refused, so a new one does not pass by itself.

    >>> from sottovoce.experiments.schema import Data, MethodTable
    >>> data = Data(file="all.csv", party="hospital", label="death", columns={"age": {"range": [0, 120]}})
    >>> require_own_tables(Case(data=data, method=MethodTable(name="DpSgd")))
    Traceback (most recent call last):
    ...
    PermissionError: data.party is not for a federation: each site has a table of its own; remove it
    """
    if case.data.file is not None:
        for key, value in case.data.model_dump(exclude_unset=True).items():
            if value is not None and (key not in _OF_SITES or (key == "id" and case.columns is None)):
                raise PermissionError(
                    f"data.{key} is not for a federation: each site has a table of its own; remove it"
                )
    if isinstance(case.data.test, str):
        raise PermissionError("data.test names a file: give a share of each site's rows, or 0")
    if case.data.share is not None:
        raise PermissionError(f"data.share is {READ_OFF}: give task.prior, which all sites know")
    for name, column in Declarations(case.data.columns).items():
        if column.source is not None:
            what = "range" if column.numeric else "list of categories"
            raise PermissionError(f"the {what} of {name} is {READ_OFF}: declare it, the same for all sites")
        if isinstance(column.curve, str):
            raise PermissionError(f"the curve of {name} is {READ_OFF}: give its bins, the same for all sites")


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OwnData(_Closed):
    """State which data this site has, and what of them may be used."""

    file: str | None = None
    name: str | None = None
    columns: list[str] | None = None
    unit: str | None = None


class OwnColumns(_Closed):
    """State what a site agrees to in runs over columns."""

    id: str
    key: str
    features: list[str]
    label: str | None = None
    joins: Annotated[int, Field(ge=0)] = 1
    longest: Annotated[int, Field(ge=1)] = 1_000_000
    fewest: Annotated[int, Field(ge=1)] = 100

    @model_validator(mode="after")
    def _apart(self) -> "OwnColumns":
        if self.label in self.features or self.id in (*self.features, self.label):
            raise PydanticCustomError("columns", "id, label and features must be different columns")
        return self


class OwnSums(_Closed):
    """State what a site demands of secure sums: noise of its own protects it from everybody, a sum's noise does not."""

    colluding: Annotated[int, Field(ge=0)] = 1
    independent: list[str] | None = None

    def demanded(self, others: Sequence[str]) -> int:
        """Return how many colluding sites a run with these others must withstand.

        >>> OwnSums(independent=["south", "mid"]).demanded(["south", "mid", "east", "west"])
        3
        """
        pooling = [name for name in others if self.independent is not None and name not in self.independent]
        return self.colluding + len(pooling)


class Policy(_Closed):
    """State what a site agrees to."""

    methods: Annotated[list[str], Field(min_length=1)]
    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(ge=0, lt=1)]
    budget: Annotated[float, Field(gt=0)]
    data: OwnData
    peers: dict[str, str]
    columns: OwnColumns | None = None
    tasks: list[str] | None = None
    noise: list[Literal["exact", "simulated"]] = ["exact"]
    trust: list[Literal["local", "sum"]] = ["local"]
    sums: OwnSums = OwnSums()
    adjacency: Literal["zero-out", "replace-one"] = "zero-out"
    steps: Annotated[int, Field(ge=1)] = 10_000
    work: Annotated[int, Field(ge=1)] = 100_000
    weights: Annotated[int, Field(ge=1)] = 1_000_000
    deadline: Annotated[float, Field(gt=0)] = 3600.0
    memory: Annotated[float, Field(gt=0)] = 8.0
    disk: Annotated[float, Field(gt=0)] = 10.0

    @classmethod
    def load(cls, path: Path) -> "Policy":
        """Read a policy; an error names the file and the key."""
        try:
            return cls.model_validate(tomllib.loads(path.read_text()))
        except FileNotFoundError:
            raise ValueError(f"there is no policy {path}: a site without one agrees to nothing") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not TOML: {error}") from None
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None

    def require(self, case: Case, me: str, noise: Literal["exact", "simulated"], sites: list[str]) -> None:
        """Refuse a configuration beyond this policy; nothing was read so far.

        Noise by hand, without an epsilon, is refused later: when sizes are known, before anything is released.

        >>> from sottovoce.experiments.schema import Data, MethodTable
        >>> policy = Policy(methods=["DpSgd"], epsilon=1, delta=1e-5, budget=2, data=OwnData(name="digits"), peers={})
        >>> policy.require(Case(data=Data(name="digits"), method=MethodTable(name="Dsgt")), "north", "exact", [])
        Traceback (most recent call last):
        ...
        PermissionError: the policy of north does not agree to method 'Dsgt': it allows DpSgd
        """
        self._one(me, "method", method_of(case), self.methods)
        if self.tasks is not None:
            self._one(me, "task", case.task.name if case.task else "the one that fits the label", self.tasks)
        self._one(me, "noise", noise, self.noise)
        self._require_trust(case, me, [peer for peer in sites if peer != me])
        for peer in sites:
            if peer != me:
                self._one(me, "peer", peer, list(self.peers))
        privacy = case.privacy
        if not privacy.enabled or (privacy.epsilon or 0.0) > self.epsilon:
            wanted = "no privacy" if not privacy.enabled else f"epsilon {privacy.epsilon}"
            raise PermissionError(f"the policy of {me} does not agree to {wanted}: at most epsilon {self.epsilon:g}")
        if privacy.epsilon is None and case.columns is not None:
            raise PermissionError(f"the policy of {me} asks what a label costs: set privacy.epsilon")
        if privacy.delta > self.delta:
            raise PermissionError(
                f"the policy of {me} does not agree to delta {privacy.delta:g}: at most {self.delta:g}"
            )
        if self.adjacency == "replace-one" and privacy.adjacency != "replace-one" and case.columns is None:
            raise PermissionError(
                f"the policy of {me} does not agree to an epsilon for a record left out: set privacy.adjacency to "
                "'replace-one'"
            )
        self.require_most(me, "steps", case.run.steps or 1)
        self.require_most(me, "deadline", 0 if case.deploy is None else case.deploy.deadline)
        self._require_data(case, me)
        self.require_most(me, "work", work_of(case))

    def require_most(self, me: str, what: Literal["steps", "work", "weights", "deadline"], wanted: float) -> None:
        """Refuse more work than the site agrees to.

        >>> Policy(methods=["DpSgd"], epsilon=1, delta=0, budget=2, data={"name": "digits"}, peers={}, steps=9
        ...     ).require_most("north", "steps", 10)
        Traceback (most recent call last):
        ...
        PermissionError: the policy of north does not agree to 10 steps: at most 9
        """
        most = getattr(self, what)
        if wanted > most:
            said = {"steps": "{:g} steps", "deadline": "a deadline of {:g} seconds"}.get(what, what + " {:g}")
            raise PermissionError(f"the policy of {me} does not agree to {said.format(wanted)}: at most {most:g}")

    def _require_trust(self, case: Case, me: str, others: list[str]) -> None:
        """Refuse secure sums that this site does not agree to, or that withstand too few colluding sites."""
        self._one(me, "trust", case.privacy.trust, self.trust)
        if (asked := case.privacy.by_sums) is not None and asked.colluding < (least := self.sums.demanded(others)):
            raise PermissionError(
                f"the policy of {me} does not agree to sums against {asked.colluding} colluding sites: set "
                f"privacy.colluding to {least} or more"
            )

    def _require_data(self, case: Case, me: str) -> None:
        if (case.data.file is None) != (self.data.file is None):
            raise PermissionError(
                f"the policy of {me} is for {self.data.file or self.data.name}, the run file is not: change one of them"
            )
        if case.data.file is None:
            self._one(me, "data", case.data.name or "", [self.data.name or ""])
        require_own_tables(case)
        self._require_unit(case, me)
        used = self._used(case, me)
        if self.data.columns is not None and case.data.file is not None:
            for column in sorted(map(str, used)):
                self._one(me, "column", column, self.data.columns)

    def _require_unit(self, case: Case, me: str) -> None:
        """Refuse another unit than this policy names: the number of units is told, and epsilon is stated per unit.

        A unit is a role that a policy grants by name. If the author of a run file could choose it, a site would tell
        how many values any column has, and a single row left out could move a unit's gradient by twice the clip.
        """
        asked, granted = case.data.unit, self.data.unit
        if case.columns is not None and granted == self._id:
            return  # a label is protected row by row, and a join takes one row of each id
        if asked == granted and (case.columns is None or granted is None):
            return
        remedy = (
            f"it protects all rows of one {granted} as a whole (data.unit = {granted!r})"
            if granted is not None
            else "it names no data.unit, so each row is protected by itself"
        )
        raise PermissionError(f"the policy of {me} does not agree to an epsilon per {asked or 'record'}: {remedy}")

    @property
    def _id(self) -> str | None:
        return None if self.columns is None else self.columns.id

    def _used(self, case: Case, me: str) -> set[str | None]:
        """Return which of this site's columns a run would use; refuse a role that a column may not have."""
        data, asked = case.data, case.columns
        if asked is None and self.columns is not None:  # its budget is in the label store, not in the ledger
            raise PermissionError(f"the policy of {me} is for runs over columns: it has a table [columns]")
        if asked is None:
            return {*data.columns, *(data.features or ()), data.label, data.weight} - {None}
        if self.columns is None:
            raise PermissionError(f"the policy of {me} does not agree to [columns]: it has no table [columns]")
        own = (asked.holders or {}).get(me, [])
        self._one(me, "id", data.id or "", [self.columns.id])
        for column in own:
            self._one(me, "feature", column, self.columns.features)
        if asked.active != me:
            return {*own, data.id}
        self._one(me, "label", data.label or "", [self.columns.label] if self.columns.label else [])
        return {*own, data.id, data.label}

    @staticmethod
    def _one(me: str, what: str, wanted: str, allowed: Sequence[str]) -> None:
        if wanted not in allowed:
            raise PermissionError(
                f"the policy of {me} does not agree to {what} {wanted!r}: it allows {', '.join(allowed) or 'none'}"
            )
