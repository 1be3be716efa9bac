"""Gradient tracking's lemmas: bound (9) against runs, Lemma 3's search, and the paper's slips."""

import numpy as np
import pytest

from sottovoce.networks import directed
from sottovoce.papers.gradient_tracking import convergence as tracking_convergence
from sottovoce.papers.gradient_tracking import lemmas as tracking_lemmas
from sottovoce.papers.gradient_tracking import theory as gradient_tracking
from sottovoce.papers.gradient_tracking.lemmas import Problem, disturbance, error_curve, lemma_3, spectral_radius
from sottovoce.papers.gradient_tracking.theory import S1, S2, PrintedTracking, Rates
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import FixedSize

RING = [(i, (i + 1) % 4) for i in range(4)]
NETWORK = directed(RING, RING)


def runs(network, h, c, steps: Rates, K: int, noise: tuple[float, float], copies: int) -> np.ndarray:
    """Errors V_0 to V_K of (7), (8) on f_i = h_i |x - c_i|^2 / 2, averaged over copies with fresh Laplace noise."""
    rng, n, d = np.random.default_rng(0), *c.shape
    first, second = tracking_lemmas.laplacians(network)
    pull, push = tracking_lemmas.spreads(network, steps.alpha, steps.beta)
    best = (h[:, None] * c).sum(0) / h.sum()
    x = np.zeros((copies, n, d))
    g = h[:, None] * (x - c)
    y, errors = g, []
    for _ in range(K + 1):
        middle = np.einsum("i,rid->rd", pull.weights, x) / n
        mean = np.einsum("i,rid->rd", np.ones(n), y) / n
        apart, lost = x - middle[:, None], y - push.weights[:, None] * mean[:, None]
        gap = h.mean() / 2 * np.sum((middle - best) ** 2, axis=1)
        errors.append([np.sum(apart**2) / copies, np.sum(lost**2) / copies, gap.mean()])
        zeta, eta = (rng.laplace(scale=s, size=x.shape) if s else 0 * x for s in noise)
        moved = x - steps.alpha * first @ (x + zeta) - steps.gamma * y
        y = y - steps.beta * second @ (y + eta) + h[:, None] * (moved - x)
        x = moved
    return np.array(errors)


@pytest.mark.parametrize("noise", [(0.0, 0.0), (0.3, 0.2)])
def test_bound_9_lies_above_runs_on_a_quadratic(noise) -> None:
    h, c = np.array([0.5, 1.0, 0.8, 0.7]), np.random.default_rng(1).normal(size=(4, 3))
    L, mu = h.max(), h.mean()
    steps, K = Rates(1e-3, 2e-3, 1e-4), 1500
    errors = runs(NETWORK, h, c, steps, K, noise, copies=60)
    problem = Problem(L, mu, d=3, noise_x=noise[0], noise_y=noise[1])
    bound = error_curve(NETWORK, problem, steps, errors[0], 20_000)
    assert (errors <= bound[: K + 1] * (1 + 1e-9) + 1e-12).all()
    assert noise[0] > 0 or bound[-1, 2] < 0.6 * bound[0, 2]  # without noise the bound falls: it says something


def test_the_printed_disturbance_is_below_what_noise_adds_in_one_step() -> None:
    # From exact agreement at the optimum, with zero trackers, one step adds the noise of L_1 zeta and nothing else.
    steps, noise = Rates(0.1, 0.1, 0.05), 0.5
    errors = runs(NETWORK, np.ones(4), np.zeros((4, 2)), steps, 1, (noise, 0.0), copies=40_000)
    problem = Problem(1.0, 1.0, d=2, noise_x=noise)
    printed = disturbance(NETWORK, problem, 0.1, 0.1, 0.05, printed=True)
    mended = disturbance(NETWORK, problem, 0.1, 0.1, 0.05)
    assert errors[0].max() == 0.0
    assert errors[1, 0] > 1.5 * printed[0]
    assert errors[1, 0] == pytest.approx(mended[0], rel=0.03)  # with equality
    errors = runs(NETWORK, np.ones(4), np.zeros((4, 2)), steps, 1, (0.0, noise), copies=40_000)
    mended = disturbance(NETWORK, Problem(1.0, 1.0, d=2, noise_y=noise), 0.1, 0.1, 0.05)
    assert errors[1, 1] == pytest.approx(mended[1], rel=0.03)


