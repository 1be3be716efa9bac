"""DP bilevel's lemmas: closed forms on quadratics, runs against Proposition 3.6, and the paper's slips."""

import math

import numpy as np
import pytest
from scipy.stats import chi2

from sottovoce.papers.dp_bilevel import lemmas
from sottovoce.papers.dp_bilevel.lemmas import Smoothness
from sottovoce.papers.dp_bilevel.theory import CONSTANT, Conditioning, printed_epsilon
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full
from sottovoce.schedules import Decay


def clip(u):
    return np.clip(u, -1.0, 1.0)


def test_the_gradient_mapping_is_the_minimiser_and_does_not_expand() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        x, v, w = clip(rng.normal(size=3)), rng.normal(size=3) * 3, rng.normal(size=3) * 3
        mapped = lemmas.gradient_mapping(x, v, 0.4, clip)
        u = x - 0.4 * mapped  # must minimise <v, u> + |u - x|^2 / (2 step) on the box: no other point is lower
        others = rng.uniform(-1, 1, size=(200, 3))
        at_u, elsewhere = (at @ v + np.sum((at - x) ** 2, axis=-1) / 0.8 for at in (u, others))
        assert at_u <= elsewhere.min() + 1e-12
        assert np.linalg.norm(mapped - lemmas.gradient_mapping(x, w, 0.4, clip)) <= np.linalg.norm(v - w) + 1e-12
    assert lemmas.gradient_mapping({"a": 1.0}, {"a": 3.0}, 0.1)["a"] == pytest.approx(3.0)  # free: the gradient


def test_the_penalised_solution_and_value_are_as_near_as_lemma_3_3_says() -> None:
    # g = mu/2 (y - x)^2, f = L0 sqrt(1 + y^2): |f'| < L0. The minimiser of f + lambda g is found by bisection.
    mu, L0, x = 0.5, 2.0, 40.0
    given = Smoothness(L0_f=L0, L1_f=L0, L0_g=10.0, L1_g=mu, L2_g=0.0, mu=mu)
    for penalty in (10.0, 100.0):
        low, high = 0.0, x
        for _ in range(200):
            y = (low + high) / 2
            low, high = (y, high) if L0 * y / math.sqrt(1 + y * y) + penalty * mu * (y - x) < 0 else (low, y)
        gap = lemmas.lemma_3_3(given, penalty)
        assert 0.99 * gap.solution < x - y <= gap.solution
        upper, at_y = (L0 * math.sqrt(1 + at * at) for at in (x, y))
        assert 0.49 * gap.value < upper - (at_y + penalty * mu / 2 * (y - x) ** 2) <= gap.value
    with pytest.raises(ValueError, match=r"2 L1_f / mu"):
        lemmas.lemma_3_3(given, 1.0)


def test_lemma_3_4_holds_with_equality_for_linear_gradients() -> None:
    # grad_x f = L1_f y, grad_x g = L1_g y: errors of both inner solutions add up when they point apart.
    given, penalty, off, off_penalised = Smoothness(1.0, 3.0, 1.0, 2.0, 0.0, 0.5), 7.0, 0.2, 0.3
    truth = 3.0 * 1.0 + penalty * 2.0 * (1.0 - 0.5)
    wrong = 3.0 * (1.0 + off_penalised) + penalty * 2.0 * ((1.0 + off_penalised) - (0.5 - off))
    assert wrong - truth == pytest.approx(lemmas.lemma_3_4(given, penalty, off, off_penalised))


def test_the_constant_of_theorem_3_1_is_that_of_lemma_3_5() -> None:
    unit = Smoothness(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    sensitivity = 2 * lemmas.lemma_3_5(unit, printed=True)
    assert 2 * 18 * sensitivity**2 == CONSTANT
    # One record's term at exact solutions, f = L0 x, g = L1 (x + y)^2 / 2 (mu = L1): never above our bound.
    assert lemmas.lemma_3_5(unit) == 2.0 <= lemmas.lemma_3_5(unit, printed=True)


def test_proposition_3_6_against_runs() -> None:
    # h = sum of sin(x) + x^2/8 on the box [-1, 1]^d is not convex; |h''| <= 1.25.
    d, L, gamma, rng = 3, 1.25, 0.1, np.random.default_rng(1)

    def gradient(x):
        return np.cos(x) + x / 4

    loop = lemmas.proposition_3_6(L, drop=2.0 * d * math.sin(1.0), beta=0.05, sigma=0.02, d=d, gamma=gamma)
    for _ in range(20):
        x, best, out = clip(rng.normal(size=d)), math.inf, None
        bias = rng.normal(size=d)
        bias *= 0.05 / np.linalg.norm(bias)
        for _ in range(loop.steps):
            moved = clip(x - loop.step * (gradient(x) + bias + 0.02 * rng.normal(size=d)))
            if np.linalg.norm(moved - x) < best:
                best, out = np.linalg.norm(moved - x), x
            x = moved
        assert np.linalg.norm(lemmas.gradient_mapping(out, gradient(out), loop.step, clip)) <= loop.alpha
    assert loop.steps >= 64 * L * 2 * d * math.sin(1.0) / (3 * loop.alpha**2) > loop.steps - 1
    noise = 0.02 * (math.sqrt(d) + math.sqrt(2 * math.log(loop.steps / gamma)))
    assert loop.alpha == pytest.approx(8 * max(0.05, noise))


def test_the_printed_bound_on_the_noise_is_false_in_low_dimensions_and_ours_holds() -> None:
    for d in (1, 2, 5, 50):
        for chance in (1e-2, 1e-6):
            assert chi2.sf(lemmas.gaussian_norm(d, 1, chance) ** 2, d) <= chance
    assert chi2.sf(1 * math.log(1e6), 1) > 100 * 1e-6  # line 727: |nu|^2 <= d log(T / gamma) with a chance of gamma / T


def test_a_mean_of_b_vectors_deviates_by_one_over_the_root_of_b() -> None:
    # Lemma A.8 (line 827) says M / b, up to logarithms. Signs of length M = 1: the deviation times b grows like
    # sqrt(b).
    rng = np.random.default_rng(2)
    times_b = [b * np.mean(np.abs(rng.choice([-1.0, 1.0], size=(4000, b)).mean(axis=1))) for b in (16, 256)]
    assert times_b[1] / times_b[0] == pytest.approx(4.0, rel=0.1)


def test_the_printed_epsilon_looks_at_every_step_of_the_noise() -> None:
    given = (Conditioning(1.0, 10.0), Full(), {"records": [10_000]}, 100, 1e-5)

    def epsilon(noise) -> float:
        return printed_epsilon(given[0], Release(1.0, noise), *given[1:])

    assert epsilon(Decay(60.0, 0.5)) == pytest.approx(epsilon(6.0))  # the last of 100 steps has 60 / sqrt(100)
    assert printed_epsilon(given[0], Release(1.0, 60.0), *given[1:]) < epsilon(Decay(60.0, 0.5))
