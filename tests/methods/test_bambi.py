"""BAMBI: the federated run is its non-federated twin, only head outputs cross, the hypergradient is the right one."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sottovoce as sv
from sottovoce.accounting.table import schedule, table_account
from sottovoce.methods import equations
from sottovoce.optimisers import Adam
from sottovoce.papers.bambi import theory
from sottovoce.papers.bambi.method import Bambi
from sottovoce.privacy.labels import Fresh, LabelGate, Labels, Memoised, Open, Printed
from sottovoce.privacy.ledger import Budget, BudgetExceeded
from sottovoce.problems.tasks.vertical import hyper_parameters, hyper_representation
from sottovoce.problems.vertical import logistic
from sottovoce.runtime.columns import ColumnsPlace, Message, record_messages, table_roots
from sottovoce.runtime.interpreter import walk
from sottovoce.runtime.keys import root_key, step_key
from sottovoce.schedules import Decay, Linear

from .bambi_twin import Twin

ROWS, CLASSES, BATCH = 40, 3, 10
METHOD = Bambi(inner_steps=3, batch=BATCH, rate_x=0.1, rate_y=0.3, labels=Memoised(2.0), directions=2)


def _blocks(features: np.ndarray, parties: int) -> list[np.ndarray]:
    return np.array_split(features, parties, axis=1)


def _columns(parties: int = 3) -> sv.Columns:
    features = np.random.default_rng(0).normal(size=(ROWS, 6)).astype(np.float32)
    return sv.Columns(_blocks(features, parties)).levels(upper=0.4)


def _labels(**options: Any) -> Labels:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(ROWS, 6)).astype(np.float32)
    label = (features[:, :CLASSES] + 0.3 * rng.normal(size=(ROWS, CLASSES))).argmax(axis=1)
    return Labels(label, CLASSES, seed=0, **options)


COLUMNS = _columns()


def _table(columns: sv.Columns = COLUMNS, active: int | None = None, **options: Any) -> sv.Table:
    return sv.Table(columns, _labels(**options), active)


@cache  # one problem object, so that compiled programs are shared
def _problem(parties: int = 3) -> sv.Vertical:
    sizes = [block.shape[1] for block in _columns(parties).blocks]
    return hyper_representation(sizes, CLASSES, hidden=(4,), penalty=1e-2)


PROBLEM = _problem()


def _flat(x: Any, y: Any) -> dict[str, jax.Array]:
    return {"all": jax.flatten_util.ravel_pytree((x, y))[0]}


@cache
def _path(method: Bambi, parties: int = 3, seed: int = 0) -> np.ndarray:
    """All parameters after each of four steps."""
    table = _table(_columns(parties))
    options = {"steps": 4, "every": 1, "evaluate": _flat, "delta": 1e-5, "seed": seed}
    return sv.run(_problem(parties), table, method, **options).history["all"][1:]


def _twin(method: Bambi, parties: int = 3) -> np.ndarray:
    return Twin(_problem(parties), _table(_columns(parties)), method).path(4)


# Federated and not.


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(replace(METHOD, labels=Fresh(1.0), rate_x=Decay(0.1, 0.5)), id="fresh", marks=pytest.mark.slow),
        pytest.param(METHOD, id="memoised", marks=pytest.mark.slow),
        pytest.param(
            replace(METHOD, cross_terms=False, labels=Memoised(2.0, "debiased"), copies="y", draw="uniform"),
            id="as printed",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            replace(
                METHOD, labels=Printed(1.0), rate_x=optax.adamw(1e-2), rate_y=Adam(Linear(3e-2, 1e-2, steps=4), 0.1)
            ),
            id="optimisers",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_federated_run_is_the_non_federated_one_step_by_step(method: Bambi) -> None:
    federated, twin = _path(method), _twin(method)
    assert federated == pytest.approx(twin, rel=2e-3, abs=2e-4)
    assert np.abs(np.diff(federated, axis=0)).max() > 1e-3


@pytest.mark.slow
def test_altered_features_are_altered_alike_at_all_parties() -> None:
    """The twin alters all columns with one key; the parties must find the same one."""
    altered = replace(PROBLEM, alter=lambda key, a: a * jax.random.bernoulli(key, 0.5, (a.shape[0], 1)))
    options = {"steps": 2, "every": 1, "evaluate": _flat}
    federated = sv.run(altered, _table(), METHOD, **options).history["all"][1:]
    assert federated == pytest.approx(Twin(altered, _table(), METHOD).path(2), rel=2e-3, abs=2e-4)
    assert np.abs(federated - _path(METHOD)[:2]).max() > 1e-3


@pytest.mark.slow
def test_pictures_are_shifted_by_at_most_one_pixel() -> None:
    alter = hyper_representation([2, 2], CLASSES, shift=1, line=2).alter
    assert alter is not None
    pictures = np.random.default_rng(0).uniform(1, 2, size=(8, 2))
    shifted = np.asarray(alter(jax.random.key(3), jnp.asarray(pictures)))
    moved = [{(0, 0): "not", (1, 0): "right", (0, 1): "left"}[tuple((row == 0).astype(int))] for row in shifted]
    assert set(moved) == {"not", "right", "left"}
    for row, was, how in zip(shifted, np.float32(pictures), moved):
        assert {"not": (row == was).all(), "right": row[1] == was[0], "left": row[0] == was[1]}[how]
    with pytest.raises(ValueError, match="whole lines"):
        hyper_representation([2, 3], CLASSES, shift=1, line=2)


@pytest.mark.slow
def test_one_party_is_the_centralised_algorithm() -> None:
    assert _path(METHOD, parties=1) == pytest.approx(_twin(METHOD, parties=1), rel=2e-3, abs=2e-4)


@pytest.mark.slow
def test_same_seed_same_bytes_in_one_stretch_or_two_and_another_seed_other_ones() -> None:
    path = _path(METHOD)
    for every in (3, 4):
        again = sv.run(PROBLEM, _table(), METHOD, steps=4, every=every)
        assert _flat(again.x, again.y)["all"] == pytest.approx(path[-1], abs=1e-6)
    assert (path != _path(METHOD, seed=1)).any()


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path: Path, stopped_at_first_save: Any) -> None:
    method = replace(METHOD, rate_x=Adam(0.1), rate_y=optax.adam(0.1))

    def run(out: Path | None, **options: Any) -> np.ndarray:
        options |= {"steps": 4, "every": 2, "evaluate": _flat, "out": out}
        return sv.run(PROBLEM, _table(), method, **options).history["all"]

    with stopped_at_first_save():
        run(tmp_path)
    assert not (tmp_path / "result.json").exists()
    with pytest.raises(ValueError, match="holds a run already"):
        run(tmp_path)
    with pytest.raises(ValueError, match="another run: seed was 0 and is 1"):
        run(tmp_path, resume=True, seed=1)
    assert (run(tmp_path, resume=True) == run(None)).all()
    assert (tmp_path / "result.json").exists()


# What crosses a boundary.


@cache
def _logged(active: int | None = None) -> tuple[np.ndarray, list[Message], list[Any]]:
    """All parameters after two steps, the messages, and the parties' states."""
    table = _table(active=active)
    account = table_account(METHOD, table, PROBLEM, steps=2, delta=0.0)
    account.charge(table.labels)
    states, log = record_messages(account, table)
    return np.asarray(_flat([s.x for s in states], [s.y for s in states])["all"]), log, states


