"""Batches of a fixed size: a draw that misses the record takes another, or the same one twice (a01, a15)."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, laplace, norm

import sottovoce as sv
from sottovoce.privacy import accountant, pld
from sottovoce.privacy.accountant import Mechanism, RedrawAmplification, SubsetAmplification, epsilon
from tests.marks import few


def exact_delta(eps, contributions, neighbour, batch, scale, noise, draws=itertools.product):
    """Integrate the two densities of the sum over all draws of a tiny case; both directions."""
    span = 14 * scale + batch
    x = np.linspace(-span, span, 40_001)

    def density(values):
        every = draws(values, repeat=batch) if draws is itertools.product else draws(values, batch)
        sums, counts = np.unique([sum(c) for c in every], return_counts=True)
        return sum(w * noise.pdf(x, loc=s, scale=scale) for s, w in zip(sums, counts / counts.sum()))

    p, q = density(contributions), density(neighbour)
    step = x[1] - x[0]
    return max(float(np.maximum(a - math.exp(eps) * b, 0).sum() * step) for a, b in ((p, q), (q, p)))


def neighbours(n, adjacency):
    """The record at an end of its range, against zero or the other end; the others wherever hurts most."""
    gone = 0.0 if adjacency == "zero-out" else -1.0
    for others in ((-1.0,) * (n - 1), (0.0,) * (n - 1), (1.0,) * (n - 1), tuple((-1.0) ** i for i in range(n - 1))):
        yield (1.0, *others), (gone, *others)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("by", [RedrawAmplification, SubsetAmplification])
@pytest.mark.parametrize(("n", "batch", "scale"), [(2, 2, 1.0), (3, 1, 0.5), (4, 3, 2.0), (6, 2, 0.7), (5, 5, 4.0)])
@pytest.mark.parametrize("delta", few([1e-5, 1e-2], [1e-5]))
def test_no_tiny_case_has_a_larger_delta_than_stated(adjacency, kind, by, n, batch, scale, delta):
    mechanism = Mechanism(gaussian=1 / scale**2, amplification=by(n, batch))
    if kind == "laplace":
        mechanism = Mechanism(laplace=(1 / scale,), amplification=by(n, batch))
    stated = float(epsilon([(mechanism, 1)], delta, adjacency))
    noise = norm if kind == "gaussian" else laplace
    draws = itertools.product if by is RedrawAmplification else itertools.combinations
    worst = max(exact_delta(stated, one, other, batch, scale, noise, draws) for one, other in neighbours(n, adjacency))
    assert worst <= delta * (1 + 1e-3)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_the_integral_would_notice_the_old_pair(adjacency):
    """The mixture against N(0), which was charged once, is below the truth where others stand opposite."""
    draws = accountant._draws(RedrawAmplification(6, 2), 1e-12)
    old = pld.epsilon([(pld.Shifted(1 / 0.7, over=draws), 1)], 1e-5)
    worst = max(exact_delta(old, one, other, 2, 0.7, norm) for one, other in neighbours(6, adjacency))
    assert worst > 2e-5


@pytest.mark.parametrize(
    ("n", "batch", "noise", "steps", "zero_out", "replace_one"),
    [
        (1000, 10, 0.6, 20, 13.389, 33.513),
        (2, 2, 1.0, 1, 9.340, 22.797),
        pytest.param(5000, 100, 4.0, 50, 0.4337, 0.4337, marks=pytest.mark.slow),
    ],
)
def test_golden_values(n, batch, noise, steps, zero_out, replace_one):
    items = [(Mechanism(gaussian=1 / noise**2, amplification=RedrawAmplification(n, batch)), steps)]
    assert epsilon(items, 1e-5, "zero-out") == pytest.approx(zero_out, rel=1e-3)
    assert epsilon(items, 1e-5, "replace-one") == pytest.approx(replace_one, rel=1e-3)


@pytest.mark.parametrize(
    ("n", "batch", "noise", "steps"),
    [
        (200, 5, 0.6, 1),
        pytest.param(1000, 10, 0.6, 20, marks=pytest.mark.slow),
        pytest.param(1000, 50, 0.8, 50, marks=pytest.mark.slow),
        pytest.param(5000, 50, 0.5, 100, marks=pytest.mark.slow),
    ],
)
def test_many_steps_state_at_least_what_two_attacks_show(n, batch, noise, steps):
    """Others at -C. Zero-out: the record at C or 0; replace-one: at C or -C, where the base does not move."""
    method = sv.methods.DpSgd(
        rate=0.1, gradient=sv.Release(clip=1.0, noise=noise / batch), sampling=sv.WithReplacement(batch)
    )
    counts = np.arange(12)
    draws = tuple(zip(counts.tolist(), binom.pmf(counts, batch, 1 / n).tolist()))
    over = tuple((2 * k, w) for k, w in draws)
    for adjacency, pair in {
        "zero-out": pld.Shifted(1 / noise, over=over, under=draws),
        "replace-one": pld.Shifted(2 / noise, over=draws),
    }.items():
        stated = sv.account(method, sv.Population([n]), steps=steps, adjacency=adjacency).epsilon
        assert stated >= 0.999 * pld.epsilon([(pair, steps)], 1e-5)


def test_laplace_batches_have_a_pure_bound_for_a_record_in_every_draw():
    by = RedrawAmplification(10, 2)
    assert epsilon([(Mechanism(laplace=(0.1,), amplification=by), 1)], 0.0, "zero-out") == pytest.approx(
        math.log1p((1 - 0.9**2) * math.expm1(0.4))
    )
    assert epsilon([(Mechanism(laplace=(5.0,), amplification=by), 1)], 0.0, "zero-out") == pytest.approx(10.0)


def test_a_long_list_of_draws_is_cut_and_paid_for():
    by = RedrawAmplification(100, 100)
    kept = accountant._draws(by, 1e-9)
    assert len(kept) < 20
    assert 0 < 1 - sum(w for _, w in kept) <= 1e-9
