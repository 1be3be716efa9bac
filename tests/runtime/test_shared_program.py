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
from sottovoce.papers.bambi.method import Bambi
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


def quadratic(half=0.5, start=0.0, **more):
    return sv.Minimize(lambda x, r: half * jnp.sum((x - r) ** 2), x0=jnp.full(2, start), **more)


def descent(rate=0.1, noise=0.01, clip=5.0, sampling=sv.Poisson(10), kind="gaussian"):  # noqa: B008  (frozen)
    return sv.methods.DpSgd(rate=rate, gradient=sv.Release(clip, noise, kind), sampling=sampling)


def traced(problem=None, method=None, parts=PARTS, steps=4, network=RING):
    return account_of(method or descent(), parts, steps, network, problem=problem or quadratic()).trace


def scaled(factor):
    """A loss with the usual values and a derivative of its own, `factor` times the right one."""

    @jax.custom_jvp
    def square(x, r):
        return 0.5 * jnp.sum((x - r) ** 2)

    square.defjvp(lambda at, way: (square(*at), factor * (at[0] - at[1]) @ way[0]))
    return sv.Minimize(square, jnp.zeros(2))


def weighed(weights):
    table = jnp.asarray(weights)
    return sv.Minimize(lambda x, r: 0.5 * jnp.sum(table * (x - r) ** 2), jnp.zeros(2), public_constants=True)


def turned_around(x):
    return -x


class Level(sv.schedules.Schedule):
    """Prints nothing of itself, and equals all of its kind."""

    agents = None

    def __init__(self, value):
        self.value = value

    def __call__(self, t, agent=0):
        return self.value + 0.0 * t

    def __eq__(self, other):
        return isinstance(other, Level)

    def __hash__(self):
        return 0


OTHER = [part + 1 for part in PARTS]
STAR = sv.networks.star(3)
ALIKE = {  # these differ in nothing that is traced
    "the problem, written down again": lambda: (traced(), traced()),
    "other records": lambda: (traced(), traced(parts=OTHER)),
    "a rule, written down again": lambda: (traced(scaled(1.0)), traced(scaled(1.0))),
    "captured arrays with the same numbers": lambda: (traced(weighed([1.0, 2.0])), traced(weighed([1.0, 2.0]))),
}
NUMBERS = {  # these differ in what a shared program is given
    "a start": lambda: (traced(), traced(quadratic(start=1.0))),
    "a rate": lambda: (traced(), traced(method=descent(0.2))),
    "the scale of the noise": lambda: (traced(), traced(method=descent(noise=0.02))),
    "the scale of noise by a schedule of one's own": lambda: (
        traced(method=descent(noise=Level(0.1))),
        traced(method=descent(noise=Level(9.0))),
    ),
    "captured arrays": lambda: (traced(weighed([1.0, 2.0])), traced(weighed([1.0, 3.0]))),
    "the weights of a small network": lambda: (traced(), traced(network=STAR)),
}
APART = {  # each of these is another program
    "a number in a loss": lambda: (traced(), traced(quadratic(0.4))),
    "zero and minus zero": lambda: (traced(quadratic(0.0)), traced(quadratic(-0.0))),
    "a derivative": lambda: (traced(scaled(1.0)), traced(scaled(-5.0))),
    "a projection": lambda: (traced(), traced(quadratic(project_x=turned_around))),
    "a public term": lambda: (traced(), traced(quadratic(public=lambda x: jnp.sum(x)))),
    "each agent's own start": lambda: (traced(), traced(quadratic(spread=0.1))),
    "a clip": lambda: (traced(), traced(method=descent(clip=4.0))),
    "a kind of noise": lambda: (traced(), traced(method=descent(kind="laplace"))),
    "noise and none": lambda: (traced(), traced(method=descent(noise=0.0))),
    "the form of noise": lambda: (traced(), traced(method=descent(noise=sv.schedules.Decay(0.01, 0.5)))),
    "the form of a rate": lambda: (traced(), traced(method=descent(sv.schedules.Decay(0.1, 0.5)))),
    "a batch": lambda: (traced(), traced(method=descent(sampling=sv.Poisson(11)))),
    "a sampling": lambda: (traced(), traced(method=descent(sampling=sv.FixedSize(10)))),
    "cut batches": lambda: (traced(), traced(method=descent(sampling=sv.Poisson(10, cut=True)))),
    "sizes": lambda: (traced(), traced(parts=[PARTS[0][:-1], *PARTS[1:]])),
    "links and none": lambda: (traced(), traced(network=sv.networks.isolated(3))),
}


