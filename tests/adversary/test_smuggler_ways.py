"""The smuggler's other ways in: each parameter that is no setting and no function is tried too, or has a reason."""

import dataclasses
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.data.parts import Facts, Levels, Part
from sottovoce.problems.vertical import Vertical

from .parameters import TABLE
from .test_smuggler import (
    ALONE,
    ARRAYS_ARE_RIGHT,
    BAMBI,
    CALLS,
    F2SA,
    PLAIN,
    PROBLEM,
    REFUSED,
    ROWS,
    SECRET,
    SGD,
    SGDA,
    YES,
    X,
    Y,
    by_callback,
    by_closure,
    of_two_columns,
)  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore")
NEIGHBOUR = ROWS.copy()
NEIGHBOUR[3] = (1e6, -1e6)
OTHER_YES = np.where(np.arange(40) == 3, 1 - YES, YES)
RUN = partial(sv.run, PROBLEM, [ROWS], **ALONE)
BY_COLUMNS = Vertical(**PLAIN["vertical.Vertical"], x0=[jnp.zeros(())] * 2, y0=[jnp.zeros((2, 1))] * 2)

# Where a problem and a method come in.
WHERE = {
    "account.account": lambda problem, method: sv.account(method, [ROWS], steps=1, problem=problem),
    "auditing.audit": lambda problem, method: sv.audit(
        method, [ROWS], steps=1, problem=problem, adversary="replay", trials=100
    ),
    "auto.auto": lambda problem, method: sv.auto(problem, [ROWS], epsilon=1.0),
    "calibrate.calibrate": lambda problem, method: sv.calibrate(method, [ROWS], epsilon=1.0, steps=1, problem=problem),
    "run.run": lambda problem, method: sv.run(problem, [ROWS], method, steps=1),
}


@dataclass(frozen=True)
class Starts(sv.methods.DpSgd):
    """Starts at the mean of the rows."""

    def init(self, problem, agent):
        return jax.tree.map(lambda leaf: leaf + SECRET[0], super().init(problem, agent))


@dataclass(frozen=True)
class Steps(sv.methods.DpSgd):
    """Goes to the mean of the rows."""

    def step(self, problem, state, agent):
        return jax.tree.map(lambda leaf: leaf + SECRET[0], super().step(problem, state, agent))


def a_problem(owner, _):
    for hide in (by_closure, by_callback):
        with pytest.raises(ValueError, match=REFUSED):
            WHERE[owner](dataclasses.replace(PROBLEM, loss=hide(PROBLEM.loss)), SGD)


def a_method(owner, _):
    for kind in (Starts, Steps):
        with pytest.raises(ValueError, match=REFUSED):
            WHERE[owner](PROBLEM, kind(SGD.rate, SGD.gradient, SGD.sampling))


# Starting values and declarations: an array is refused, or the statement lists what it is taken for.


def stated(owner, **given):
    """Return the caveats of a problem of this kind with something changed."""
    if owner == "vertical.Vertical":
        known = {**PLAIN[owner], "x0": [jnp.zeros(())] * 2, "y0": [jnp.zeros((2, 1))] * 2, **given}
        return sv.account(BAMBI, of_two_columns(), steps=1, problem=Vertical(**known)).caveats
    kind, method = {"Minimize": (sv.Minimize, SGD), "MinMax": (sv.MinMax, SGDA), "Bilevel": (sv.Bilevel, F2SA)}[
        owner.split(".")[1]
    ]
    starts = {"x0": X} if kind is sv.Minimize else {"x0": X, "y0": Y}
    return sv.account(method, [ROWS], steps=1, problem=kind(**{**PLAIN[owner], **starts, **given})).caveats


def listed(caveats, word):
    return any("taken as public" in line and word in line for line in caveats)


def a_start(owner, name):
    start = {"x0": {"weights": SECRET, "bias": SECRET[0]}, "y0": SECRET[:1]}[name]
    if owner == "vertical.Vertical":
        start = {"x0": [SECRET[0]] * 2, "y0": [SECRET[:, None]] * 2}[name]
    assert listed(stated(owner, **{name: start}), "starting values")


HELD = {"a": ROWS[:, 0], "b": ROWS[:, 1], "y": YES}
RANGE, CLASSES = {"range": (-4, 4)}, {"categories": [0, 1]}
TOLD = {"a": RANGE, "b": RANGE, "y": CLASSES}


def of_table(held=HELD, **given):
    return sv.data.table(held, **{"label": "y", "columns": TOLD, **given})


