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
from sottovoce.runtime.exchange import Message, Party
from sottovoce.runtime.stages import run_in_stages
from sottovoce.runtime.vertical import account_vertical, run_vertical

from sottovoce.data.columns import Columns, split_columns
from sottovoce.methods.bambi import Bambi
from sottovoce.optimisers import Adam
from sottovoce.privacy.labels import Fresh, LabelGate, Labels, Memoised, Open, Printed
from sottovoce.privacy.ledger import Budget, BudgetExceeded
from sottovoce.problems.tasks.vertical import hyper_parameters, hyper_representation, probabilities
from sottovoce.problems.vertical import Vertical
from sottovoce.schedules import Decay, Linear
from sottovoce.theory import bambi as theory

ROWS, CLASSES, BATCH = 40, 3, 10
METHOD = Bambi(inner_steps=3, batch=BATCH, rate_x=0.1, rate_y=0.3, labels=Memoised(2.0), directions=2)


def _table(parties: int = 3, rows: int = ROWS) -> tuple[Columns, Labels]:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(rows, 6)).astype(np.float32)
    label = (features[:, :CLASSES] + 0.3 * rng.normal(size=(rows, CLASSES))).argmax(axis=1)
    columns = Columns(split_columns(features, parties)).levels(upper=0.4)
    return columns, Labels(label, CLASSES, seed=0)


def _problem(columns: Columns) -> Vertical:
    return hyper_representation([block.shape[1] for block in columns.blocks], CLASSES, hidden=(4,), penalty=1e-2)


def _flat(x: Any, y: Any) -> dict[str, jax.Array]:
    return {"all": jax.flatten_util.ravel_pytree((x, y))[0]}


@cache
def _path(method: Bambi, parties: int = 3, **options: Any) -> np.ndarray:
    """All parameters after each of four steps."""
    columns, labels = _table(parties)
    result = run_vertical(
        _problem(columns), columns, labels, method, steps=4, every=1, evaluate=_flat, delta=1e-5, **options
    )
    return result.history["all"]


# Federated and not.


@pytest.mark.parametrize(
    "method",
    [
        METHOD,
        replace(METHOD, cross_terms=False, labels=Memoised(2.0, "debiased")),
        replace(METHOD, labels=Fresh(1.0), rate_x=Decay(0.1, 0.5)),
        replace(METHOD, labels=Printed(1.0), rate_x=optax.adamw(1e-2), rate_y=Adam(Linear(3e-2, 1e-2, steps=4), 0.1)),
    ],
    ids=["memoised", "printed blocks", "fresh", "optimisers"],
)
def test_the_federated_run_is_the_non_federated_one_step_by_step(method: Bambi) -> None:
    federated, twin = _path(method), _path(method, in_one_place=True)
    assert federated == pytest.approx(twin, rel=2e-3, abs=2e-4)
    assert np.abs(np.diff(federated, axis=0)).max() > 1e-3


def test_pictures_are_shifted_alike_at_all_parties() -> None:
    alter = hyper_representation([2, 2], CLASSES, shift=1, line=2).alter
    rows = {"lower": jnp.arange(8)[None], "upper": jnp.arange(8)[None]}
    pictures = jnp.asarray(np.random.default_rng(0).uniform(1, 2, size=(8, 2)))
    parties = [Party(m, jnp.asarray(3), pictures, rows, 0, alter) for m in range(2)]
    one, other = (np.asarray(party.features(jnp.arange(8))) for party in parties)
    assert (one == other).all()
    moved = [{(0, 0): "not", (1, 0): "right", (0, 1): "left"}[tuple((row == 0).astype(int))] for row in one]
    assert set(moved) == {"not", "right", "left"}
    for row, was, how in zip(one, np.asarray(pictures), moved):
        assert {"not": (row == was).all(), "right": row[1] == was[0], "left": row[0] == was[1]}[how]
    with pytest.raises(ValueError, match="whole lines"):
        hyper_representation([2, 3], CLASSES, shift=1, line=2)


def test_one_party_is_the_centralised_algorithm() -> None:
    assert _path(METHOD, parties=1) == pytest.approx(_path(METHOD, parties=1, in_one_place=True), rel=2e-3, abs=2e-4)


def test_same_seed_same_bytes_in_one_stretch_or_two_and_another_seed_other_ones() -> None:
    columns, labels = _table()
    path = _path(METHOD)
    for every in (3, 4):
        again = run_vertical(_problem(columns), columns, labels, METHOD, steps=4, every=every)
        assert _flat(again.x, again.y)["all"] == pytest.approx(path[-1], abs=1e-6)
    assert (path != _path(METHOD, seed=1)).any()