def _bytes_up(active: int | None) -> tuple[float, float]:
    history = sv.run(PROBLEM, _table(active=active), METHOD, steps=2).history
    return history["bytes up"][-1], history["bytes down"][-1]


@pytest.mark.slow
def test_compiled_and_message_by_message_agree() -> None:
    found, _, _ = _logged()
    assert found == pytest.approx(_path(METHOD)[1], rel=1e-3, abs=1e-5)


@pytest.mark.slow
def test_only_head_outputs_gradients_at_them_and_one_number_per_direction_cross() -> None:
    _, log, _ = _logged()
    copies = METHOD.directions + 1
    allowed = {
        ("lower", True, "outputs"): (copies, BATCH, CLASSES),
        ("lower", False, "gradients"): (copies, BATCH, CLASSES),
        ("upper", True, "outputs"): (BATCH, CLASSES),
        ("upper", False, "gradients"): (BATCH, CLASSES),
        (None, True, "scalars"): (METHOD.directions,),
        (None, False, "scalars"): (METHOD.directions,),
    }
    for message in log:
        assert message.value.shape == allowed[message.level, message.up, message.what]
        assert message.value.dtype == np.float32
    per_party_and_step = 2 * (METHOD.inner_steps + 1 + 1)
    assert len(log) == 3 * 2 * per_party_and_step
    up = sum(message.value.nbytes for message in log if message.up)
    assert _bytes_up(None) == (up, up)


