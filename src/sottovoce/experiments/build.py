"""Build what the tables of a run file name: records, task, network, method.

The keys that a table may have are the parameters of what it names, so a new method, task or builder needs no change
here. Example: ``[network]`` with ``kind = "ring"`` and ``weight = 0.3`` becomes ``networks.ring(n, weight=0.3)``.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sottovoce import data as datasets
from sottovoce import methods, networks
from sottovoce.data import Part, catalogue, synthetic
from sottovoce.data.parts import Records
from sottovoce.experiments import own_table
from sottovoce.experiments.construct import construct
from sottovoce.experiments.schema import AUTO, Case, Data, MethodTable, NetworkTable, TaskTable
from sottovoce.naming import unknown
from sottovoce.problems import tasks
from sottovoce.tuning.auto import Plan, auto

_CLASSES = {"mnist": 10, "fashion-mnist": 10, "cifar10": 10, "digits": 10, "20news": 20}  # all others have two
_TABLES_OF_RECORDS: dict[str, Callable[..., Records]] = {
    "logistic": synthetic.logistic,
    "patients": synthetic.patients,
}
GENERATORS = (*_TABLES_OF_RECORDS, "heterogeneous")  # data that are made from a seed
_BUILDERS: dict[str, Callable[..., networks.Network]] = {
    make.__name__.replace("_", "-"): make
    for make in (
        networks.ring,
        networks.regular,
        networks.erdos_renyi,
        networks.complete,
        networks.star,
        networks.exponential,
        networks.directed,
        networks.from_matrix,
        networks.single,
    )
}


def data_names() -> list[str]:
    """List all names that [data] takes: data sets and generators.

    >>> "digits" in data_names(), "patients" in data_names()
    (True, True)
    """
    return sorted({*datasets.names(), *GENERATORS})


@lru_cache(maxsize=2)
def _loaded(table: str) -> tuple[list[Any], Records, int]:
    """Load once per content, because variants mostly share their data."""
    return _load(Data.model_validate_json(table))


def records(table: Data, draws: bool = True) -> tuple[list[Any], Records | None, tasks.Shape]:
    """Return the parties' parts, the test records (None if there are none), and the public facts a task may use.

    `draws` is as for `NoisyCounts`.

    >>> parts, test, shape = records(Data(name="digits", agents=3, limit=90))
    >>> [len(part) for part in parts], shape.classes
    ([30, 30, 30], 10)
    """
    if table.file is not None:
        made, test_rows = own(table, draws)
        parts = own_table.parts(table, made)
        shape = tasks.Shape((len(made.names),), len(made.classes) or 1, len(parts), made.share)
        return _finished(table, parts), None if test_rows is None else test_rows.records, shape
    parts, test, classes = _loaded(table.model_dump_json(exclude_unset=True))
    return parts, test, tasks.Shape(tuple(test["features"].shape[1:]), classes, len(parts))


def own(table: Data, draws: bool = True) -> tuple[datasets.DeclaredTable, datasets.DeclaredTable | None]:
    """Return one's own table: rows to train on, and rows to test on."""
    check_data(table)
    files = [Path(path) for path in (table.file, table.test) if isinstance(path, str)]
    stamps = [(path.stat().st_mtime_ns, path.stat().st_size) for path in files if path.is_file()]
    return _own(table.model_dump_json(exclude_unset=True), repr(stamps), draws)


@lru_cache(maxsize=2)
def _own(table: str, stamps: str, draws: bool) -> tuple[datasets.DeclaredTable, datasets.DeclaredTable | None]:
    return own_table.load(Data.model_validate_json(table), draws)


def source(table: Data) -> str:
    """Say where the records of [data] come from.

    >>> source(Data(name="digits"))
    'Data: digits, which comes with scikit-learn or this package.'
    """
    if table.file is not None:
        tested = f", tested on {table.test}" if isinstance(table.test, str) else ""
        return (
            f"Data: your own file {table.file}{tested}, label {table.label}. No digest of it is kept, because that "
            "would confirm a guess of its rows."
        )
    files = catalogue.SOURCES[table.name].files if table.name in catalogue.SOURCES else ()
    if files:
        listed = "; ".join(f"{file.folder_url}{file.name}, SHA-256 {file.sha256}" for file in files)
        return f"Data: {table.name}, from the official files {listed}."
    if table.name in catalogue.MADE or table.name in catalogue.SOURCES:
        return f"Data: {table.name}, which comes with scikit-learn or this package."
    return f"Data: {table.name}, synthetic: made by this package from the seed {table.seed}, no real record is in it."