@pytest.mark.parametrize("what", ALIKE)
def test_the_same_is_traced_and_compiled_once(what):
    one, other = ALIKE[what]()
    assert one is other


@pytest.mark.parametrize("what", NUMBERS)
def test_numbers_are_another_program_unless_it_is_shared(what):
    one, other = NUMBERS[what]()
    assert one is not other
    assert shared(one)[0] is shared(other)[0]


@pytest.mark.parametrize("what", APART)
def test_another_program_is_never_shared(what):
    one, other = APART[what]()
    assert one is not other
    assert shared(one)[0] is not shared(other)[0]


def test_a_shared_program_draws_each_run_s_own_noise_and_mixes_by_its_own_network():
    wide = [np.zeros((40, 500), np.float32)] * 3
    problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(500))
    before, found = array.compiled.cache_info().misses, {}
    settings = [(0.001, RING), (1.0, STAR)]
    for share in (True, False):
        for noise, network in settings:
            how = {"network": network, "steps": 1, "seed": 0, "performance": sv.Performance(share=share)}
            found[share, noise] = sv.run(problem, wide, descent(1.0, noise, 1.0, sv.Full()), **how).agents.x
        if share:
            assert array.compiled.cache_info().misses == before + 1
    for noise, _ in settings:
        np.testing.assert_allclose(found[True, noise], found[False, noise], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(np.std(found[True, 1.0][1]), np.sqrt(np.sum(STAR.mix.toarray()[1] ** 2)), rtol=0.15)


def test_a_release_whose_noise_is_not_given_leaves_nothing_finite():
    blank = shared(traced())[0]
    left = [line.params["release"] for line in blank.step.jaxpr.eqns if "release" in line.params]
    assert [float(release.scale(0, 0)) for release in left] == [np.inf]
    assert (blank.charges, blank.known.population.names) == ((), ("0", "1", "2"))


def test_tables_with_other_derivatives_or_gates_that_only_look_equal_do_not_share_a_program():
    """A rule of `custom_vjp` is what the server computes with, and does not show in the values of a loss."""

    def turned(factor):
        losses = jax.custom_vjp(logistic)
        losses.defvjp(lambda s: (logistic(s), s), lambda s, g: (factor * jax.vjp(logistic, s)[1](g)[0],))
        return losses

    def quiet(held):
        """A gate with the equality of a dataclass, which holds more than it looks at; an account refuses it."""
        gate = Fresh(1.0)
        object.__setattr__(gate, "held", held)
        return gate

    def spec(factor, labels=Memoised(1.0)):  # noqa: B008  (a frozen value)
        starts = [jnp.zeros(())], [jnp.zeros((2, 1))]
        problem = Vertical(lambda x, a: a * jnp.exp(x), lambda y, a: a @ y, turned(factor), *starts)
        method = Bambi(inner_steps=2, batch=10, rate_x=0.1, rate_y=0.1, labels=labels)
        traced = trace_table(method, problem, Columns([np.ones((60, 2))]), [0], steps=1, classes=2)
        return columns._shared(columns.TableSpec(traced, method.labels))[0]

    assert spec(1.0) is spec(1.0)
    assert spec(1.0) is not spec(-5.0)
    assert spec(1.0, quiet(2.0)) is not spec(1.0, quiet(9.0))


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