@pytest.mark.slow
def test_a_party_needs_nothing_but_its_columns_and_its_inbox() -> None:
    """Replayed alone from the recorded answers, a party sends the same messages and ends in the same state."""
    _, log, states = _logged()
    m = 1
    account = table_account(METHOD, _table(), PROBLEM, steps=2, delta=0.0)
    party, root = account.trace.parties[m], table_roots(account, _table())[m]
    leaves = jax.core.eval_jaxpr(party.init.jaxpr, party.init.consts)
    for t in range(2):
        mine = [message for message in log if message.party == m and message.step == t]
        sent, inbox = [x.value for x in mine if x.up], iter(x.value for x in mine if not x.up)
        outbox: list[Any] = []
        batches = schedule(COLUMNS, METHOD, 0, t, 1)
        rows = [jnp.asarray(batches[level][0]) for level in sorted(batches)]
        key = step_key(root, m, "step", jnp.int32(t))
        walking = walk(party.step.jaxpr, party.step.consts, [jnp.int32(t), *rows, *leaves], compiled=True)
        leaves = _alone(walking, jnp.asarray(COLUMNS.blocks[m]), key, outbox, inbox)
        assert len(outbox) == len(sent)
        for one, other in zip(outbox, sent):
            assert one == pytest.approx(other, abs=1e-5)
    for one, other in zip(leaves, jax.tree.leaves(states[m]), strict=True):
        assert np.asarray(one) == pytest.approx(np.asarray(other), abs=1e-5)


def _alone(walking: Any, block: jax.Array, key: jax.Array, outbox: list[Any], inbox: Any) -> list[Any]:
    """Answer a party's step from its own columns, its own key and its inbox."""
    answer = None
    while True:
        try:
            equation, values = walking.send(answer)
        except StopIteration as stop:
            return stop.value
        own = jax.random.fold_in(key, equation.params["number"])
        if equation.primitive is equations.loop_p:
            body, consts = equation.params["body"], equation.params["consts"]
            answer = values[consts:]
            for k in range(equation.params["times"]):
                inside = walk(body, (), [*values[:consts], *answer], compiled=True)
                answer = _alone(inside, block, jax.random.fold_in(own, k), outbox, inbox)
        elif equation.primitive is equations.features_p:
            answer = [block[values[0]]]
        elif equation.primitive is equations.key_p:
            answer = [own]
        else:
            outbox.append(np.asarray(values[-1]))
            answer = [jnp.asarray(next(inbox))]


@pytest.mark.slow
def test_the_active_party_learns_through_the_same_gate() -> None:
    passive, _, _ = _logged()
    active, log, _ = _logged(active=0)
    assert (active == passive).all()
    assert {message.party for message in log} == {1, 2}
    assert _bytes_up(0)[0] == sum(message.value.nbytes for message in log if message.up)


# The hypergradient.


def _remember() -> optax.GradientTransformation:
    """An optimiser that stays where it is and keeps the sums of the gradients and of their squares."""

    def init(at: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, (at, at))

    def update(slope: Any, sums: Any, at: Any = None) -> Any:
        kept = jax.tree.map(jnp.add, sums, (slope, jax.tree.map(jnp.square, slope)))
        return jax.tree.map(jnp.zeros_like, slope), kept

    return optax.GradientTransformation(init, update)


REMEMBER = _remember()