def check_data(table: Data) -> None:
    """Refuse data that have an unknown name, or keys that do not go together; nothing is read.

    >>> check_data(Data(name="digit"))
    Traceback (most recent call last):
    ...
    ValueError: data.name: there is no data set 'digit'; did you mean 'digits'? (...)
    """
    own_table.check(table, data_names())


def _load(table: Data) -> tuple[list[Any], Records, int]:
    _check_combination(table)
    if table.name == "heterogeneous":
        parts, test = construct(
            synthetic.heterogeneous, table.options, "[data]", {"agents": table.agents, "seed": table.seed}
        )
        return _finished(table, parts), test, 2
    train, test, classes = whole(table)
    parts = datasets.split(
        train,
        table.agents,
        table.by,
        skew=table.skew,
        alpha=table.alpha,
        sizes=table.sizes,
        seed=table.seed,
        unit=table.unit,
    )
    if table.unit is not None:
        parts = [replace(part, facts=replace(part.facts, unit=table.unit)) for part in parts]
    return _finished(table, parts), test, classes


def whole(table: Data) -> tuple[Records, Records, int]:
    """Return training records, test records (each in one place), and the number of classes.

    >>> len(whole(Data(name="digits", positive=[0], limit=100))[0]["label"])
    100
    """
    same = table if table.name in GENERATORS else table.model_copy(update={"seed": 0})  # seeds share a public set
    used = {"name", "seed", "limit", "positive", *table.options}
    train, test, classes = _whole(same.model_dump_json(include=used, exclude_unset=True))
    return dict(train), test, classes


@lru_cache(maxsize=2)
def _whole(content: str) -> tuple[Records, Records, int]:
    table = Data.model_validate_json(content)
    assert table.name is not None
    classes = _CLASSES.get(table.name, 2)
    if table.name in _TABLES_OF_RECORDS:
        train, test = _hold_out(
            construct(_TABLES_OF_RECORDS[table.name], table.options, "[data]", {"seed": table.seed})
        )
    else:
        train, test = construct(datasets.load, table.options, "[data]", {"name": table.name, "root": None})
    if table.limit is not None:
        train = jax.tree.map(lambda leaf: leaf[: table.limit], train)
    if table.positive is not None:
        if not 0 < len(set(table.positive)) < classes or not set(table.positive) <= set(range(classes)):
            raise ValueError(f"data.positive is {table.positive}: give some of the labels 0 to {classes - 1}, not all")
        classes = 2
        for held in (train, test):
            held["label"] = np.isin(held["label"], table.positive).astype(np.int32)
    return train, test, classes


def check_metric(wanted: str, known: Iterable[str]) -> None:
    """Refuse a metric that a task does not have.

    >>> check_metric("acuracy", ["accuracy", "loss"])
    Traceback (most recent call last):
    ...
    ValueError: run.metric: there is no metric 'acuracy'; did you mean 'accuracy'? (accuracy, loss)
    """
    if wanted not in known:
        raise ValueError("run.metric: " + unknown("metric", wanted, known))


def _check_combination(table: Data) -> None:
    check_data(table)
    for key, by in (("skew", "label"), ("alpha", "dirichlet"), ("sizes", "sizes")):
        if key in table.model_fields_set and table.by != by:
            raise ValueError(f'data.{key} needs data.by = "{by}", but data.by is "{table.by}": change one of them')
    if table.name == "heterogeneous":
        for key in ("by", "limit", "unit", "positive"):
            if key in table.model_fields_set:
                raise ValueError(f"data.{key} has no effect: heterogeneous makes one data set per party; remove it")


def _finished(table: Data, parts: list[Part]) -> list[Any]:
    """Add a column `party` (public: which party holds the record), and make two levels if the table asks for them.

    Tasks that weigh parties read this column.
    """
    shared = parts[0].records  # all parts are views of one set
    shared["party"] = np.empty(len(shared["label"]), np.int32)
    for number, part in enumerate(parts):
        shared["party"][part.rows] = number
    if table.upper == "same":
        return [datasets.Levels(part, part) for part in parts]
    return parts if table.upper is None else datasets.levels(parts, table.upper, table.seed)


