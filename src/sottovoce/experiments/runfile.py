"""Describe an experiment in one TOML file, the run file.

    title = "Softmax regression on ten agents"
    about = "Figure 2."     # of a paper's experiment: what it is, and differs;
                            # or a table for the report, [about] with purpose,
                            # controller and retention, each a text
    takes = {full = "9 h, needs a GPU", reduced = "6 minutes"}   # in words

    [data]
    name = "digits"         # a data set, or a generator (sottovoce list);
                            # your own table: file = "a.csv", see below
    agents = 10
    by = "label"            # iid, label, dirichlet or sizes
    skew = 0.5              # for label; alpha for dirichlet, sizes for sizes
    seed = 0
    limit = 1000            # use only the first 1000 training records
    upper = 0.2             # two levels: the upper one's share of records;
                            # "same": both hold all, each with its own batch
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
    redraw = true           # a seed draws split, start and graph too
    chunk = 1024            # records treated at once: bounds the memory
    devices = 1
    metric = "accuracy"     # the one that pictures show first
    train = 2000            # also metrics of 2000 training records:
                            # without noise, for simulations only

    [privacy]
    epsilon = 1.0           # scales the noise; releases keep their ratios
    trust = "sum"           # secure sums: parties share one noise, and
                            # need no network. Default: "local"
    colluding = 1           # so many of them may pool what they know
    delta = 1e-5
    adjacency = "zero-out"  # or replace-one
    budget = 2.0            # refuse to run when an agent would spend more
    enabled = true          # false: the non-private twin

    [columns]               # a table split by columns: no [network]; a method
    parties = 4             # over columns, a vertical task; epsilon is for labels
    stages = 2              # labels are drawn in 2 parts
    models = 3              # 3 models are averaged
    question = "groups"     # what is asked about a label that is drawn once:
                            # its group of classes, or "classes", to compare
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
    id = "patient"          # with [columns]: names a row; deployed sites
                            # join their rows by it
    weight = "w"            # a column of weights
    test = 0.2              # share of rows to test on, or a file; 0: none
    private = 0.1           # epsilon for what is declared "private"
    curves = "auto"         # curves of numbers, where they pay; "private",
                            # "public": always, ranks bought or read openly
    share = "public"        # share of class 1, for the task auc

    [data.columns]          # what is publicly known: a line per column
    age = {range = [0, 120], missing = "flag"}  # or missing = 50
    kappa = {range = [0.1, 20], log = true}     # or range = "public"
    sex = {categories = ["F", "M"]}             # other values: "other"
    death = {categories = {0 = "alive", 1 = "dead"}}

    [columns.holders]       # who holds which columns of your own table
    bank = ["income"]
    clinic = ["age", "sex"]
                            # [columns] active = "clinic": has the labels
    [select]                # choose one variant by a private score; then
    metric = "accuracy"     # privacy.epsilon pays for that too. Or auroc
    validation = 0.2        # share of the private rows for scores
    trials = 6              # on average; default: twice the variants

    [search]                # settings of every variant, not charged: for
    trials = 8              # public data sets. As many for each variant
    seeds = [1000]          # none of run.seeds
    validation = 0.2        # share of training records, for scores only
    metric = "accuracy"

    [search.ranges]         # log-uniform; whole between whole numbers
    "method.rate" = [0.03, 3.0]                # first: the file's value
    "method.rate_x, method.rate_y" = [1, 8]    # one draw for both
    "task.hidden" = {choices = [[32], [64]]}   # a variant may have its
                            # own search.ranges; {}: nothing is searched
                            # search.like = "5 agents" in a column: take
                            # what was chosen in that column

    [deploy]                # across organisations: sottovoce deploy --help
    sites = ["a", "b"]      # one party each, in the network's order
    noise = "exact"         # simulated: only to compare with one machine
    deadline = 600          # seconds that a silent party is waited for
    absent = "pause"        # then stop and wait to be resumed, or "go on"

    [[column]]              # any number; each variant is run in each
    name = "5 agents"       # column, and is then called "..., 5 agents"
    data.agents = 5

    [[variant]]             # any number; each changes some of the above
    name = "epsilon 4"
    privacy.epsilon = 4.0

    [reduced]               # what --reduced changes: a smaller version
    run.steps = 100         # with the same seeds and trials; a variant
                            # may have its own, [variant.reduced]

    [quick]                 # what --quick changes after [reduced]; it runs
    run.steps = 30          # two columns, and those whose settings they take

    [[printed]]             # a paper's figures, shown beside ours
    what = "DP-SGD, test accuracy"
    value = 0.93
    epsilon = 1.0
    source = "Table 2"

Tables are merged key by key; a table whose `name` or `kind` changes is replaced as a whole, and so is `search.ranges`.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sottovoce.data.frames import ENDINGS
from sottovoce.experiments.schema import AUTO, Case, SearchTable, Takes, checked
from sottovoce.experiments.toml import TomlTable, changes, dump, merge, not_toml, parse_sets, read
from sottovoce.naming import unknown
from sottovoce.reports.comparison import PaperFigure

Scale = Literal["full", "reduced", "quick"]
_TABLES = tuple(Case.model_fields)
_SHRINKS: dict[Scale, tuple[str, ...]] = {"full": (), "reduced": ("reduced",), "quick": ("reduced", "quick")}
_BESIDES = ("title", "about", "takes", "column", "variant", "reduced", "quick", "printed")
_ABOUT = ("purpose", "controller", "retention", "text")
_NO_TIMES = Takes()
_OF_VARIANTS = (*_TABLES, "name", "reduced", "quick")


@dataclass(frozen=True)
class RunFile:
    """Hold a run file with all overrides applied: named cases, each complete and checked."""

    title: str
    cases: Mapping[str, Case]
    printed: tuple[PaperFigure, ...]
    text: str
    source: str = "the run file"  # its name in errors
    replaced: tuple[str, ...] = ()  # what --set changed, in words
    about: str = ""
    takes: Takes = _NO_TIMES

    @classmethod
    def load(cls, path: str | Path, sets: Sequence[str] = (), scale: Scale = "full") -> "RunFile":
        """Read a file; `sets` are ``key=value`` lines that override all else, `scale` applies [reduced] and [quick]."""
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"there is no run file {path}: give the path of a .toml file, or see `sottovoce list`")
        if (
            path.suffix.lower() in ENDINGS and path.suffix.lower() != ".txt"
        ):  # its text may be private, and an error would show a line of it
            raise ValueError(f"{path} is a table, and no run file: `sottovoce init` writes a run file for it")
        try:
            text = path.read_bytes().decode()
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror}): give a run file that you may read") from error
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} is not UTF-8 text ({error.reason} at byte {error.start}): save it as UTF-8"
            ) from None
        try:
            made = cls.parse(text, sets, scale, default_title=path.stem, folder=path.parent)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        return replace(made, source=str(path))

    @classmethod
    def parse(
        cls,
        text: str,
        sets: Sequence[str] = (),
        scale: Scale = "full",
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
            raise ValueError(not_toml(text, error)) from error
        shrunk = _shrunk(document, "the file", scale)
        if scale == "reduced" and not shrunk:
            raise ValueError("this file has no [reduced]: leave --reduced out, or take --quick")
        wanted = parse_sets(sets)
        overrides = merge(shrunk, wanted)
        replaced = changes(document, wanted)
        for names, known in ((document, (*_TABLES, *_BESIDES)), (overrides, (*_TABLES, "title"))):
            for name in names:
                if name not in known:
                    raise ValueError(unknown("table", name, known))
        variants = _named(document, "variant")
        columns = _named(document, "column")
        variants = _in_columns(variants, _few(columns) if scale == "quick" else columns)
        each = [_shrunk(variant, "a variant", scale) for variant in variants]
        if overrides or any(each):
            document = merge(document, overrides)
            own, last = ({name: table for name, table in some.items() if name in _TABLES} for some in (shrunk, wanted))
            variants = [merge(merge(merge(variant, own), of_it), last) for variant, of_it in zip(variants, each)]
            text = dump({**document, **({"variant": variants} if variants else {})})
        base = {name: table for name, table in document.items() if name in _TABLES}
        return cls(
            title=str(document.get("title", default_title)),
            cases=_cases(base, variants, folder),
            printed=tuple(
                checked(PaperFigure, entry, "[[printed]]") for entry in _tables(document.get("printed", []), "printed")
            ),
            text=text,
            replaced=tuple(replaced),
            about=_described(document.get("about", "")),
            takes=checked(Takes, document.get("takes", {}), "takes"),
        )


def _described(about: Any) -> str:
    """Return what an experiment says of itself; a table [about] says what the report leaves to be filled in."""
    if not isinstance(about, dict):
        return str(about)
    for key, value in about.items():
        if key not in _ABOUT:
            raise ValueError(unknown("key of [about]", key, _ABOUT))
        if not isinstance(value, str):
            raise ValueError(f"about.{key} is {value!r:.40}: write a text in quotation marks")
    return str(about.get("text", ""))


def _named(document: TomlTable, kind: str) -> list[TomlTable]:
    """Take the tables [[variant]] or [[column]] out of a document."""
    tables = _tables(document.pop(kind, []), kind)
    for table in tables:
        for key in table:
            if key not in _OF_VARIANTS:
                raise ValueError(unknown(f"key of [[{kind}]]", key, _OF_VARIANTS))
    return tables


def _in_columns(variants: list[TomlTable], columns: list[TomlTable]) -> list[TomlTable]:
    """Return each variant in each column: ``DP-SGD`` in ``epsilon 1`` is the variant ``DP-SGD, epsilon 1``."""
    if not columns:
        return variants
    if not variants or not all("name" in table for table in (*variants, *columns)):
        raise ValueError("[[column]] needs [[variant]], and each of both a name: the rows and heads of a table")
    return [_in_column(variant, column) for variant in variants for column in columns]


def _few(columns: list[TomlTable]) -> list[TomlTable]:
    """Return two columns of a table, and those whose settings they take: enough for a try."""
    liked = [column.get("search", {}).get("like") for column in columns[:2]]
    return [column for number, column in enumerate(columns) if number < 2 or column.get("name") in liked]


def _in_column(variant: TomlTable, column: TomlTable) -> TomlTable:
    """Return a variant in a column; ``search.like`` of a column names another column, for the variant that it is in."""
    merged = merge(variant, column)
    if like := column.get("search", {}).get("like"):
        merged = merge(merged, {"search": {"like": f"{variant['name']}, {like}", "ranges": {}}})
    return {**merged, "name": f"{variant['name']}, {column['name']}"}


def _shrunk(tables: TomlTable, where: str, scale: Scale) -> TomlTable:
    """Take [reduced] and [quick] out of tables, and return what they change at this scale."""
    found: TomlTable = {}
    for name in _SHRINKS["quick"]:
        change = tables.pop(name, {})
        if not isinstance(change, dict):
            raise ValueError(f"{name} is {change!r}: write a table, [{name}]")
        for table, key in (("run", "seeds"), ("search", "trials")) if name == "reduced" else ():
            if key in change.get(table, {}):
                raise ValueError(f"[reduced] of {where} changes {table}.{key}: shrink sizes and steps, never those")
        if name in _SHRINKS[scale]:
            found = merge(found, change)
    return found


def _cases(base: TomlTable, variants: list[TomlTable], folder: Path) -> dict[str, Case]:
    if not variants:
        case = _case(base, folder)
        return {case.method.name: case}
    cases: dict[str, Case] = {}
    for number, variant in enumerate(variants):
        name = str(variant.get("name", f"variant {number + 1}"))
        if name in cases:
            raise ValueError(f"two variants are called {name!r}: give each [[variant]] its own name")
        cases[name] = _case(merge(base, {key: value for key, value in variant.items() if key != "name"}), folder)
    for name, case in cases.items():
        if case.search is not None and case.search.like is not None and case.search.like not in cases:
            raise ValueError(f"search.like of {name}: " + unknown("variant", case.search.like, list(cases)))
    protocols = {_protocol(case.search) for case in cases.values()}
    if len(protocols) > 1:
        raise ValueError(
            "[search] differs between variants: set trials, seeds, validation and metric once, because every contender "
            "has the same chance; only search.ranges may differ"
        )
    return cases


def _protocol(search: SearchTable | None) -> str:
    return "" if search is None else search.model_dump_json(exclude={"ranges", "like"})


def _tables(value: Any, name: str) -> list[TomlTable]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ValueError(f"{name} is {value!r:.80}: write tables, [[{name}]]")
    return value


def _require_known(method: Any) -> None:
    """Refuse a misspelt method before a table is missed that only that name asks for: `auto` needs no [run]."""
    from sottovoce import methods  # JAX takes a second to load

    name = method.get("name") if isinstance(method, dict) else method
    if isinstance(name, str) and name.partition(".")[0] not in {*methods.available, AUTO}:
        raise ValueError(unknown("method", name, [*methods.available, AUTO]))


def _case(tables: TomlTable, folder: Path) -> Case:
    data = tables.get("data", {})
    named = isinstance(data, dict) and {"name", "file"} & set(data) == {"name"}
    method = tables.get("method", {} if named else AUTO)
    chosen = AUTO in (method, method.get("name") if isinstance(method, dict) else None)
    # The label of one's own table says which task fits, and `auto` needs no [run].
    needed = ["data", *(["task", "method"] if named else []), *([] if chosen else ["run"])]
    missing = [f"[{name}]" for name in needed if name not in tables]
    if missing:
        _require_known(method)
        raise ValueError(f"the run file lacks {', '.join(missing)}: `sottovoce run --help` shows a whole one")
    case = checked(Case, tables, "")
    if case.run.steps is None and not chosen:
        raise ValueError("run.steps is missing: `sottovoce run --help` shows a whole file")
    if case.search is not None and (both := set(case.search.seeds) & set(case.run.seeds)):
        raise ValueError(f"search.seeds and run.seeds share {sorted(both)}: search with seeds that are not reported")
    if case.data.file is None:
        return case
    if case.search is not None or case.run.redraw:
        key = "[search]" if case.search is not None else "run.redraw"
        raise ValueError(f"{key} is for public data sets (data.name): it reads private rows and is not charged; "
                         "[select] chooses among variants and pays for it")  # fmt: skip
    test = case.data.test
    paths = {"file": str(folder / case.data.file), "test": str(folder / test) if isinstance(test, str) else test}
    return case.model_copy(update={"data": case.data.model_copy(update=paths)})