def test_lemma_2_fails_where_the_two_weights_do_not_meet() -> None:
    # A star that is heard by all, and told by all: v_1 = v_2 = n e_0, so the average moves n times as fast.
    star = directed([(0, i) for i in range(1, 10)], [(i, 0) for i in range(1, 10)])
    gamma = 0.3
    pull, push = tracking_lemmas.spreads(star, 0.1, 0.1)
    speed = float(pull.weights @ push.weights) / 10
    after = (1 - gamma * speed) ** 2  # the gap of |x|^2 / 2 after a step from agreement, with y = v_2 ybar
    assert after > tracking_lemmas.lemma_2(star, 0.1, 0.1, gamma, L=1.0, mu=1.0)[2, 2]
    verdict = tracking_convergence.convergence(S2(50), star, L=0.1, mu=0.1, p_zeta=0.9, p_eta=0.9)
    assert "v_1'v_2 = n, tacit in (45) and (47)" in verdict.failing


def test_lemma_3_finds_the_first_k_1_and_appendix_d_means_the_smallest() -> None:
    L, mu = 1.0, 0.2
    found = lemma_3(NETWORK, L, mu)
    K = round(1 / found.gamma)
    sizes = [(k**-0.8, k**-0.7, 1 / k) for k in (K - 1, K)]
    before, after = (spectral_radius(tracking_lemmas.lemma_2(NETWORK, *s, L, mu)) for s in sizes)
    assert before >= 1 > after
    pull, push = tracking_lemmas.spreads(NETWORK, *sizes[1][:2])
    assert after > 1 - max(pull.rate, push.rate, mu) / K  # what Appendix D prints as an upper bound
    with pytest.raises(ValueError, match="no K_1 up to 8"):
        lemma_3(NETWORK, L, mu, most=8)


def test_remark_13_is_reversed() -> None:
    def epsilon(scale: float) -> float | None:
        noise = Release(0.5, scale, "laplace")
        given = PrintedTracking(Rates(0.5, 0.5, 0.1), noise, noise, FixedSize(10), "box")
        return gradient_tracking.printed_epsilon(given, NETWORK, {"records": [50] * 4}, steps=11)

    assert epsilon(2.0) < epsilon(1.0) < epsilon(0.5)  # smaller noise, larger epsilon


def test_the_trade_off_lists_both_theorems() -> None:
    scheme = S1(K=2000)
    both = tracking_convergence.trade_off(scheme, NETWORK, L=1.0, mu=1.0, p_zeta=0.1, p_eta=0.1, records=12_000)
    apart = [
        tracking_convergence.convergence(scheme, NETWORK, L=1.0, mu=1.0, p_zeta=0.1, p_eta=0.1),
        tracking_convergence.privacy(scheme, NETWORK, p_zeta=0.1, p_eta=0.1, records=12_000),
    ]
    assert set(both.findings) == {finding for verdict in apart for finding in verdict.findings}
    assert len(both.findings) == len(set(both.findings))
    assert both.failing == apart[0].failing + apart[1].failing


def test_the_printed_complexity_of_s2_takes_the_rate_for_a_constant() -> None:
    for phi in (0.3, 0.02):
        N = -np.log(phi)
        assert tracking_convergence.s2_samples(phi) == pytest.approx(np.log10(-(phi ** np.log(phi)) * np.log(phi)))
        assert tracking_convergence.s2_samples(phi, base=np.exp(-1)) == pytest.approx(np.log10(N * phi**-N))
    samples = tracking_convergence.s2_samples
    more = [samples(phi, base=1 - phi) / samples(phi) for phi in (0.1, 0.01)]
    assert more[1] > 9 * more[0]  # the exponent itself is larger by 1 / phi
