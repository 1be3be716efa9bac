"""Describe an experiment in one TOML file, the run file.

    title = "Softmax regression on ten agents"

    [data]
    name = "digits"         # a data set, or a generator (sottovoce list);
                            # your own table: file = "a.csv", see below
    agents = 10
    by = "label"            # iid, label, dirichlet or sizes
    skew = 0.5              # for label; alpha for dirichlet, sizes for sizes
    seed = 0
    limit = 1000            # use only the first 1000 training records
    upper = 0.2             # two levels: the upper one's share of records
    unit = "patient_id"     # column of privacy units; default: a record
    positive = [0, 1, 2]    # two classes: these labels are 1, others 0
    image = true            # other keys: options of the set or generator

    [task]
    name = "softmax"        # a ready-made task and its parameters
    penalty = 1e-4

    [network]
    kind = "ring"           # ring, regular, erdos-renyi, complete, star,
    weight = 0.3            # exponential, directed, from-matrix, single
                            # directed takes edges: pull = [[0, 1], [1, 0]]
    [method]                # or: method = "auto", chosen from public facts
    name = "DpSgd"          # or "Class.maker": a class method makes it
    rate = {value = 1.2, power = 0.95}         # or a number, or a list
    sampling = {kind = "poisson", batch = 50}  # or "full"
    gradient = {clip = 1.0, noise = 0.02}      # no noise: from epsilon

    [run]
    steps = 300
    every = 30
    seeds = [0, 1, 2]
    chunk = 1024            # records treated at once: bounds the memory
    devices = 1
    metric = "accuracy"     # the one that pictures show first
    train = 2000            # also metrics of 2000 training records:
                            # without noise, for simulations only

    [privacy]
    epsilon = 1.0           # scales the noise; releases keep their ratios
    delta = 1e-5
    adjacency = "zero-out"  # or replace-one
    budget = 2.0            # refuse to run when an agent would spend more
    enabled = true          # false: the non-private twin

    [columns]               # a table split by columns: no [network], method
    parties = 4             # Bambi, a vertical task; epsilon is for labels
    stages = 2              # labels are drawn in 2 parts
    models = 3              # 3 models are averaged
    test = 0.2              # hold out a share of all records
    log = true              # log(1 + count), then
    unit = true             # each party's part of a record at norm 1

    [compare]
    alone = true            # each party alone at the same epsilon
    pooled = true           # all records in one place, without privacy

    [data]                  # your own table (sottovoce init a.csv)
    file = "a.csv"          # CSV, Parquet or Arrow; beside the run file
    label = "death"         # what to predict
    features = ["age"]      # default: all declared columns
    party = "hospital"      # the column that says who holds a row
    unit = "patient"        # the column that says whose row it is
    weight = "w"            # a column of weights
    test = 0.2              # share of rows to test on, or a file; 0: none
    private = 0.1           # epsilon for what is declared "private"
    share = "public"        # share of class 1, for the task auc

    [data.columns]          # what is publicly known: a line per column
    age = {range = [0, 120], missing = "flag"}  # or missing = 50
    kappa = {range = [0.1, 20], log = true}     # or range = "public"
    sex = {categories = ["F", "M"]}             # other values: "other"
    death = {categories = {0 = "alive", 1 = "dead"}}

    [columns.holders]       # who holds which columns of your own table
    bank = ["income"]
    clinic = ["age", "sex"]

    [select]                # choose one variant by a private score; then
    metric = "accuracy"     # privacy.epsilon pays for that too. Or auroc
    validation = 0.2        # share of the private rows for scores
    trials = 6              # on average; default: twice the variants

    [deploy]                # across organisations: sottovoce deploy --help
    sites = ["a", "b"]      # one party each, in the network's order
    noise = "exact"         # simulated: only to compare with one machine
    deadline = 600          # seconds that a silent party is waited for
    absent = "pause"        # then stop and wait to be resumed, or "go on"

    [[variant]]             # any number; each changes some of the above
    name = "epsilon 4"
    privacy.epsilon = 4.0

    [quick]                 # what --quick changes
    run.steps = 30

    [[printed]]             # a paper's figures, shown beside ours
    what = "DP-SGD, test accuracy"
    value = 0.93
    epsilon = 1.0
    source = "TomlTable 2"

Tables are merged key by key; a table whose `name` or `kind` changes is replaced as a whole.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from sottovoce.experiments.toml import TomlTable, changes, dump, merge, parse_sets, read
from sottovoce.naming import unknown
from sottovoce.reports.comparison import PaperFigure


def _a_number(value: Any) -> Any:
    """Refuse true, false and text where a number belongs: pydantic would take them for 1, 0 and what they spell."""
    if isinstance(value, bool | str):
        raise PydanticCustomError("number", "input should be a number")
    return value


Number = Annotated[float, BeforeValidator(_a_number)]
Whole = Annotated[int, BeforeValidator(_a_number)]
Positive = Annotated[Number, Field(gt=0)]
Count = Annotated[Whole, Field(ge=1, le=10**9)]
Yes = Annotated[bool, Field(strict=True)]
M = TypeVar("M", bound=BaseModel)
AUTO = "auto"  # the method that is chosen from public facts


class _Closed(BaseModel):
    """A table whose keys are all known here."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Open(BaseModel):
    """A table with keys that are known here, and options of the thing that it names."""

    model_config = ConfigDict(extra="allow", frozen=True, ser_json_inf_nan="constants")

    @property
    def options(self) -> TomlTable:
        """The options: keys that are not known here."""
        return dict(self.model_extra or {})