def of_parts(parts):
    return sv.account(SGD, sv.Population.of(parts), steps=1, network=sv.networks.isolated(len(parts))).caveats


def of_column(**given):
    kind = CLASSES if "categories" in given else RANGE
    return of_parts(of_table(columns={**TOLD, "a": {**kind, **given}}).parts())


def of_declarations(columns=TOLD, **given):
    return of_parts([sv.data.Declarations(columns, **given).encode(HELD)])


def of_scaler(columns=None, **given):
    return of_parts([sv.DeclaredScaler(columns, **given).fit_transform(ROWS)])


def by_fit(owner):
    return lambda **given: CALLS[owner](**given).privacy_.caveats


DECLARED = {
    "columns.Columns": lambda **given: (
        sv.account(
            BAMBI, sv.Table(sv.Columns([ROWS, ROWS], **given), sv.Labels(YES, classes=2)), steps=1, problem=BY_COLUMNS
        ).caveats
    ),
    "declarations.Column": of_column,
    "declarations.Declarations": of_declarations,
    "declared.DeclaredTable": lambda **given: of_parts(dataclasses.replace(of_table(), **given).parts()),
    "declared.table": lambda **given: of_parts(of_table(**given).parts()),
    "parts.Facts": lambda **given: of_parts([Part(ROWS, np.arange(40), facts=Facts(**given))]),
    "parts.Part": lambda **given: of_parts([Part(ROWS, np.arange(40), **given)]),
    "preprocess.Ranges": lambda **given: of_parts([sv.data.Ranges(**{"low": -4, "high": 4, **given}).scale(ROWS)]),
    "preprocess.bounded_norm": lambda **given: of_parts(
        [sv.data.bounded_norm(**{"features": ROWS, "bound": 1.0, **given})]
    ),
    "scaler.DeclaredScaler": of_scaler,
    **{owner: by_fit(owner) for owner in ("logistic.PrivateLogisticRegression", "ridge.PrivateRidge")},
}


def a_declaration(owner, name):
    if name == "public_constants":
        function = {"objectives.Bilevel": "upper", "vertical.Vertical": "losses"}.get(owner, "loss")
        public = {"public_constants": True}
        hidden = {function: by_closure(PLAIN[owner][function])}
        assert any("arrays inside" in line and "declared public" in line for line in stated(owner, **hidden, **public))
        with pytest.raises((TypeError, ValueError)):
            stated(owner, **hidden, public_constants=SECRET)
        return
    try:
        caveats = DECLARED[owner](**{name: SECRET})
    except (TypeError, ValueError, AttributeError):
        return
    assert listed(caveats, "preprocessing") or listed(caveats, "which rows there are")


FITS = [owner for owner in ARRAYS_ARE_RIGHT if "Private" in owner or "Tuned" in owner]


@pytest.mark.parametrize("owner", [
    pytest.param(owner, marks=[pytest.mark.slow] if owner in FITS else []) for owner in ARRAYS_ARE_RIGHT
])  # fmt: skip
def test_an_array_that_is_right_is_listed(owner):
    """Where an array may stand for a setting, it is refused for another reason, or taken as public."""
    for name in ARRAYS_ARE_RIGHT[owner].split():
        try:
            made = CALLS[owner](**{name: SECRET})
        except (TypeError, ValueError):
            continue
        if isinstance(made, sv.Population):
            made = sv.account(SGD, made, steps=1, network=sv.networks.isolated(2))
        caveats = of_parts(made) if isinstance(made, list) else getattr(made, "privacy_", made).caveats
        assert listed(caveats, "settings"), (owner, name)


# Records: one that is replaced changes no statement.


def by_row(call):
    return lambda changed: call([NEIGHBOUR if changed else ROWS])


def over_columns(blocks=(ROWS, ROWS), label=YES, **given):
    table = sv.Table(sv.Columns(list(blocks), **given), sv.Labels(label, classes=2))
    return sv.account(BAMBI, table, steps=1, problem=BY_COLUMNS)


def part(changed, rows=ROWS):
    return Part(NEIGHBOUR if changed else rows, np.arange(40))


def told_by_levels(levels):
    return sv.account(F2SA, [levels], steps=1)


def declared_rows(changed):
    return {**HELD, "a": NEIGHBOUR[:, 0] if changed else ROWS[:, 0]}


def other_records(changed):
    made = of_table()
    encoded = made.records["features"] + np.float32(changed)
    return of_parts(dataclasses.replace(made, records={**made.records, "features": encoded}).parts())


