"""BAMBI's convergence theory: its lemmas on problems with closed forms, and where they do not hold."""

import math

import numpy as np
import pytest

from sottovoce.papers.bambi import theory as bambi
from sottovoce.papers.bambi.theory import Constants, Setting

PLAIN = Constants(l_f0=1.0, l_f1=1.0, l_g1=1.0, l_g2=0.0, mu_g=1.0)


def setting(N: int = 1, K: int = 1, Q: int = 10**9) -> Setting:
    return Setting(N=N, B=1, Q=Q, p=1, q=1, K=K)


def test_lemma_1_holds_for_small_steps_only() -> None:
    rng, curvature = np.random.default_rng(0), np.array([1.0, 10.0])
    given = Constants(1.0, 1.0, l_g1=10.0, l_g2=0.0, mu_g=1.0, var_g1=2 * 0.25)

    def measured(beta: float, N: int) -> float:
        y = np.full((20_000, 2), 1.0)
        for _ in range(N):
            y = y - beta * (curvature * y + 0.5 * rng.normal(size=y.shape))
        return float(np.mean(np.sum(y**2, axis=1)))

    for beta in (0.1, 0.03):
        assert measured(beta, 5) <= bambi.lemma_1_lower(given, setting(N=5), beta, 2.0)
    assert measured(1 / (2 * given.mu_g), 5) > 100 * bambi.lemma_1_lower(given, setting(N=5), 0.5, 2.0)


def test_the_printed_drift_loses_a_factor_two() -> None:
    # y*(x) = x, y = x + 1, and x moves away by alpha h: the distance is exactly 1 + alpha h.
    alpha, h = 0.1, 2.0
    truth = (1 + alpha * h) ** 2
    assert truth > bambi.lemma_1_drift(PLAIN, setting(), alpha, 1.0, h**2, printed=True)
    for h in (0.1, 1.0, 2.0, 10.0):
        assert (1 + alpha * h) ** 2 <= bambi.lemma_1_drift(PLAIN, setting(), alpha, 1.0, h**2)


def test_lemma_2_holds_with_the_smoothness_of_f_and_not_with_less() -> None:
    # f = (y-1)^2/2, g = (y-x)^2/2: F = (x-1)^2/2 has smoothness 1. The Jacobian after N steps is 1 - (1-beta)^N.
    rng = np.random.default_rng(1)
    for _ in range(200):
        (x, y0, alpha, beta), N = rng.uniform(0.01, 0.9, 4), int(rng.integers(1, 9))
        left = (1 - beta) ** N
        y, J = x + left * (y0 - x), 1 - left
        step = J * (y - 1)
        rise = ((x - alpha * step - 1) ** 2 - (x - 1) ** 2) / 2
        bound = bambi.lemma_2(PLAIN, setting(N), alpha, (x - 1) ** 2, step**2, (y - x) ** 2, left**2)
        assert rise <= bound + 1e-9
    # g = (y - 3x)^2 / 2: F = (3x-1)^2/2 has smoothness 9 though grad f has 1. Exact y and Jacobian.
    alpha, gradient = 0.1, -3.0
    rise = ((3 * (0 - alpha * gradient) - 1) ** 2 - 1) / 2
    steep = Constants(1.0, 1.0, l_g1=10.0, l_g2=0.0, mu_g=1.0)
    assert rise > bambi.lemma_2(steep, setting(), alpha, gradient**2, gradient**2, 0.0, 0.0)


def test_lemma_7_bounds_the_bias_of_n_steps() -> None:
    for N, beta in ((1, 0.3), (10, 0.1)):
        assert (1 - beta) ** (2 * N) <= bambi.lemma_7(PLAIN, setting(N), beta).C2  # |J^N - 1|^2
    N = bambi.lower_steps(PLAIN, beta=0.05, error=1e-3)
    assert bambi.lemma_7(PLAIN, setting(N), 0.05).C2 <= 1e-3 < bambi.lemma_7(PLAIN, setting(N - 1), 0.05).C2


def test_theorem_1_is_false_for_one_lower_step() -> None:
    # Same problem, exact gradients, no smoothing: x0 = y0 = 0, V^0 = 1/2. The average of |grad F|^2 stays near 1/32.
    K = 100_000
    at = setting(N=1, K=K)
    steps = bambi.theorem_1_steps(PLAIN, at)
    x = y = total = 0.0
    for _ in range(K):
        y += steps.beta * (x - y)
        x -= steps.alpha * steps.beta * (y - 1)  # the Jacobian of one step is beta
        total += (x - 1) ** 2
    bound = bambi.theorem_1_bound(PLAIN, at, start=0.5)
    assert total / K > 5 * bound.total
    assert bound.terms["smoothing"] == bound.terms["lower batches"] == 0.0


def test_step_sizes_are_those_of_theorem_1_and_fail_its_own_condition() -> None:
    given, at = Constants(2.0, 1.5, 3.0, 0.5, 1.2, var_f=0.1), Setting(N=7, B=5, Q=2, p=4, q=3, K=400, mu=0.01)
    steps, known = bambi.theorem_1_steps(given, at), bambi.estimator(given, at)
    l_y, l_yx = 3 / 1.2, (0.5 + 0.5 * 2.5) / 1.2 + 3 * (0.5 + 0.5 * 2.5) / 1.44
    assert (given.l_y, given.l_yx) == (l_y, pytest.approx(l_yx))
    delta2 = 0.01**2 * ((1 + l_y) * (0.5 / 1.2 + 1.5 * 3 / 1.44)) ** 2 * 3 * 100 / 4
    sigma2 = 2 * 0.02 + 2 * (4 + 0.02) * (12 * delta2 + 4 * 16 / 2 * l_y**2) + 4 * (l_y**2 + delta2) * 0.02
    assert (known.delta2, known.sigma2) == (pytest.approx(delta2), pytest.approx(sigma2))
    assert known.C_f2 == pytest.approx((2 + l_y * 1.5) ** 2 + delta2 + sigma2)
    assert steps.alpha_1 == pytest.approx(1.44 / (2 * 1.5 * 1.44 + 36 + l_yx * 1.44))
    tail = 1 / 2.4 + 4.2 / 2.88 + 3 / 2.4
    assert steps.alpha_3 == pytest.approx(1.2 / (8 * 4 * 0.25 * tail * (1 + l_y)))
    assert steps.alpha == min(steps.alpha_1, steps.alpha_3, 1 / 20)
    for K in (10**4, 10**8):
        assert [c.holds for c in bambi.theorem_1_steps(PLAIN, setting(N=3, K=K)).conditions] == [False, True]


def test_remark_1_asks_for_less_than_one_sample() -> None:
    for K in (4, 10_000):
        assert 1 / math.sqrt(K) < 1 <= bambi.lower_samples(K)
    noisy = Constants(1.0, 1.0, 1.0, 0.0, 1.0, var_g1=1.0)
    last = []
    for K in (10**4, 10**6):
        at = Setting(N=bambi.lower_samples(K), B=1, Q=10**9, p=1, q=1, K=K)
        last.append(bambi.theorem_1_bound(noisy, at, 1.0).terms["lower batches"] * math.sqrt(K))
    assert last[1] == pytest.approx(last[0], rel=0.05)  # of order 1 / sqrt(K)


def test_the_cost_counts_lower_steps() -> None:
    p, q = 50, 70
    for N in (1, 29, 30):
        found = bambi.cost(N, B=3, Q=1, p=p, q=q)
        assert (found.bambi < found.second_order) == (p * q / (p + q) > N)