def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path: Path, stopped_at_first_save: Any) -> None:
    method = replace(METHOD, rate_x=Adam(0.1), rate_y=optax.adam(0.1))

    def run(out: Path | None, **options: Any) -> np.ndarray:
        columns, labels = _table()
        options |= {"steps": 6, "every": 2, "evaluate": _flat, "out": out}
        return run_vertical(_problem(columns), columns, labels, method, **options).history["all"]

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


def _logged(method: Bambi = METHOD, **options: Any) -> tuple[np.ndarray, list[Message], Columns, Any]:
    log: list[Message] = []
    columns, labels = _table()
    result = run_vertical(_problem(columns), columns, labels, method, steps=2, log=log, **options)
    return np.asarray(_flat(result.x, result.y)["all"]), log, columns, result


def test_compiled_and_message_by_message_agree() -> None:
    found, _, _, _ = _logged()
    assert found == pytest.approx(_path(METHOD)[1], rel=1e-3, abs=1e-5)


def test_only_head_outputs_gradients_at_them_and_one_number_per_direction_cross() -> None:
    _, log, _, result = _logged()
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
    assert result.history["bytes up"][-1] == up == result.history["bytes down"][-1]


def test_a_party_needs_nothing_but_its_columns_and_its_inbox() -> None:
    """Replayed alone from the recorded answers, a party sends the same messages and ends in the same state."""
    _, log, columns, result = _logged()
    m, problem = 1, _problem(columns)
    state = METHOD.init(problem, m)
    for t in range(2):
        mine = [message for message in log if message.party == m and message.step == t]
        sent, inbox = [x.value for x in mine if x.up], iter(x.value for x in mine if not x.up)
        outbox: list[Any] = []
        rows = {level: jnp.asarray(batches[t]) for level, batches in _schedule(columns, 2).items()}
        party = Party(m, jnp.asarray(t), jnp.asarray(columns.blocks[m]), rows, seed=0)
        state = _alone(METHOD.step(problem, state, party), outbox, inbox)
        assert len(outbox) == len(sent)
        for one, other in zip(outbox, sent):
            assert one == pytest.approx(other, abs=1e-5)
    final = jax.flatten_util.ravel_pytree((state.x, state.y))[0]
    assert final == pytest.approx(np.asarray(_flat(result.x[m], result.y[m])["all"]), abs=1e-5)


def _schedule(columns: Columns, steps: int) -> Any:
    from sottovoce.runtime.vertical_plan import Plan

    return Plan(_problem(columns), columns, METHOD, seed=0, active=None).schedule(0, steps)


def _alone(talk: Any, outbox: list[Any], inbox: Any) -> Any:
    answer = None
    while True:
        try:
            request = talk.send(answer)
        except StopIteration as stop:
            return stop.value
        if hasattr(request, "body"):
            answer = request.carry
            for item in request.over:
                answer = _alone(request.body(answer, item), outbox, inbox)
        else:
            outbox.append(np.asarray(request[-1]))
            answer = jnp.asarray(next(inbox))


def test_the_active_party_learns_through_the_same_gate() -> None:
    passive, _, _, _ = _logged()
    active, log, _, result = _logged(active=0)
    assert (active == passive).all()
    assert {message.party for message in log} == {1, 2}
    assert result.history["bytes up"][-1] == sum(message.value.nbytes for message in log if message.up)


# The hypergradient.


def _remember() -> optax.GradientTransformation:
    """An optimiser that stays where it is and keeps the sums of the gradients and of their squares."""

    def init(at: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, (at, at))

    def update(slope: Any, sums: Any, at: Any = None) -> Any:
        kept = jax.tree.map(jnp.add, sums, (slope, jax.tree.map(jnp.square, slope)))
        return jax.tree.map(jnp.zeros_like, slope), kept

    return optax.GradientTransformation(init, update)