def in_levels(upper, lower):
    return told_by_levels(Levels(upper, lower))


RECORDS = {
    "account.account data": by_row(lambda rows: sv.account(SGD, rows, steps=1, problem=PROBLEM)),
    "auto.auto data": by_row(lambda rows: repr(sv.auto(PROBLEM, rows, epsilon=1.0).settings)),
    "calibrate.calibrate data": by_row(lambda rows: sv.calibrate(SGD, rows, epsilon=1.0, steps=1)),
    "run.run data": by_row(lambda rows: sv.run(PROBLEM, rows, SGD, steps=1).privacy),
    "columns.Columns blocks": lambda changed: over_columns((ROWS, NEIGHBOUR if changed else ROWS)),
    "declared.DeclaredTable records": other_records,
    "declared.DeclaredTable inputs": lambda changed: over_columns(
        [of_table(declared_rows(changed)).inputs[:, 0:1].repeat(2, axis=1)] * 2
    ),
    "declared.table data": lambda changed: of_parts(of_table(declared_rows(changed)).parts()),
    "label_store.Labels label": lambda changed: over_columns(label=OTHER_YES if changed else YES),
    "parts.Levels upper": lambda changed: in_levels(part(changed), part(False, -ROWS)),
    "parts.Levels lower": lambda changed: in_levels(part(False, -ROWS), part(changed)),
    "parts.Part records": lambda changed: sv.account(SGD, [part(changed)], steps=1),
    "split.levels parts": lambda changed: told_by_levels(sv.data.levels(part(changed))),
    "split.split records": lambda changed: of_parts(sv.data.split(NEIGHBOUR if changed else ROWS, agents=1)),
    "table.Table columns": lambda changed: over_columns((NEIGHBOUR if changed else ROWS, ROWS)),
    "table.Table labels": lambda changed: over_columns(label=OTHER_YES if changed else YES),
}


def a_record(owner, name):
    told = RECORDS[f"{owner} {name}"]
    assert told(changed=False) == told(changed=True)


def test_a_record_moves_a_run_by_no_more_than_is_charged():
    """Almost without noise: the results of two neighbouring tables differ by less than clipping allows."""
    quiet = sv.methods.DpSgd(0.1, sv.Release(1.0, 1e-7), sv.Full())  # noise of other rows is another noise
    results = [sv.run(PROBLEM, [rows], quiet, steps=1).x for rows in (ROWS, NEIGHBOUR)]
    assert 0 < np.linalg.norm(results[0] - results[1]) <= 1.001 * 2 * 0.1 / len(ROWS)


# What is told beside the model, and what is outside of it.


def an_evaluation(_, __):
    caveats = RUN(evaluate=lambda x: {"figure": SECRET[0]}).privacy.caveats
    assert any("`evaluate`" in line and "nothing checks what it reads" in line for line in caveats)


def a_trial(_, __):
    found = sv.select({"one": lambda mu: SECRET}, lambda output, mu: float(SECRET[0]), epsilon=1.0, seed=0)
    assert "mu-GDP" in found.statement


def outcome(result):
    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(result.x)], result.privacy.statement()


OUTSIDE = {
    "run.run": RUN,
    "performance.Performance": lambda **given: RUN(performance=sv.Performance(**given)),
}
ZEROS = lambda: (jnp.zeros(2), jnp.zeros(1))  # noqa: E731
INSIDE_A_LOSS = {  # functions of a problem's own functions, which are traced with them
    "implicit.bilevel_objectives": lambda hide: lambda x, r: sv.problems.bilevel_objectives(
        sv.Bilevel(hide(lambda x, y, r: jnp.sum((x - r) ** 2)), lambda x, y, r: jnp.sum(y**2), *ZEROS()), r[None]
    )[0](x, jnp.zeros(1)),
    "implicit.hypergradient": lambda hide: lambda x, r: jnp.sum(sv.problems.hypergradient(
        hide(lambda x, y: jnp.sum((x - r) ** 2 + y)), lambda x, y: jnp.sum(y**2), x, jnp.zeros(1), steps=1
    )),
    "implicit.minimise_lower": lambda hide: lambda x, r: jnp.sum(sv.problems.minimise_lower(
        hide(lambda x, y: jnp.sum(y**2) * jnp.sum(x - r)), x, jnp.zeros(1), rate=0.1, steps=1
    )),
    "objectives.along": lambda hide: lambda x, r: sv.problems.along(
        hide(lambda x, y, r: jnp.sum(y**2) * jnp.sum(x - r)), x, jnp.ones(1), r, jnp.ones(1)
    ),
    "objectives.public_along": lambda hide: lambda x, r: jnp.sum(r * x) + sv.problems.public_along(
        hide(lambda x, y: jnp.sum(y**2) * jnp.sum(x)), x, jnp.ones(1), jnp.ones(1)
    ),
}  # fmt: skip