@cache
def _ridge() -> tuple[sv.Vertical, sv.Table, Any, Any]:
    """Two parties, embedding a * x, linear heads, squared loss: the lower level is ridge regression, solved exactly."""
    rng = np.random.default_rng(3)
    features = (rng.normal(size=(24, 4)) @ rng.normal(size=(4, 4))).astype(np.float32)
    features *= 1.2 / np.linalg.norm(features[12:], 2) * math.sqrt(12)
    label = (features @ [1.0, -1.0, 1.0, 0.5] > 0).astype(int)
    columns = sv.Columns(_blocks(features, 2), upper=np.arange(12), lower=np.arange(12, 24))
    gamma, x0 = 0.2, [jnp.asarray([0.9, 1.1]), jnp.asarray([1.2, 0.8])]
    problem = sv.Vertical(
        lambda x, a: a * x,
        lambda y, e: e @ y,
        lambda s: 0.5 * (s - jnp.asarray([-1.0, 1.0])) ** 2,
        x0=x0,
        y0=[jnp.zeros((2, 1))] * 2,
        penalty=lambda x, y: 0.5 * gamma * jnp.sum(y**2),
        public_constants=True,  # the margins of both classes
    )
    a, b = jnp.asarray(features), 2.0 * jnp.asarray(label) - 1.0

    def heads(x: jax.Array) -> jax.Array:
        e = a[12:] * x
        return jnp.linalg.solve(e.T @ e / 12 + gamma * jnp.eye(4), e.T @ b[12:] / 12)

    def upper(x: jax.Array, y: jax.Array) -> jax.Array:
        return 0.5 * jnp.mean(((a[:12] * x) @ y - b[:12]) ** 2)

    x = jnp.concatenate(x0)
    exact = jax.grad(lambda x: upper(x, heads(x)))(x)
    direct, slope_y = jax.grad(upper, (0, 1))(x, heads(x))
    jacobian = jax.jacobian(heads)(x)  # (heads, x)
    own_blocks = np.kron(np.eye(2), np.ones((2, 2)))
    printed = direct + (jacobian * own_blocks).T @ slope_y
    solved = replace(problem, y0=list(heads(x).reshape(2, 2, 1)))
    return solved, sv.Table(columns, Labels(label, 2, seed=0)), exact, printed


def _estimates(directions: int, cross_terms: bool, steps: int, smoothing: float = 1e-3) -> tuple[Any, Any]:
    """Mean and variance of the hypergradient's estimate at x0."""
    problem, table, _, _ = _ridge()
    method = Bambi(60, 12, REMEMBER, 0.6, Open(), directions, smoothing, cross_terms)
    account = table_account(method, table, problem, steps=steps, delta=0.0, seed=1)
    place = ColumnsPlace(account, table, root_key(1))  # the same directions for every method
    states = account.trace.states(place.advance(place.begin(), 0, steps)[0])
    sums, squares = (jnp.concatenate([s.memory_x[part] for s in states]) for part in (0, 1))
    mean = sums / steps
    return np.asarray(mean), np.asarray(squares / steps - mean**2)


@pytest.mark.slow
def test_the_estimate_is_unbiased_with_cross_terms_and_biased_as_printed() -> None:
    _, _, exact, printed = _ridge()
    steps, directions = 40, 100
    for cross_terms, target in ((True, exact), (False, printed)):
        mean, variance = _estimates(directions, cross_terms, steps)
        error = np.sqrt(variance / steps)
        assert np.abs(mean - np.asarray(target)).max() < 5 * error.max() + 1e-3
        if not cross_terms:
            assert np.abs(mean - np.asarray(exact)).max() > 5 * error.max() + 1e-3
    assert np.linalg.norm(printed - exact) > 0.2 * np.linalg.norm(exact)


@pytest.mark.slow
def test_what_smoothing_adds_is_in_proportion_to_it() -> None:
    """The same directions at several mu: what remains beside sampling error shrinks at least as fast as mu."""
    finest, fine, coarse = (_estimates(50, True, 4, smoothing)[0] for smoothing in (0.005, 0.05, 0.1))
    left, right = np.linalg.norm(coarse - finest), np.linalg.norm(fine - finest)
    assert left > 1e-3  # float32 rounds at about 1e-5 here
    assert right < 0.55 * left


