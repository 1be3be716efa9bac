"""Records that a problem or a method brings along beside the gate: refused, or listed as taken as public."""

from array import array
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import sottovoce as sv

DATA = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
SECRET = DATA.mean(axis=0)
SETTINGS = {"rate": 1.0, "gradient": sv.Release(clip=1e-6, noise=1e-3), "sampling": sv.Full()}


def square(x, r):
    return 0.5 * jnp.sum((x - r) ** 2)


def backward():
    """A backward pass that hands out the mean."""

    @jax.custom_vjp
    def anchor(x):
        return jnp.sum(x) * 0.0

    held = jnp.asarray(SECRET)
    anchor.defvjp(lambda x: (anchor(x), None), lambda _, g: (-g * held,))
    return anchor


def forward():
    """A tangent that hands out the mean."""

    @jax.custom_jvp
    def anchor(x):
        return jnp.sum(x) * 0.0

    held = jnp.asarray(SECRET)
    anchor.defjvp(lambda at, along: (anchor(at[0]), -jnp.dot(held, along[0])))
    return anchor


def scalars():
    """The mean as three arrays of no dimension."""
    held = [jnp.float32(value) for value in SECRET]
    return lambda x: -(x[0] * held[0] + x[1] * held[1] + x[2] * held[2])


def called_back(x):
    return jax.pure_callback(lambda v: np.asarray(v) + SECRET, x, x, vmap_method="sequential")


@dataclass(frozen=True)
class _Informed(sv.methods.DpSgd):
    """Starts at the mean of the data."""

    def init(self, problem, agent):
        state = super().init(problem, agent)
        return state._replace(x=state.x + jnp.asarray(SECRET))


@pytest.mark.parametrize(
    "problem",
    [
        lambda: sv.Minimize(square, jnp.zeros(3), public=lambda x: -jnp.dot(x, jnp.asarray(SECRET))),
        lambda: sv.Minimize(square, jnp.zeros(3), public=backward()),
        lambda: sv.Minimize(square, jnp.zeros(3), public=forward()),
        lambda: sv.Minimize(square, jnp.zeros(3), public=scalars()),
        lambda: sv.Minimize(square, jnp.zeros(3), project_x=called_back),
    ],
)
def test_public_functions_bring_no_data_along(problem):
    """Attack a09: the gate's clip was 1e-6, and the model moved by the exact mean."""
    with pytest.raises(ValueError, match=r"by-pass the privacy gate|calls back to Python"):
        sv.run(problem(), [DATA], sv.methods.DpSgd(**SETTINGS), steps=1)


def test_a_method_brings_no_data_along():
    """Attack a09: `init` of a subclass closed over the mean."""
    with pytest.raises(ValueError, match="by-pass the privacy gate"):
        sv.run(sv.Minimize(square, jnp.zeros(3)), [DATA], _Informed(**SETTINGS), steps=1)


def test_a_loss_that_standardises_by_the_mean_of_the_data_is_refused():
    """Attack a24: one record moved the sum by 1998 clips where 2 were charged."""
    records = np.zeros(1000, np.float32)
    mean = jnp.mean(jnp.asarray(records))
    problem = sv.Minimize(lambda x, r: x * jnp.sign(r - mean + 1e-3), x0=jnp.zeros(()))
    with pytest.raises(ValueError, match="by-pass the privacy gate"):
        sv.run(problem, [records], sv.methods.DpSgd(**SETTINGS), steps=1)


def held_as(kind):
    """The data, as libraries hold them."""
    if kind in ("frame", "series"):
        frame = pytest.importorskip("pandas").DataFrame(DATA)
        return frame if kind == "frame" else frame[0]
    return {"sparse": sp.csr_array(DATA), "view": memoryview(DATA), "buffer": array("f", DATA[:, 0].tolist())}[kind]


@pytest.mark.parametrize("kind", ["frame", "series", "sparse", "view", "buffer"])
def test_a_table_of_another_library_is_an_array_too(kind):
    """Each passed: its mean went into the model as a plain number that the loss had computed from all records."""
    table = held_as(kind)

    def loss(x, r):
        mean = (table.toarray() if sp.issparse(table) else np.asarray(table)).mean()
        return square(x, r) + jnp.sum(x) * float(mean)

    with pytest.raises(ValueError, match=r"loss closes over an array of shape .* by-pass the privacy gate \(table\)"):
        sv.run(sv.Minimize(loss, jnp.zeros(3)), [DATA], sv.methods.DpSgd(**SETTINGS), steps=1)


def test_plain_numbers_and_figures_of_evaluate_are_listed():
    """Attacks a09 and a24 with Python numbers, which cannot be told from settings: the statement says so."""
    numbers, one = SECRET.tolist(), float(SECRET[0])
    problem = sv.Minimize(
        lambda x, r: square(x, r) * one, jnp.zeros(3), public=lambda x: -(x[0] * numbers[0] + x[1] * numbers[1])
    )
    report = sv.run(problem, [DATA], sv.methods.DpSgd(**SETTINGS), steps=1, evaluate=lambda x: {"x": x[0]}).privacy
    assert any("figures of `evaluate` are computed without noise" in caveat for caveat in report.caveats)
    assert any("plain numbers inside losses" in caveat and "public" in caveat for caveat in report.caveats)
