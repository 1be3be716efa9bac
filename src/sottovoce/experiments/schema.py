"""Define the tables of a run file and their keys, checked by pydantic. `sottovoce.experiments.runfile` explains them.

>>> Run(steps=10).seeds
[0]
"""

import math
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from sottovoce.experiments.toml import TomlTable
from sottovoce.naming import unknown
from sottovoce.privacy.trust import Sum


def _a_number(value: Any) -> Any:
    """Refuse true, false and text where a number belongs: pydantic would take them for 1, 0 and what they spell."""
    if isinstance(value, bool | str):
        raise PydanticCustomError("number", "input should be a number")
    return value


Number = Annotated[float, BeforeValidator(_a_number)]
Whole = Annotated[int, BeforeValidator(_a_number)]
Positive = Annotated[Number, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[Whole, Field(ge=1, le=10**9)]
Yes = Annotated[bool, Field(strict=True)]
Settings = Mapping[str, Any]  # values by dotted keys, for example {"method.rate": 0.5}
M = TypeVar("M", bound=BaseModel)
AUTO: Final = "auto"  # the method that is chosen from public facts


class _Closed(BaseModel):
    """Check a table whose keys are all known here."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Open(BaseModel):
    """Check the keys of a table that are known here, and keep options of the thing that it names."""

    model_config = ConfigDict(extra="allow", frozen=True, ser_json_inf_nan="constants")

    @property
    def options(self) -> TomlTable:
        """Return the options: keys that are not known here."""
        return dict(self.model_extra or {})


class Data(_Open):
    """Name the records, a data set or one's own table in a file, and say how they are distributed to parties."""

    name: str | None = None
    file: str | None = None
    label: str | None = None
    features: list[str] | None = None
    party: str | None = None
    weight: str | None = None
    columns: dict[str, TomlTable] = {}
    test: float | str = 0.2
    private: Positive | None = None
    share: Literal["public", "private"] | None = None
    curves: Literal["auto", "public", "private"] | None = None
    agents: Annotated[Count, Field(le=10**6)] = 10
    by: Literal["iid", "label", "dirichlet", "sizes"] = "iid"
    skew: Number = 0.5
    alpha: Number = 0.5
    sizes: list[Count] | None = None
    seed: Annotated[Whole, Field(ge=0)] = 0
    unit: str | None = None
    id: str | None = None
    upper: Number | Literal["same"] | None = None
    limit: Count | None = None
    positive: list[Whole] | None = None


class TaskTable(_Open):
    """Name a ready-made task, and set its parameters."""

    name: str


class NetworkTable(_Open):
    """Name a builder of networks, and set its parameters."""

    kind: str


class MethodTable(_Open):
    """Name a method, and set its fields."""

    name: str


class Run(_Closed):
    """Set the number of steps, how often to evaluate, and the seeds."""

    steps: Count | None = None  # `auto` chooses it
    every: Count | None = None
    seeds: Annotated[list[Whole], Field(min_length=1)] = [0]
    chunk: Count = 1024
    devices: Count = 1
    metric: str | None = None
    train: Count | None = None
    redraw: Yes = False


class Privacy(_Closed):
    """Set what is to be guaranteed."""

    epsilon: Positive | None = None
    delta: Annotated[Number, Field(ge=0, lt=1)] = 1e-5
    adjacency: Literal["zero-out", "replace-one"] | None = None
    trust: Literal["local", "sum"] = "local"
    colluding: Annotated[Whole, Field(ge=0)] | None = None
    budget: Positive | None = None
    enabled: Yes = True

    @property
    def by_sums(self) -> Sum | None:
        """Return whom the parties of a secure sum trust; None if each party's noise protects it from everybody.

        >>> Privacy(trust="sum").by_sums, Privacy().by_sums
        (Sum(colluding=1), None)
        """
        if self.trust == "sum":
            return Sum(1 if self.colluding is None else self.colluding)
        if self.colluding is not None:
            raise ValueError(
                'privacy.colluding says how many parties of a secure sum may collude: set privacy.trust = "sum"'
            )
        return None


class ColumnsTable(_Closed):
    """Set how a table is split by columns, and how its labels are drawn."""

    parties: Count = 4
    stages: Count = 1
    models: Count = 1
    question: Literal["groups", "classes"] = "groups"
    test: Annotated[Number, Field(gt=0, lt=1)] | None = None
    log: Yes = False
    unit: Yes = False
    holders: dict[str, list[str]] | None = None
    active: str | None = None


class Compare(_Closed):
    """Choose which comparisons to run in addition."""

    alone: Yes = False
    pooled: Yes = False


class SelectTable(_Closed):
    """Set how one variant is chosen by a private score."""

    metric: Literal["accuracy", "auroc"] = "accuracy"
    validation: Annotated[Number, Field(gt=0, lt=1)] = 0.2
    trials: Annotated[Number, Field(ge=1, le=10**6)] | None = None


def _ranges(ranges: Any) -> Any:
    """Refuse what is neither two numbers nor choices."""
    for key, value in ranges.items() if isinstance(ranges, dict) else ():
        choices = isinstance(value, dict) and set(value) == {"choices"} and isinstance(value["choices"], list)
        numbers = isinstance(value, list) and len(value) == 2 and all(type(end) in (int, float) for end in value)
        if not (choices and value["choices"]) and not (numbers and 0 < value[0] < value[1] < math.inf):
            words = (
                f'write "{key}" = [low, high] with 0 < low < high, or {{choices = [...]}}; a key with dots stands in '
            )
            raise PydanticCustomError("ranges", f"{words}quotation marks")
        for one in keys_of(key):
            if one.split(".")[0] not in _SEARCHED and one != "run.steps":
                known = ", ".join(f"{table}.*" for table in _SEARCHED)
                raise PydanticCustomError("ranges", f"{one!r} cannot be searched: {known} and run.steps can")
    return ranges


_SEARCHED = ("method", "task", "network", "columns")


def keys_of(key: str) -> list[str]:
    """Return the keys that a range is for: several share one draw.

    >>> keys_of("method.rate_x, method.rate_y")
    ['method.rate_x', 'method.rate_y']
    """
    return [one.strip() for one in key.split(",")]


class SearchTable(_Closed):
    """Set how the settings of every variant are chosen, on records that no result is reported on."""

    trials: Count
    seeds: Annotated[list[Whole], Field(min_length=1)] = [1000]
    validation: Annotated[Number, Field(gt=0, lt=1)] = 0.2
    metric: str = "accuracy"
    ranges: Annotated[dict[str, Any], BeforeValidator(_ranges)] = {}
    like: str | None = None  # the variant whose chosen settings this one takes, instead of a search of its own


class Takes(_Closed):
    """Say how long an experiment takes, in words, by its scale."""

    full: str = ""
    reduced: str = ""
    quick: str = ""


class DeployTable(_Closed):
    """Name the sites of a federation, and say how they wait for each other."""

    sites: Annotated[list[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,62}$")]], Field(min_length=1)]
    noise: Literal["exact", "simulated"] = "exact"
    deadline: Positive = 600.0
    absent: Literal["pause", "go on"] = "pause"

    @field_validator("sites")
    @classmethod
    def _different(cls, sites: list[str]) -> list[str]:
        names = {site.lower() for site in sites}
        if len(names) < len(sites) or names & {"server", "admin"}:  # these kits have folders of their own
            raise PydanticCustomError("sites", "give each site a name of its own, and none the name server or admin")
        return sites


class Case(_Closed):
    """Hold one complete configuration."""

    data: Data
    task: TaskTable | None = None
    network: NetworkTable | None = None
    columns: ColumnsTable | None = None
    method: MethodTable = MethodTable(name=AUTO)
    run: Run = Run()
    privacy: Privacy = Privacy()
    compare: Compare = Compare()
    select: SelectTable | None = None
    search: SearchTable | None = None
    deploy: DeployTable | None = None

    @field_validator("method", mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given


def own_settings(case: Case, keys: Iterable[str]) -> dict[str, Any]:
    """Return what a case itself says for dotted keys; a key that it does not set is refused.

    >>> case = Case.model_validate({"data": {"name": "digits"}, "method": {"name": "DpSgd", "rate": {"value": 0.5}}})
    >>> own_settings(case, ["method.rate.value"])
    {'method.rate.value': 0.5}
    """
    tables, found = case.model_dump(exclude_unset=True), {}
    for key in keys:
        value: Any = tables
        for part in keys_of(key)[0].split("."):
            if not isinstance(value, dict) or part not in value:
                raise ValueError(
                    f"search.ranges has {key!r}, which this case does not set: write its own value, which is the first "
                    "trial, or give the variant its own search.ranges"
                )
            value = value[part]
        found[key] = value
    return found


def worded(settings: Settings) -> str:
    """Write settings as a run file does.

    >>> worded({"method.rate": 0.5, "method.sampling": {"kind": "full"}})
    "method.rate = 0.5, method.sampling = {'kind': 'full'}"
    """
    return ", ".join(f"{key} = {value}" for key, value in settings.items())


def with_settings(case: Case, settings: Settings) -> Case:
    """Return the case with other values for some dotted keys.

    >>> case = Case.model_validate({"data": {"name": "digits"}, "method": {"name": "DpSgd", "rate": 0.5}})
    >>> with_settings(case, {"method.rate": 0.1}).method.options
    {'rate': 0.1}
    """
    if not settings:
        return case
    tables = case.model_dump(exclude_unset=True)
    for key, value in settings.items():
        for one in keys_of(key):
            *above, last = one.split(".")
            reduce(lambda table, part: table.setdefault(part, {}), above, tables)[last] = value
    return checked(Case, tables, "")


def checked(model: type[M], table: Any, where: str) -> M:
    """Build a model from a table; errors are reported with the names of the file."""
    try:
        return model.model_validate(table)
    except ValidationError as error:
        raise ValueError("\n".join(_in_words(model, problem, where) for problem in error.errors())) from None


def _in_words(model: type[BaseModel], problem: Any, where: str) -> str:
    place = [str(part) for part in problem["loc"]]
    table = where or f"[{place[0]}]"
    if problem["type"] == "extra_forbidden":
        owner = model if where else model.model_fields[place[0]].annotation
        known = _fields(owner)
        return unknown(f"key of {table}", place[-1], known)
    key = ".".join(place if not where else [where, *place])
    if problem["type"] == "missing":
        return f"{key} is missing: `sottovoce run --help` shows a whole file"
    return f"{key} is {problem['input']!r:.80}: {problem['msg'][0].lower()}{problem['msg'][1:]}"


def _fields(annotation: Any) -> list[str]:
    """Return the keys of a table's model; an optional table is a union of its model and None."""
    models = [annotation, *getattr(annotation, "__args__", ())]
    return next(list(model.model_fields) for model in models if hasattr(model, "model_fields"))
