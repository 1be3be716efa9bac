"""Arrays that a problem or a method over columns brings along: made of the labels, they pass beside the label gate."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.table import table_account
from sottovoce.privacy.labels import Fresh, Memoised, Open
from sottovoce.problems.vertical import Vertical, logistic
from sottovoce.runtime.columns import ColumnsPlace, table_roots

RNG = np.random.default_rng(0)
BLOCKS = [RNG.normal(size=(60, 2)).astype(np.float32) for _ in range(2)]
TRUE = (RNG.random(60) < 0.3).astype(int)
BALANCED = jnp.asarray(len(TRUE) / (2 * np.bincount(TRUE)), jnp.float32)  # as class_weight="balanced" computes it
METHOD = sv.methods.Bambi(inner_steps=1, batch=20, rate_x=0.1, rate_y=0.1, labels=Memoised(0.1))
REFUSED = r"by-pass the privacy gate|calls back to Python|lives outside|rule of its own"


def vertical(**changed):
    given = {"embed": lambda x, a: a * jnp.exp(x), "head": lambda y, e: e @ y, "losses": logistic}
    return Vertical(**{**given, "x0": [jnp.zeros(())] * 2, "y0": [jnp.zeros((2, 1))] * 2, **changed})


def table():
    return sv.Table(sv.Columns(BLOCKS), sv.Labels(TRUE, classes=2))


def ruled(scores):
    """Losses whose derivative, by a rule of their own, holds the weights."""
    made = jax.custom_vjp(logistic)
    made.defvjp(lambda s: (logistic(s), s), lambda s, g: (jax.vjp(logistic, s)[1](g * BALANCED)[0],))
    return made(scores)


def called(scores):
    kept = jax.ShapeDtypeStruct((), jnp.float32)
    return logistic(scores) * jax.pure_callback(lambda: np.float32(TRUE.mean()), kept)


class Holder:
    """Keeps the weights, and is called."""

    def __init__(self):
        self.held = BALANCED

    def __call__(self, scores):
        return logistic(scores) * self.held


HIDDEN = {
    "closure": lambda s: logistic(s) * BALANCED,
    "default": lambda s, w=BALANCED: logistic(s) * w,
    "partial": partial(lambda w, s: logistic(s) * w, BALANCED),
    "attribute": Holder(),
    "list": lambda s: logistic(s) * jnp.array([0.7, 1.7]),
    "bytes": lambda s: logistic(s) * jnp.frombuffer(b"\x00\x00\x80?\x00\x00\x00@", jnp.float32),
    "static": lambda s: jax.jit(lambda s, w: logistic(s) * jnp.array(w), static_argnums=1)(s, (0.7, 1.7)),
    "rule": ruled,
    "callback": called,
    "print": lambda s: (jax.debug.print("{}", s), logistic(s))[1],
}


@pytest.mark.parametrize("way", HIDDEN)
def test_losses_over_columns_bring_no_array_along(way):
    """Stated: epsilon 0.1. The gradients of two data sets that differ in a label had no value in common."""
    with pytest.raises(ValueError, match=REFUSED):
        sv.account(METHOD, table(), steps=1, problem=vertical(losses=HIDDEN[way]))


@pytest.mark.parametrize(
    "changed",
    [
        {"embed": lambda x, a: a * x * BALANCED[0]},
        {"head": lambda y, e: e @ y * BALANCED[0]},
        {"head": [lambda y, e: e @ y, lambda y, e: e @ y * BALANCED[0]]},
        {"penalty": lambda x, y: jnp.sum(y) * BALANCED[0]},
        {"alter": lambda key, a: a + BALANCED},
        {"embed": lambda x, a: jax.pure_callback(lambda v: v, a, a, vmap_method="sequential") * x},
    ],
    ids=["embed", "head", "one-head", "penalty", "alter", "callback"],
)
def test_no_function_of_a_vertical_problem_brings_an_array_along(changed):
    with pytest.raises(ValueError, match=REFUSED):
        sv.run(vertical(**changed), table(), METHOD, steps=1)


@dataclass(frozen=True)
class _Informed(sv.methods.Bambi):
    """Starts the heads at the mean label."""

    def init(self, problem, party):
        state = super().init(problem, party)
        return state._replace(y=jax.tree.map(lambda leaf: leaf + BALANCED[0], state.y))


sv.methods.Method.registry.pop("_Informed", None)  # it is no method of the package


def test_a_method_over_columns_brings_no_array_along():
    with pytest.raises(ValueError, match=REFUSED):
        sv.run(vertical(), table(), _Informed(1, 20, 0.1, 0.1, Memoised(0.1)), steps=1)


def test_an_optimiser_over_columns_brings_no_array_along():
    import optax

    leaky = optax.GradientTransformation(
        lambda at: (), lambda g, s, at: (jax.tree.map(lambda g: g * BALANCED[0], g), s)
    )
    with pytest.raises(ValueError, match=REFUSED):
        sv.run(vertical(), table(), replace(METHOD, rate_y=leaky), steps=1)


def test_arrays_that_are_declared_public_and_plain_numbers_are_fine_and_the_statement_says_so():
    declared = vertical(losses=HIDDEN["closure"], public_constants=True)
    number = float(BALANCED[0])
    for problem in (declared, vertical(losses=lambda s: logistic(s) * number)):
        report = sv.account(METHOD, table(), steps=1, problem=problem)
        assert any("taken as public" in line and "plain numbers inside losses" in line for line in report.caveats)
        assert problem.public_constants == any("were declared public" in line for line in report.caveats)
    with pytest.raises(ValueError, match=REFUSED):  # what calls back can read anything, whatever is declared
        sv.account(METHOD, table(), steps=1, problem=vertical(losses=called, public_constants=True))


def test_labels_meet_the_loss_that_was_looked_at():
    """A loss that is plain when it is looked at, and another one later, is the plain one in a run."""
    factor = 1.0

    def changing(scores):
        return logistic(scores) * factor

    def ends(losses):
        nonlocal factor
        held = sv.Table(sv.Columns(BLOCKS), sv.Labels(TRUE, classes=2, seed=0))
        account = table_account(METHOD, held, vertical(losses=losses), steps=2, delta=0.0)
        place = ColumnsPlace(account, held, table_roots(account, held))
        factor = 100.0
        return place.advance(place.begin(), 0, 2)[0]

    for got, plain in zip(ends(changing), ends(lambda s: logistic(s) * 1.0), strict=True):
        np.testing.assert_array_equal(got, plain)


def test_gates_are_a_closed_list():
    """A gate that draws little and charges nothing."""
    with pytest.raises(TypeError, match="closed list"):

        class Cheap(Fresh):
            def per_use(self, classes, copies):
                return None

    gate = Fresh(1.0)
    object.__setattr__(gate, "per_use", lambda classes, copies: None)
    with pytest.raises(TypeError, match="per_use beside its fields"):
        sv.account(replace(METHOD, labels=gate), table(), steps=1, problem=vertical())


@dataclass(frozen=True)
class _Curious(sv.methods.Bambi):
    """Asks once more about one row, in every place of a batch: each answer has fresh noise."""

    @property
    def batches(self):
        return {"lower": self.inner_steps, "upper": 2}

    def step(self, problem, state, party):
        moved, rows = super().step(problem, state, party), 0 * party.rows["upper"][0]
        outputs = problem.outputs(party.index, moved.y, problem.embedded(party.index, moved.x, party.features(rows)))
        return moved._replace(y=moved.y + 0 * jnp.sum(party.ask("upper", rows, outputs)))


sv.methods.Method.registry.pop("_Curious", None)


def test_a_method_of_one_s_own_over_columns_has_labels_whose_one_draw_covers_everything():
    """More questions, all about one label, were stated at two thirds of what the plain method costs."""
    curious = _Curious(1, 20, 0.1, 0.1, Memoised(0.1))
    assert sv.account(curious, table(), steps=1, problem=vertical()).epsilon == 0.1
    for gate in (Fresh(10.0), Open()):
        with pytest.raises(TypeError, match=r"nobody counts .* give it labels=Memoised"):
            sv.account(replace(curious, labels=gate), table(), steps=1, problem=vertical())
