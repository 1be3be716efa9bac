"""DPMixSGD's convergence theorem: its bounds against the inequality that they are derived from."""

import itertools
import math

import numpy as np
import pytest

from sottovoce.papers.dpmixsgd import theory as dpmixsgd
from sottovoce.papers.dpmixsgd.theory import Start, theorem_1, theorem_1_bound
from sottovoce.privacy.release import Release


def inequality_92(chosen, start: Start, kappa, L, lam, m, noise, dims) -> float:
    """The right side of (92), which is (109) too, with (93), (94) and (99) to (104) for its expectations."""
    T, b0, bx, by = chosen.steps, chosen.first_batch, chosen.beta_x, chosen.beta_y
    x, y, s2 = chosen.rate_x, chosen.rate_y, start.variance
    nx, ny = (deviation**2 * d / m for deviation, d in zip(noise, dims))
    weight = 21 * kappa**2 + 12 / (m * bx) + 240 * kappa**2 / (m * by)
    v0, u0 = (2 * m * lam**2 * s2 / b0 + 2 * lam**2 * m * g for g in (start.gradient_x, start.gradient_y))
    consensus = 16 * lam**2 / (1 - lam**2) ** 3 * (x**2 * v0 + y**2 * u0)
    consensus += 64 * m * lam**4 * (bx * x**2 + by * y**2) * s2 / ((1 - lam**2) ** 4 * b0)
    consensus += 192 * m * lam**4 * (bx**2 * x**2 + by**2 * y**2) * s2 * T / (1 - lam**2) ** 4
    spread = 256 * L**2 * lam**4 / (1 - lam**2) ** 3 * weight
    return (
        2 * start.drop / (x * T)
        + 8 * kappa * L * start.lag / (T * y)
        + 8 * s2 / (m * b0 * T) * (1 / bx + 20 * kappa**2 / by)
        + 8 * s2 / m * (bx + 20 * kappa**2 * by)
        + 4 * L**2 / (m * T) * weight * consensus
        + 8 * nx * (1 + (1 - bx) ** 2)
        + 160 * kappa**2 * ny * (1 + (1 - by) ** 2)
        + spread * (x**2 * 2 * nx + y**2 * 2 * ny)
    )


GRID = list(itertools.product((1.0, 3.0), (0.5, 4.0), (0.0, 0.5, 0.95), (1, 5, 50)))
STARTS = [Start(1, 0, 0, 0, 0), Start(0, 1, 0, 0, 0), Start(0, 0, 1, 1, 0), Start(0, 0, 0, 0, 1)]


@pytest.mark.parametrize("start", STARTS)
def test_bound_105_follows_from_inequality_92(start: Start) -> None:
    for kappa, L, lam, m in GRID:
        for accuracy in (0.3, 0.03):
            chosen = theorem_1(kappa, L, lam, m, accuracy=accuracy)
            assert all(c.holds for c in dpmixsgd.theorem_1_conditions(chosen, kappa, L, lam, m))
            for noise in ((0.0, 0.0), (0.3, 0.0), (0.0, 0.3)):
                derived = inequality_92(chosen, start, kappa, L, lam, m, noise, (2, 3))
                bound = theorem_1_bound(chosen, start, kappa, L, m, noise, (2, 3)).total
                assert derived <= bound * (1 + 1e-9), (kappa, L, lam, m, accuracy, noise)


@pytest.mark.parametrize("start", STARTS)
def test_bound_110_follows_with_the_epsilon_that_makes_both_parts_agree(start: Start) -> None:
    for kappa, L, lam, m in GRID:
        T0 = 10.0 * m**2
        chosen = theorem_1(kappa, L, lam, m, T0=T0)
        assert chosen.accuracy == pytest.approx((m * T0) ** (-1 / 3))
        for noise in ((0.0, 0.0), (0.3, 0.0), (0.0, 0.3)):
            derived = inequality_92(chosen, start, kappa, L, lam, m, noise, (2, 3))
            bound = theorem_1_bound(chosen, start, kappa, L, m, noise, (2, 3), T0=T0).total
            assert derived <= bound * (1 + 1e-9), (kappa, L, lam, m, noise)


def test_the_start_term_is_exact_and_the_others_are_not_loose_by_choice() -> None:
    chosen = theorem_1(2.0, 3.0, 0.4, 3, accuracy=0.1)
    start = Start(1, 0, 0, 0, 0)
    derived = inequality_92(chosen, start, 2.0, 3.0, 0.4, 3, (0, 0), (1, 1))
    assert derived == pytest.approx(theorem_1_bound(chosen, start, 2.0, 3.0, 3).total, rel=1e-4)


def test_condition_19_suffices_for_many_agents_only() -> None:
    # (20) writes epsilon^-6 for T^3. With m epsilon < 1 Theorem 1's T grows like epsilon^-3, so (19) falls behind.
    def ratio(accuracy: float, m: int) -> float:
        needed = dpmixsgd.theta_needed(accuracy, m, 1.0, (3, 3), 1e-5, kappa=1.0, spectral=0.5)
        return needed / dpmixsgd.theta_19(accuracy, m, 1.0, 3, 1e-5)

    accuracies = np.array([1e-2, 1e-3])
    few = [ratio(a, 1) for a in accuracies]
    assert math.log10(few[1] / few[0]) == pytest.approx(1.5, abs=0.01)  # (m epsilon)^(-3/2)
    many = [ratio(a, 10**6) / math.sqrt(2 * 10**6 * a**2 + 342 / 1e6) for a in accuracies]  # the factor of (105)
    assert many[1] == pytest.approx(many[0], rel=0.01)


def test_the_storm_estimator_may_exceed_the_printed_bound() -> None:
    beta, estimate = 0.3, 1.0
    for _ in range(200):  # (9) with a gradient 1 at the new point and -1 at the old one, a new record in every step
        estimate = 1.0 + (1 - beta) * (estimate - (-1.0))
    assert estimate == pytest.approx(dpmixsgd.estimator_size(1.0, beta))
    assert estimate > dpmixsgd.estimator_size(1.0, beta, printed=True)


def test_the_published_epsilon_takes_the_smallest_noise_of_all_agents() -> None:
    """The theorem has one sigma. Agent 0 may be the loudest."""
    loud, quiet = Release(1.0, (40.0, 10.0, 20.0)), Release(1.0, 10.0)
    wanted = dpmixsgd.printed_epsilon([quiet, quiet], steps=9, agents=3, delta=1e-5)
    assert dpmixsgd.printed_epsilon([loud, loud], steps=9, agents=3, delta=1e-5) == pytest.approx(wanted)


def test_one_of_two_parts_is_asked_for() -> None:
    with pytest.raises(ValueError, match="either T0 or accuracy"):
        theorem_1(1.0, 1.0, 0.5, 4)
    with pytest.raises(ValueError, match="accuracy is 2"):
        theorem_1(1.0, 1.0, 0.5, 4, accuracy=2.0)
