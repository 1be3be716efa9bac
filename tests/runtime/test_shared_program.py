"""Runs that differ in numbers alone share one program, and compute what programs of their own compute."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.accounting.table import trace_table
from sottovoce.data.columns import Columns
from sottovoce.methods.bambi import Bambi
from sottovoce.privacy.labels import Fresh, Memoised
from sottovoce.problems.tasks.vertical import hyper_representation
from sottovoce.problems.vertical import Vertical, logistic
from sottovoce.runtime import array, columns
from sottovoce.runtime.shared_program import shared

PARTS = [np.random.default_rng(i).normal(i, 1, (30, 2)).astype(np.float32) for i in range(3)]
RING = sv.networks.ring(3)
MINIMIZE = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), x0=jnp.zeros(2))
BILEVEL = sv.Bilevel(
    lambda x, y, r: 0.5 * jnp.sum((y - r) ** 2),
    lambda x, y, r: 0.5 * jnp.sum((y - x * r) ** 2),
    jnp.ones(2),
    jnp.zeros(2),
)


def sgd(rate, clip=5.0):
    return sv.methods.DpSgd(
        rate=sv.schedules.Decay(rate, 0.4), gradient=sv.Release(clip, 0.01), sampling=sv.Poisson(10)
    )


def looped(step):
    return replace(next(iter(sv.methods.MaDsbo.examples().values())), step_x=step, step_y=2 * step)


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "make"), [(MINIMIZE, sgd), (BILEVEL, looped)])
def test_other_numbers_take_the_same_program_to_their_own_result(problem, make):
    before = array.compiled.cache_info().misses
    how = {"network": RING, "steps": 6, "every": 6, "seed": 3}
    fast = sv.Performance(share=True)
    found = [sv.run(problem, PARTS, make(rate), performance=fast, **how) for rate in (0.1, 0.3)]
    assert array.compiled.cache_info().misses == before + 1
    for rate, ours in zip((0.1, 0.3), found):
        alone = sv.run(problem, PARTS, make(rate), **how)
        for a, b in zip(jax.tree.leaves((ours.x, ours.y)), jax.tree.leaves((alone.x, alone.y))):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
        assert ours.privacy == alone.privacy
    assert not np.allclose(found[0].x, found[1].x, rtol=1e-2)


def test_another_clip_is_another_program():
    forms = [
        shared(account_of(sgd(0.1, clip), PARTS, 4, RING, problem=MINIMIZE).trace)[0] for clip in (1, 2, 1)
    ]
    assert forms[0] is forms[2]
    assert forms[0] is not forms[1]


def test_tables_with_other_derivatives_or_gates_that_only_look_equal_do_not_share_a_program():
    """A rule of `custom_vjp` is what the server computes with, and does not show in the values of a loss."""

    def turned(factor):
        losses = jax.custom_vjp(logistic)
        losses.defvjp(lambda s: (logistic(s), s), lambda s, g: (factor * jax.vjp(logistic, s)[1](g)[0],))
        return losses

    class Quiet(Fresh):
        """Inherits the equality of a dataclass, and holds more than it looks at."""

        def __init__(self, held):
            super().__init__(1.0)
            object.__setattr__(self, "held", held)

    def spec(factor, labels=Memoised(1.0)):  # noqa: B008  (a frozen value)
        starts = [jnp.zeros(())], [jnp.zeros((2, 1))]
        problem = Vertical(lambda x, a: a * jnp.exp(x), lambda y, a: a @ y, turned(factor), *starts)
        method = Bambi(inner_steps=2, batch=10, rate_x=0.1, rate_y=0.1, labels=labels)
        traced = trace_table(method, problem, Columns([np.ones((60, 2))]), [0], steps=1, classes=2)
        return columns._shared(columns.TableSpec(traced, problem, method.labels))[0]

    assert spec(1.0) is spec(1.0)
    assert spec(1.0) is not spec(-5.0)
    assert spec(1.0, Quiet(2.0)) is not spec(1.0, Quiet(9.0))


@pytest.mark.slow
def test_tables_with_other_rates_and_other_starts_share_a_program():
    rng = np.random.default_rng(0)
    blocks, labels = [rng.normal(size=(60, 2)) for _ in range(2)], rng.integers(0, 2, 60)
    before, found = columns.compiled.cache_info().misses, {}
    for share in (True, False):
        for rate in (0.05, 0.2):
            table = sv.Table(Columns(blocks), sv.Labels(labels, classes=2, seed=0))
            method = Bambi(inner_steps=2, batch=10, rate_x=rate, rate_y=0.1, labels=Memoised(1.0))
            problem = hyper_representation([2, 2], 2, [3], seed=int(100 * rate))
            how = {"steps": 4, "every": 4, "performance": sv.Performance(share=share)}
            found[share, rate] = sv.run(problem, table, method, **how)
        if share:
            assert columns.compiled.cache_info().misses == before + 1
    for rate in (0.05, 0.2):
        for a, b in zip(jax.tree.leaves(found[True, rate].x), jax.tree.leaves(found[False, rate].x)):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