def _ridge() -> tuple[Vertical, Columns, Labels, Any, Any]:
    """Two parties, embedding a * x, linear heads, squared loss: the lower level is ridge regression, solved exactly."""
    rng = np.random.default_rng(3)
    features = (rng.normal(size=(24, 4)) @ rng.normal(size=(4, 4))).astype(np.float32)
    features *= 1.2 / np.linalg.norm(features[12:], 2) * math.sqrt(12)
    label = (features @ [1.0, -1.0, 1.0, 0.5] > 0).astype(int)
    columns = Columns(split_columns(features, 2), upper=np.arange(12), lower=np.arange(12, 24))
    gamma, x0 = 0.2, [jnp.asarray([0.9, 1.1]), jnp.asarray([1.2, 0.8])]
    problem = Vertical(
        lambda x, a: a * x,
        lambda y, e: e @ y,
        lambda s: 0.5 * (s - jnp.asarray([-1.0, 1.0])) ** 2,
        x0=x0,
        y0=[jnp.zeros((2, 1))] * 2,
        penalty=lambda x, y: 0.5 * gamma * jnp.sum(y**2),
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
    return solved, columns, Labels(label, 2, seed=0), exact, printed


def _estimates(directions: int, cross_terms: bool, steps: int, smoothing: float = 1e-3) -> tuple[Any, Any]:
    """Mean and variance of the hypergradient's estimate at x0."""
    problem, columns, labels, _, _ = _ridge()
    method = Bambi(60, 12, _remember(), 0.6, Open(), directions, smoothing, cross_terms)
    result = run_vertical(problem, columns, labels, method, steps=steps, every=steps, seed=1)
    sums, squares = (jnp.concatenate([s.memory_x[part] for s in result.agents]) for part in (0, 1))
    mean = sums / steps
    return np.asarray(mean), np.asarray(squares / steps - mean**2)


def test_the_estimate_is_unbiased_with_cross_terms_and_biased_as_printed() -> None:
    _, _, _, exact, printed = _ridge()
    steps, directions = 40, 100
    for cross_terms, target in ((True, exact), (False, printed)):
        mean, variance = _estimates(directions, cross_terms, steps)
        error = np.sqrt(variance / steps)
        assert np.abs(mean - np.asarray(target)).max() < 5 * error.max() + 1e-3
        if not cross_terms:
            assert np.abs(mean - np.asarray(exact)).max() > 5 * error.max() + 1e-3
    assert np.linalg.norm(printed - exact) > 0.2 * np.linalg.norm(exact)


def test_what_smoothing_adds_is_in_proportion_to_it() -> None:
    """The same directions at several mu: what remains beside sampling error shrinks at least as fast as mu."""
    finest, fine, coarse = (_estimates(50, True, 4, smoothing)[0] for smoothing in (0.005, 0.05, 0.1))
    left, right = np.linalg.norm(coarse - finest), np.linalg.norm(fine - finest)
    assert left > 1e-3  # float32 rounds at about 1e-5 here
    assert right < 0.55 * left


def test_the_variance_falls_as_one_over_q() -> None:
    few, many = (_estimates(directions, True, 300)[1].sum() for directions in (1, 16))
    assert few / many == pytest.approx(16, rel=0.35)


def test_it_finds_the_coefficient_that_generalises() -> None:
    """Hyper-parameters: pure noise in party 1, so its penalty should rise above party 0's."""
    rng = np.random.default_rng(0)
    told, noise = rng.normal(size=(200, 2)), rng.normal(size=(200, 12))
    label = (told.sum(axis=1) + 0.5 * rng.normal(size=200) > 0).astype(int)
    columns = Columns([told, noise]).levels(upper=0.5)
    problem = hyper_parameters([2, 12], start=-3.0)
    method = Bambi(20, 100, 1.0, 0.5, Open(), directions=4)
    result = run_vertical(problem, columns, Labels(label, 2), method, steps=40)
    assert result.x[1] > result.x[0] + 0.3
    assert result.x[1] > -2.5


# Privacy.


@pytest.mark.parametrize(("steps", "inner_steps", "directions"), [(1, 1, 1), (50, 3, 1), (7, 20, 5)])
def test_memoised_labels_cost_the_same_whatever_is_done_with_them(
    steps: int, inner_steps: int, directions: int
) -> None:
    columns, _ = _table()
    method = replace(METHOD, inner_steps=inner_steps, directions=directions)
    report = account_vertical(_problem(columns), columns, method, steps=steps, classes=CLASSES)
    assert report.epsilon == 2.0
    assert report.design == "sound"
    assert report.published is None


def test_fresh_labels_cost_every_use_in_every_copy_at_both_levels() -> None:
    columns, _ = _table()

    def epsilon(gate: LabelGate, columns: Columns = columns, **changes: Any) -> float:
        method = replace(METHOD, labels=gate, **changes)
        return account_vertical(_problem(columns), columns, method, steps=2, classes=CLASSES).epsilon

    # lower: 24 rows in batches of 10, so 2 batches a pass; 6 batches are 3 passes; 3 copies; 2 unit shifts
    assert epsilon(Fresh(10.0)) == pytest.approx(3 * 3 * 2 / 10)
    assert epsilon(Fresh(10.0), directions=5) == pytest.approx(3 * 6 * 2 / 10)
    assert epsilon(Fresh(10.0), inner_steps=6) == pytest.approx(6 * 3 * 2 / 10)
    assert epsilon(Fresh(10.0, shared=True)) == pytest.approx(3 * 2 / 10)
    both = replace(columns, upper=columns.lower)  # one set for both levels: a use above is added
    assert epsilon(Fresh(10.0), both) == pytest.approx((3 * 3 + 1) * 2 / 10)
    assert epsilon(Printed(10.0)) == math.inf
    assert epsilon(Open()) == math.inf


def test_a_run_over_the_labels_budget_charges_nothing() -> None:
    columns, labels = _table()
    columns = replace(columns, upper=columns.lower)  # 3 x 3 uses below, one above, each 0.2
    store = Labels(labels._label, CLASSES, seed=0, budget=Budget(1.9, 0.0))
    with pytest.raises(BudgetExceeded, match="0 is spent already"):
        run_vertical(_problem(columns), columns, store, replace(METHOD, labels=Fresh(10.0)), steps=2)
    assert float(store.epsilon()) == 0.0


def test_the_run_charges_what_the_account_says_and_runs_add_up() -> None:
    columns, labels = _table()
    method = replace(METHOD, labels=Fresh(10.0))
    said = account_vertical(_problem(columns), columns, method, steps=2, classes=CLASSES)
    first = run_vertical(_problem(columns), columns, labels, method, steps=2)
    assert first.privacy.epsilon == pytest.approx(said.epsilon)
    assert first.privacy.published == 0.1
    second = run_vertical(_problem(columns), columns, labels, method, steps=2)
    assert second.privacy.epsilon == pytest.approx(2 * said.epsilon)


def test_after_the_draw_true_labels_are_not_read() -> None:
    columns, labels = _table()
    before = run_vertical(_problem(columns), columns, labels, METHOD, steps=3)
    labels._label[:] = (labels._label + 1) % CLASSES
    after = run_vertical(_problem(columns), columns, labels, METHOD, steps=3)
    assert (_flat(before.x, before.y)["all"] == _flat(after.x, after.y)["all"]).all()
    assert after.privacy.epsilon == 2.0


def test_only_labels_of_rows_that_are_used_are_drawn() -> None:
    columns, labels = _table()
    run_vertical(_problem(columns), columns.only(np.arange(30)), labels, METHOD, steps=1)
    assert (labels.memo(2.0, rows=[0]).observed[30:] == -1).all()


def test_stages_draw_every_label_once_and_ask_what_tells_most() -> None:
    columns, labels = _table(rows=120)
    method = replace(METHOD, rate_x=0.3, rate_y=1.0)
    problems = [hyper_representation([2, 2, 2], CLASSES, hidden=(4,), seed=seed) for seed in range(2)]
    found = run_in_stages(problems, columns, labels, method, steps=20, stages=2)
    assert found.privacy.epsilon == 2.0
    memo = labels.memo(2.0)
    assert float(labels.epsilon()) == 2.0
    assert (memo.observed >= 0).all()
    assert np.sum(memo.answers == CLASSES) >= 60
    assert np.sum(memo.answers < CLASSES) > 10
    each = [probabilities(p, r.x, r.y or (), columns) for p, r in zip(problems, found.members)]
    assert found.probabilities(columns) == pytest.approx((each[0] + each[1]) / 2)
    assert np.mean(found.probabilities(columns).argmax(axis=1) == labels._label) > 0.5
    with pytest.raises(ValueError, match="forward correction"):
        run_in_stages(problems, columns, labels, replace(METHOD, labels=Open()), steps=1)


def test_reports_say_what_is_not_covered() -> None:
    columns, _ = _table()
    made = (_problem(columns), columns)
    printed = account_vertical(*made, replace(METHOD, labels=Printed(1.0)), steps=1, classes=CLASSES)
    assert printed.design == "printed"
    assert printed.published == 1.0
    assert any("reveals" in caveat for caveat in printed.caveats)
    assert any("head outputs" in caveat for caveat in printed.caveats)
    assert any("public by declaration" in caveat for caveat in printed.caveats)
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
    columns, labels = _table()
    problem = _problem(columns)
    for arguments, message in [
        ((problem, columns, Labels([0, 1], 2), METHOD, 1), "2 labels for 40 rows"),
        ((_problem(_table(2)[0]), columns, labels, METHOD, 1), "2 parties and the table 3 blocks"),
        ((problem, columns, labels, replace(METHOD, batch=20), 1), "upper level has 16 rows"),
        ((problem, columns, labels, METHOD, 0), "steps is 0"),
        ((replace(problem, x0=problem.x0[::-1]), replace(columns, blocks=split_columns(np.ones((40, 7)), 3)), labels,
          METHOD, 1), "does not fit the columns"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            run_vertical(*arguments[:-1], steps=arguments[-1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="labels is of type ndarray: run_vertical takes a Labels"):
        run_vertical(problem, columns, np.zeros(40, int), METHOD, steps=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="active is 7"):
        run_vertical(problem, columns, labels, METHOD, steps=1, active=7)
    assert float(labels.epsilon()) == 0.0