@pytest.mark.slow
def test_the_variance_falls_as_one_over_q() -> None:
    few, many = (_estimates(directions, True, 300)[1].sum() for directions in (1, 16))
    assert few / many == pytest.approx(16, rel=0.35)


def test_it_finds_the_coefficient_that_generalises() -> None:
    """Hyper-parameters: pure noise in party 1, so its penalty should rise above party 0's."""
    rng = np.random.default_rng(0)
    told, noise = rng.normal(size=(200, 2)), rng.normal(size=(200, 12))
    label = (told.sum(axis=1) + 0.5 * rng.normal(size=200) > 0).astype(int)
    columns = sv.Columns([told, noise]).levels(upper=0.5)
    problem = hyper_parameters([2, 12], start=-3.0)
    method = Bambi(20, 100, 1.0, 0.5, Open(), directions=4)
    result = sv.run(problem, sv.Table(columns, Labels(label, 2)), method, steps=60)
    assert result.x[1] > result.x[0] + 0.3
    assert result.x[1] > -2.5


# Privacy.


@pytest.mark.parametrize(("steps", "inner_steps", "directions"), [(1, 1, 1), (50, 3, 1), (7, 20, 5)])
def test_memoised_labels_cost_the_same_whatever_is_done_with_them(
    steps: int, inner_steps: int, directions: int
) -> None:
    method = replace(METHOD, inner_steps=inner_steps, directions=directions)
    report = sv.account(method, _table(), problem=PROBLEM, steps=steps)
    assert report.epsilon == 2.0
    assert report.design == "sound"
    assert report.published is None


def test_fresh_labels_cost_every_use_in_every_copy_at_both_levels() -> None:
    def epsilon(gate: LabelGate, columns: sv.Columns = COLUMNS, **changes: Any) -> float:
        method = replace(METHOD, labels=gate, **changes)
        return sv.account(method, _table(columns), problem=PROBLEM, steps=2).epsilon

    # lower: 24 rows in batches of 10, so 2 batches a pass; 6 batches are 3 passes; 3 copies; 2 unit shifts
    assert epsilon(Fresh(10.0)) == pytest.approx(3 * 3 * 2 / 10)
    assert epsilon(Fresh(10.0), directions=5) == pytest.approx(3 * 6 * 2 / 10)
    assert epsilon(Fresh(10.0), inner_steps=6) == pytest.approx(6 * 3 * 2 / 10)
    assert epsilon(Fresh(10.0, shared=True)) == pytest.approx(3 * 2 / 10)
    both = replace(COLUMNS, upper=COLUMNS.lower)  # one set for both levels: a use above is added
    assert epsilon(Fresh(10.0), both) == pytest.approx((3 * 3 + 1) * 2 / 10)
    assert epsilon(Printed(10.0)) == math.inf
    assert epsilon(Open()) == math.inf


def test_a_run_is_calibrated_for_its_own_batches() -> None:
    """Another seed draws other batches, in which the dearest label is used more often: 2.4 was reached for 2."""
    problem = sv.Vertical(lambda x, a: a, lambda y, a: a @ y, logistic, [jnp.zeros(())], [jnp.zeros((2, 1))])
    method = Bambi(inner_steps=2, batch=15, rate_x=0.0, rate_y=0.0, labels=Fresh(1.0), draw="uniform")
    table = sv.Table(sv.Columns([np.ones((40, 2))]), Labels(np.arange(40) % 2, classes=2, seed=0))
    assert 1.999 < sv.run(problem, table, method, steps=3, seed=3, epsilon=2.0).privacy.epsilon <= 2.0


def test_a_run_over_the_labels_budget_charges_nothing() -> None:
    columns = replace(COLUMNS, upper=COLUMNS.lower)  # 3 x 3 uses below, one above, each 0.2
    table = _table(columns, budget=Budget(1.9, 0.0))
    with pytest.raises(BudgetExceeded, match="0 is spent already"):
        sv.run(PROBLEM, table, replace(METHOD, labels=Fresh(10.0)), steps=2)
    assert float(table.labels.epsilon()) == 0.0