class Data(_Open):
    """Which records, and how they are distributed to parties: a data set by its name, or one's own table in a file."""

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
    agents: Annotated[Count, Field(le=10**6)] = 10
    by: Literal["iid", "label", "dirichlet", "sizes"] = "iid"
    skew: Number = 0.5
    alpha: Number = 0.5
    sizes: list[Count] | None = None
    seed: Annotated[Whole, Field(ge=0)] = 0
    unit: str | None = None
    upper: Number | None = None
    limit: Count | None = None
    positive: list[Whole] | None = None


class TaskTable(_Open):
    """A ready-made task and its parameters."""

    name: str


class NetworkTable(_Open):
    """A builder and its parameters."""

    kind: str


class MethodTable(_Open):
    """A method and its fields."""

    name: str


class Run(_Closed):
    """The number of steps, how often to evaluate, and the seeds."""

    steps: Count | None = None  # `auto` chooses it
    every: Count | None = None
    seeds: Annotated[list[Whole], Field(min_length=1)] = [0]
    chunk: Count = 1024
    devices: Count = 1
    metric: str | None = None
    train: Count | None = None


class Privacy(_Closed):
    """What is to be guaranteed."""

    epsilon: Positive | None = None
    delta: Annotated[Number, Field(ge=0, lt=1)] = 1e-5
    adjacency: Literal["zero-out", "replace-one"] | None = None
    budget: Positive | None = None
    enabled: Yes = True


class ColumnsTable(_Closed):
    """How a table is split by columns, and how its labels are drawn."""

    parties: Count = 4
    stages: Count = 1
    models: Count = 1
    test: Annotated[Number, Field(gt=0, lt=1)] | None = None
    log: Yes = False
    unit: Yes = False
    holders: dict[str, list[str]] | None = None


class Compare(_Closed):
    """Which comparisons to run in addition."""

    alone: Yes = False
    pooled: Yes = False


class SelectTable(_Closed):
    """How one variant is chosen by a private score."""

    metric: Literal["accuracy", "auroc"] = "accuracy"
    validation: Annotated[Number, Field(gt=0, lt=1)] = 0.2
    trials: Annotated[Number, Field(ge=1, le=10**6)] | None = None