def from_outside(owner, name):
    if owner in INSIDE_A_LOSS:
        sv.account(SGD, [ROWS], steps=1, problem=dataclasses.replace(PROBLEM, loss=INSIDE_A_LOSS[owner](lambda f: f)))
        a_loss = INSIDE_A_LOSS[owner](by_closure)
        with pytest.raises(ValueError, match=REFUSED):
            sv.account(SGD, [ROWS], steps=1, problem=dataclasses.replace(PROBLEM, loss=a_loss))
        return
    try:
        changed = outcome(OUTSIDE[owner](**{name: SECRET}))
    except (TypeError, ValueError):
        return
    assert changed == outcome(ran())


@cache
def ran():
    return RUN()


def a_result(owner, name):
    """An array in the place of a path or of what names columns; and one in what goes into a file."""
    made = ran()
    given = {"path": Path("nowhere/m.sv"), "features": np.zeros((1, 2))}
    predictor = lambda x, f: f @ x  # noqa: E731
    if owner == "model_file.save":
        call = partial(sv.save, **{"result": dataclasses.replace(made, predictor=predictor), **given, name: SECRET})
    elif owner == "model_file.load":
        call = partial(sv.load, SECRET)
    else:
        call = partial(sv.save, dataclasses.replace(made, predictor=by_closure(predictor)), **given)
    with pytest.raises((TypeError, ValueError, AttributeError)):
        call()


TRY = {
    "problem": a_problem, "method": a_method, "start": a_start, "declared": a_declaration, "records": a_record,
    "evaluate": an_evaluation, "trial": a_trial, "outside": from_outside, "result": a_result,
}  # fmt: skip
# Parameters with a sentence alone, and why there is no try.
SAID = {
    "written by hand": {
        "result.Model": "x y privacy predictor",
        "result.Result": "x y agents history privacy releasable about public_constants public_test",
        "report.PrivacyReport": TABLE["report.PrivacyReport"]["result"],
    },
    "which rows there are is public": {
        "columns.Columns": "upper lower ids", "label_store.Labels": "ids", "parts.Part": "rows",
        "split.levels": "upper", "declared.DeclaredTable": "source owners",
    },
    "measures, and makes no model and no statement": {
        "auditing.audit": f"data {TABLE['auditing.audit']['outside']}", "preprocess.check_records": "records classes",
        "checks.Condition": "name holds detail", "base.summary": "cls", "picture.draw": "network ax",
    },
    "gives records or numbers to its caller, who brings them in by a way of this table": {
        "sources.available": "name root", "sources.load": "name root image pool",
        **{f"schedules.{name}": TABLE[f"schedules.{name}"]["outside"]
           for name in ("as_drawn", "charged", "same_for_all", "settled", "told_by_fields")},
    },
}  # fmt: skip
UNTRIED = {(owner, name) for each in SAID.values() for owner, names in each.items() for name in names.split()}
TRIED = [
    (way, owner, name)
    for owner, row in TABLE.items()
    for way in row.keys() - {"setting", "function"}
    for name in row[way].split()
    if (owner, name) not in UNTRIED
]


@pytest.mark.parametrize("way", TRY)
def test_every_parameter_of_a_way_is_tried(way):
    mine = [(owner, name) for kind, owner, name in TRIED if kind == way]
    assert mine
    for owner, name in mine:
        try:
            TRY[way](owner, name)
        except (Exception, pytest.fail.Exception) as error:
            raise AssertionError(f"{owner} {name}") from error


def test_what_is_not_tried_has_a_reason_and_a_row():
    rows = {(owner, name) for owner, row in TABLE.items() for names in row.values() for name in names.split()}
    assert rows >= UNTRIED
    tried = {(owner, name) for _, owner, name in TRIED}
    by_others = {(owner, name) for owner, row in TABLE.items() for way in ("setting", "function")
                 for name in row.get(way, "").split()}  # fmt: skip
    assert rows == tried | by_others | UNTRIED
    print(f"\n{len(rows)} parameters of {len(TABLE)} owners: {len(rows - UNTRIED)} tried, {len(UNTRIED)} with a reason")