@pytest.mark.slow
def test_the_run_charges_what_the_account_says_and_runs_add_up() -> None:
    table, method = _table(), replace(METHOD, labels=Fresh(10.0), rate_x=0.0, rate_y=0.0)  # its noise is large
    said = sv.account(method, table, problem=PROBLEM, steps=2)
    first = sv.run(PROBLEM, table, method, steps=2)
    assert first.privacy.epsilon == pytest.approx(said.epsilon)
    assert first.privacy.published == 0.1
    second = sv.run(PROBLEM, table, method, steps=2)
    assert second.privacy.epsilon == pytest.approx(2 * said.epsilon)


def test_after_the_draw_true_labels_are_not_read() -> None:
    table = _table()
    before = sv.run(PROBLEM, table, METHOD, steps=4)
    table.labels._label[:] = (table.labels._label + 1) % CLASSES
    after = sv.run(PROBLEM, table, METHOD, steps=4)
    assert (_flat(before.x, before.y)["all"] == _flat(after.x, after.y)["all"]).all()
    assert after.privacy.epsilon == 2.0


def test_only_labels_of_rows_that_are_used_are_drawn() -> None:
    table = _table(COLUMNS.only(np.arange(30)))
    sv.run(PROBLEM, table, METHOD, steps=4)
    assert (table.labels.memo(2.0, rows=[0]).observed[30:] == -1).all()


def test_memoised_labels_drawn_without_a_seed_may_leave() -> None:
    seeded = sv.run(PROBLEM, _table(), METHOD, steps=4)
    assert seeded.covered
    assert not seeded.releasable
    secret = sv.Table(COLUMNS, Labels(_labels()._label, CLASSES))
    assert sv.run(PROBLEM, secret, METHOD, steps=4).releasable


def test_reports_say_what_is_not_covered() -> None:
    printed = sv.account(replace(METHOD, labels=Printed(1.0)), _table(), problem=PROBLEM, steps=1)
    assert printed.design == "printed"
    assert printed.published == 1.0
    assert any("reveals" in caveat for caveat in printed.caveats)
    assert any("head outputs" in caveat for caveat in printed.caveats)
    assert not any("evaluate" in caveat for caveat in printed.caveats)  # nothing is known of what it would read
    assert not printed.private


def test_smoothing_in_theory() -> None:
    assert theory.smoothing(directions=4, q=2, p=2, steps=4) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"inner_steps": 0}, "at least 1"), ({"directions": 0}, "at least 1"), ({"smoothing": 1e-9}, "lost in float32")],
)
def test_settings_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(METHOD, **changes)


def test_what_does_not_fit_is_refused_before_anything_runs() -> None:
    table = _table()
    with pytest.raises(ValueError, match="2 labels for 40 rows"):
        sv.Table(COLUMNS, Labels([0, 1], 2))
    with pytest.raises(TypeError, match="labels is of type ndarray: a Table takes a Labels"):
        sv.Table(COLUMNS, np.zeros(ROWS, int))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="active is 7"):
        _table(active=7)
    wider = replace(COLUMNS, blocks=_blocks(np.ones((ROWS, 7)), 3))
    for problem, data, method, steps, message in [
        (_problem(2), table, METHOD, 1, "2 parties and the table 3 blocks"),
        (PROBLEM, table, replace(METHOD, batch=20), 1, "upper level has 16 rows"),
        (PROBLEM, table, METHOD, 0, "steps is 0"),
        (PROBLEM, replace(table, columns=wider), METHOD, 1, "does not fit the columns"),
    ]:
        with pytest.raises(ValueError, match=message):
            sv.run(problem, data, method, steps=steps)
    for name, given in {"network": sv.networks.ring(3), "ledger": sv.Ledger(), "budget": Budget(1.0, 0.0)}.items():
        with pytest.raises(ValueError, match=f"{name}= is for parties with records"):
            sv.run(PROBLEM, table, METHOD, steps=1, **{name: given})  # type: ignore[arg-type]
    assert float(table.labels.epsilon()) == 0.0