class DeployTable(_Closed):
    """Which sites take part in a federation, and how they wait for each other."""

    sites: Annotated[list[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,62}$")]], Field(min_length=1)]
    noise: Literal["exact", "simulated"] = "exact"
    deadline: Positive = 600.0
    absent: Literal["pause", "go on"] = "pause"

    @field_validator("sites")
    @classmethod
    def _different(cls, sites: list[str]) -> list[str]:
        if len({site.lower() for site in sites}) < len(sites) or "server" in sites:
            raise PydanticCustomError("sites", "give each site a name of its own, and none the name server")
        return sites


class Case(_Closed):
    """One complete configuration."""

    data: Data
    task: TaskTable | None = None
    network: NetworkTable | None = None
    columns: ColumnsTable | None = None
    method: MethodTable = MethodTable(name=AUTO)
    run: Run = Run()
    privacy: Privacy = Privacy()
    compare: Compare = Compare()
    select: SelectTable | None = None
    deploy: DeployTable | None = None

    @field_validator("method", mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given


_TABLES = tuple(Case.model_fields)
_BESIDES = ("title", "variant", "quick", "printed")


@dataclass(frozen=True)
class RunFile:
    """A run file with all overrides applied: named cases, each complete and checked."""

    title: str
    cases: Mapping[str, Case]
    printed: tuple[PaperFigure, ...]
    text: str
    source: str = "the run file"  # its name in errors
    replaced: tuple[str, ...] = ()  # what --set changed, in words

    @classmethod
    def load(cls, path: str | Path, sets: Sequence[str] = (), quick: bool = False) -> "RunFile":
        """Read a file; `sets` are ``key=value`` lines that override everything, `quick` applies its [quick] table."""
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"there is no run file {path}: give the path of a .toml file, or see `sottovoce list`")
        try:
            text = path.read_bytes().decode()
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror}): give a run file that you may read") from error
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} is not UTF-8 text ({error.reason} at byte {error.start}): save it as UTF-8"
            ) from None
        try:
            made = cls.parse(text, sets, quick, default_title=path.stem, folder=path.parent)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        return replace(made, source=str(path))

    @classmethod
    def parse(
        cls,
        text: str,
        sets: Sequence[str] = (),
        quick: bool = False,
        default_title: str = "experiment",
        folder: Path = Path(),
    ) -> "RunFile":
        """Read the text of a file; tables that it names lie in `folder`.

        >>> text = '''
        ... data.name = "digits"
        ... task.name = "softmax"
        ... method = {name = "DpSgd", rate = 0.5, sampling = "full", gradient = {clip = 1.0}}
        ... run.steps = 10
        ... '''
        >>> RunFile.parse(text, sets=["run.steps=20"]).cases["DpSgd"].run.steps
        20
        >>> RunFile.parse(text + "run.step = 3")
        Traceback (most recent call last):
        ...
        ValueError: there is no key of [run] 'step'; did you mean 'steps'? (chunk, devices, ...)
        """
        try:
            document = read(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"this is not TOML: {error}") from error
        at_quick = document.pop("quick", {})
        if not isinstance(at_quick, dict):
            raise ValueError(f"quick is {at_quick!r}: write a table, [quick]")
        wanted = parse_sets(sets)
        overrides = merge(at_quick if quick else {}, wanted)
        replaced = changes(document, wanted)
        for names, known in ((document, (*_TABLES, *_BESIDES)), (overrides, (*_TABLES, "title"))):
            for name in names:
                if name not in known:
                    raise ValueError(unknown("table", name, known))
        variants = _tables(document.pop("variant", []), "variant")
        if overrides:
            document = merge(document, overrides)
            own = {name: table for name, table in overrides.items() if name in _TABLES}
            variants = [merge(variant, own) for variant in variants]
            text = dump({**document, **({"variant": variants} if variants else {})})
        base = {name: table for name, table in document.items() if name in _TABLES}
        return cls(
            title=str(document.get("title", default_title)),
            cases=_cases(base, variants, folder),
            printed=tuple(
                _checked(PaperFigure, entry, "[[printed]]") for entry in _tables(document.get("printed", []), "printed")
            ),
            text=text,
            replaced=tuple(replaced),
        )


def _cases(base: TomlTable, variants: list[TomlTable], folder: Path) -> dict[str, Case]:
    if not variants:
        case = _case(base, folder)
        return {case.method.name: case}
    cases: dict[str, Case] = {}
    for number, variant in enumerate(variants):
        for key in variant:
            if key not in (*_TABLES, "name"):
                raise ValueError(unknown("key of [[variant]]", key, (*_TABLES, "name")))
        name = str(variant.get("name", f"variant {number + 1}"))
        if name in cases:
            raise ValueError(f"two variants are called {name!r}: give each [[variant]] its own name")
        cases[name] = _case(merge(base, {key: value for key, value in variant.items() if key != "name"}), folder)
    return cases


def _tables(value: Any, name: str) -> list[TomlTable]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ValueError(f"{name} is {value!r:.80}: write tables, [[{name}]]")
    return value


def _case(tables: TomlTable, folder: Path) -> Case:
    data = tables.get("data", {})
    named = isinstance(data, dict) and {"name", "file"} & set(data) == {"name"}
    method = tables.get("method", {} if named else AUTO)
    chosen = AUTO in (method, method.get("name") if isinstance(method, dict) else None)
    # The label of one's own table says which task fits, and `auto` needs no [run].
    needed = ["data", *(["task", "method"] if named else []), *([] if chosen else ["run"])]
    missing = [f"[{name}]" for name in needed if name not in tables]
    if missing:
        raise ValueError(f"the run file lacks {', '.join(missing)}: `sottovoce run --help` shows a whole one")
    case = _checked(Case, tables, "")
    if case.run.steps is None and not chosen:
        raise ValueError("run.steps is missing: `sottovoce run --help` shows a whole file")
    if case.data.file is None:
        return case
    test = case.data.test
    paths = {"file": str(folder / case.data.file), "test": str(folder / test) if isinstance(test, str) else test}
    return case.model_copy(update={"data": case.data.model_copy(update=paths)})


def _checked(model: type[M], table: Any, where: str) -> M:
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