def _hold_out(held: Records) -> tuple[Records, Records]:
    """Hold out the last fifth for the test; a patient's visits stay together."""
    count = len(held["label"])
    if count < 10:
        raise ValueError(f"data.n gives {count} records, of which a fifth is held out for the test: give at least 10")
    order = held.get("patient_id", np.arange(count))
    test = order >= order[count - count // 5]
    return {key: leaf[~test] for key, leaf in held.items()}, {key: leaf[test] for key, leaf in held.items()}


def task_table(table: TaskTable | None, shape: tasks.Shape) -> TaskTable:
    """Return the table [task]; without one, the task that fits the label of one's own table.

    >>> task_table(None, tasks.Shape((4,), classes=2, agents=1)).name
    'logistic'
    """
    return table or TaskTable(name={1: "ridge", 2: "logistic"}.get(shape.classes, "softmax"))


def task(table: TaskTable, shape: tasks.Shape) -> tasks.Task:
    """Build the ready-made task; equal tables give the same object, so that their runs share traces and programs.

    >>> task(TaskTable(name="softmax", penalty=0.1), tasks.Shape((4,), classes=3, agents=2)).problem.variables
    ('x',)
    """
    return _task(table.model_dump_json(), shape)


def start(table: TaskTable, shape: tasks.Shape, **given: Any) -> tuple[Any, ...]:
    """Return the shapes of the variables of a ready-made task; none of them is made.

    >>> start(TaskTable(name="softmax"), tasks.Shape((4,), classes=3, agents=2))[0]["weights"].shape
    (4, 3)
    """
    made = partial(construct, tasks.get(table.name), table.options, "[task]", {"shape": shape, **given})
    return tasks.start(made)


@lru_cache(maxsize=8)
def _task(content: str, shape: tasks.Shape) -> tasks.Task:
    """Build a task once per content: runs of one problem share their compiled program."""
    table = TaskTable.model_validate_json(content)
    return construct(tasks.get(table.name), table.options, "[task]", {"shape": shape})


def network(table: NetworkTable | None, agents: int) -> networks.Network:
    """Build the network; without a table, everybody talks to everybody.

    >>> network(NetworkTable(kind="ring", weight=0.3), 5).name, network(None, 5).name
    ('ring of 5, weight 0.3', 'complete graph of 5')
    """
    if table is None:
        return networks.complete(agents) if agents > 1 else networks.single()
    made = construct(builder(table.kind), table.options, "[network]", {"n": agents})
    if made.size != agents:
        raise ValueError(f"the network has {made.size} agents, but there are {agents} parties: they must agree")
    return made


def builder(kind: str) -> Callable[..., networks.Network]:
    """Return the function that builds a kind of network.

    >>> builder("erdos-renyi").__name__
    'erdos_renyi'
    """
    if (name := kind.replace("_", "-")) not in _BUILDERS:
        raise ValueError(unknown("network", kind, _BUILDERS))
    return _BUILDERS[name]


def method(table: MethodTable, calibrated: bool = False) -> methods.Method:
    """Build the method; with `calibrated`, a release's noise may be left out (then only ratios of noise matter).

    >>> table = MethodTable(name="DpSgd", rate={"value": 1.0, "power": 0.5}, sampling="full", gradient={"clip": 2.0})
    >>> method(table, calibrated=True).rate
    Decay(value=1.0, power=0.5, offset=1.0)
    """
    name, _, maker = table.name.partition(".")
    if name not in methods.available:
        raise ValueError(unknown("method", name, [*methods.available, AUTO]))
    make: Any = methods.available[name]
    if maker:
        makers = [key for key, value in vars(make).items() if isinstance(value, classmethod) and key != "examples"]
        if maker not in makers:
            raise ValueError(unknown(f"class method of {name}", maker, makers))
        make = getattr(make, maker)
    return construct(make, table.options, "[method]", calibrated=calibrated)


def chosen(case: Case, problem: Any, parts: list[Any], network: networks.Network) -> Plan:
    """Let `auto` choose the method from public facts; keys of [method] and run.steps take the place of its own."""
    by_hand = case.method.options
    for key, value in by_hand.items():
        if not isinstance(value, (int, float, bool, str)):
            raise ValueError(f"method.{key} is {value!r}: beside auto, give plain values, or name a method")
    wanted = case.privacy
    return auto(
        problem,
        parts,
        epsilon=wanted.epsilon if wanted.enabled else None,
        delta=wanted.delta,
        network=network if network.size > 1 and wanted.by_sums is None else None,
        trust=wanted.by_sums,
        adjacency=wanted.adjacency or "zero-out",
        steps=case.run.steps,
        **by_hand,
    )
