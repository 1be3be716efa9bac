"""LDP-DSBO's corollaries against sums, a measured Lipschitz constant, and its own table."""

import math

import numpy as np
import pytest
from scipy.special import zeta

from sottovoce.papers.ldp_dsbo import budget
from sottovoce.papers.ldp_dsbo.theory import L1Constants, conditions
from sottovoce.privacy import published


@pytest.mark.parametrize("kappa", [0.015, 0.2, 0.39])
def test_corollary_4_7_meets_its_budget_and_the_conditions_of_theorem_4_1(kappa: float) -> None:
    v, s = budget.nonconvex_exponents(kappa)
    assert all(c.holds for c in conditions(v, s, "nonconvex"))
    sigma = budget.noise_for_budget(0.7, v, s, wbar=0.6)
    assert budget.budget_187(v, s, sigma, 0.6) == pytest.approx(0.7)
    spent = [published.ldp_dsbo(T, v, s, sigma, 0.6) for T in (10, 10_000, math.inf)]
    assert spent == sorted(spent)
    assert 0.9 * 0.7 < spent[2] <= 0.7  # (187) replaces a sum by an integral


def test_the_budget_of_h_2_is_not_1_over_kappa() -> None:
    v, s = budget.nonconvex_exponents(0.015)
    truth = published.ldp_dsbo(math.inf, v, s, 1.0, 0.6)
    assert pytest.approx(66.67, abs=0.01) == 1 / 0.015
    assert truth == pytest.approx(16_447, abs=1)
    assert truth > 200 * 66.67


def test_the_printed_sensitivity_forgets_the_size_of_gradients() -> None:
    v, w = 0.64, 0.6
    for size, holds in ((0.1, True), (100.0, False)):  # 2 c_l lambda_0 in (171), with L_l1 = 0
        sensitivity, below = 0.0, []
        for t in range(50):
            below.append(sensitivity <= budget.sensitivity_182(v, w, t))
            sensitivity = (1 - w) * sensitivity + size / (t + 1) ** (1 + v)
        assert all(below) == holds


def test_complexities_are_those_of_corollary_4_3() -> None:
    cases = {
        "strongly convex": ((0.66, 0.64, 0.43), (0.65, 0.63, 0.42), 2.5),
        "convex": ((0.77, 0.75, 0.5), (0.76, 0.74, 0.49), 4.35),
        "nonconvex": ((0.615, 0.60375, 0.4), (0.61125, 0.6, 0.398125), 2.6),
    }
    for case, (v, s, power) in cases.items():
        found = budget.complexity(v, s, case, p=7, q=4)
        assert found.exponent == pytest.approx(power, abs=0.005)
        assert found.cost(0.1) == pytest.approx(7 * 10**found.exponent)


def test_lemma_b_1_bounds_the_measured_smoothness_and_scales_with_the_upper_loss() -> None:
    # f = c sin(y), g = mu/2 y^2 - a sin(x) y: y* = (a/mu) sin(x), F = c sin((a/mu) sin x). On |y| <= a/mu:
    a, mu = 0.8, 1.0
    x = np.linspace(-math.pi, math.pi, 20_001)
    y = a / mu * np.sin(x)
    second = np.gradient(np.cos(y) * a / mu * np.cos(x), x)  # F'' for c = 1
    Hessian = [np.linalg.norm([[a * np.sin(t) * a / mu, -a * np.cos(t)], [-a * np.cos(t), mu]], 2) for t in x[::200]]
    constants = {"L_g1": float(np.max(Hessian)), "L_g2": 2 * a, "mu_g": mu}
    for c in (0.01, 1.0):
        bound = budget.hyper_smoothness(L_f0=c, L_f1=c, **constants)
        assert c * np.abs(second).max() <= bound
        assert bound == pytest.approx(c * budget.hyper_smoothness(L_f0=1.0, L_f1=1.0, **constants))
    printed = [budget.hyper_smoothness(L_f0=c, L_f1=c, printed=True, **constants) for c in (1.0, 2.0)]
    assert printed[1] != pytest.approx(2 * printed[0])  # twice f, but not twice the printed constant


def test_rates_of_the_parts_agree_with_theorem_4_1() -> None:
    v, s = (0.66, 0.64, 0.43), (0.65, 0.63, 0.42)
    parts = budget.part_rates(v, s)
    # Theorem 4.1 (i)'s rate is the worst of the x noise and what x hears from y and z.
    assert min(2 * s[0] - v[0], parts["y lag"], parts["z lag"]) == pytest.approx(0.4)
    assert parts["sum"] <= min(parts.values())


def test_table_1_prints_budgets_that_its_own_formula_does_not_give() -> None:
    for s in (0.3, 0.9):
        rows = {row.algorithm: row for row in budget.table_1(s)}
        for row in rows.values():
            if row.algorithm != "LDP-DSBO":
                # (193): the budget after T iterations grows like T^s. Count it, and read the exponent off two errors.
                T = [round(delta**-row.iterations) for delta in (1e-2, 5e-3)]
                sums = [float(np.sum(np.arange(2.0, t + 2) ** -(1 - s))) for t in T]
                assert all(total <= budget.budget_194(t, s) for total, t in zip(sums, T))
                assert math.log2(sums[1] / sums[0]) == pytest.approx(row.derived, rel=0.15)
                assert row.derived < row.printed
        assert rows["LDP-DSBO"].iterations < 2.6


def test_the_budgets_of_192_tend_to_infinity_only_because_the_inner_loop_grows() -> None:
    v, s = 0.87, 0.81
    for decays, outer in (("both", 1 + v - s), ("inner", 1 + v)):
        limit = (zeta(outer) - 1) * sum((k + 1) ** s for k in range(1, 11))  # K = 10, as in the experiments
        fixed = [budget.budget_192(T, 10, v, s, decays) for T in (10, 1000, 100_000)]
        assert fixed == sorted(fixed)
        assert fixed[-1] < limit
        grown = [budget.budget_192(1000, K, v, s, decays) for K in (1000, 2000)]
        assert grown[1] / grown[0] == pytest.approx(2 ** (1 + s), rel=0.01)  # (log T)^(1+s), if K = log T


def test_costs_of_table_1_order_methods_by_what_they_compute() -> None:
    names = [row.algorithm for row in budget.table_1(0.6)]
    small, large = ({name: budget.cost_in_table_1(name, 0.1, p, p) for name in names} for p in (100, 1000))
    matrices = {"BSA", "VRDSBO", "DSBO-JHIP", "GBDSBO"}
    for name in names:  # ten times the unknowns: a hundred times the cost where whole matrices are computed
        assert large[name] / small[name] == pytest.approx(100 if name in matrices else 10, rel=0.01)
    rows = {row.algorithm: row.iterations for row in budget.table_1(0.6)}
    for name in ("SPDB", "VRDSBO", "DSBO-JHIP"):
        grown = [budget.cost_in_table_1(name, delta, 5, 3) / (1 if name == "VRDSBO" else math.log(1 / delta))
                 for delta in (0.1, 0.01)]  # fmt: skip
        assert math.log10(grown[1] / grown[0]) == pytest.approx(rows[name])


def test_proposition_g_1_balances_its_terms() -> None:
    found = budget.single_level(epsilon=0.5, n=400, d=9, radius=2.0)
    assert pytest.approx(found.loss) == 2.0 * 3 / 200 + 2.0 / 20
    assert found.steps**-0.25 == pytest.approx(2.0 * 3 / 200)


def test_the_convex_proof_uses_a_condition_that_the_theorem_does_not_have() -> None:
    v, s = (0.77, 0.75, 0.5), (0.76, 0.74, 0.49)  # Corollary 4.3's own example
    assert all(c.holds for c in conditions(v, s, "convex"))
    assert not 2 * s[0] > v[2] + v[1] + 2 - 2 * v[0]  # line 1385, "given in the theorem statement"
    assert 1 - v[0] < min(s[0], s[1])  # what is concluded from it holds all the same


def test_equation_34_is_false_for_unlike_agents() -> None:
    # g_i = (y - c_i)^2 / 2: the average's minimiser is the mean of c, where g_i's gradient stays mean(c) - c_i.
    c = np.array([-1.0, 2.0])
    gradients = c.mean() - c
    assert (np.abs(gradients) > 1).all()  # (34), line 626, bounds them by a multiple of 1 / (t + 1)


def test_the_printed_penalty_of_mnist_has_no_minimum() -> None:
    # Section 5.1: cross entropy + (1 / cp) sum e^lambda_s w_rs. Equal weights of all classes leave the first term.
    rng = np.random.default_rng(0)
    rows, label, tuned = rng.random((20, 6)), rng.integers(0, 3, 20), rng.normal(size=6)

    def lower(w: np.ndarray, power: int) -> float:
        scores = rows @ w
        fit = np.mean(np.log(np.exp(scores).sum(1)) - scores[np.arange(20), label])
        return float(fit + np.mean(np.exp(tuned)[:, None] * w**power))

    values = {power: [lower(np.full((6, 3), -size), power) for size in (0.0, 10.0, 100.0)] for power in (1, 2)}
    assert values[1][0] > values[1][1] > values[1][2]
    assert values[1][2] < -50
    assert values[2][0] < values[2][1] < values[2][2]  # with a square, as in our tasks


def test_constants_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"H1 is 2.0 and L_l1 is 1.0"):
        L1Constants(c_h=1.0, c_l=1.0, L_h1=1.0, L_l1=1.0, L_l2=0.0, H1=2.0)
    with pytest.raises(ValueError, match="not negative"):
        L1Constants(c_h=-1.0, c_l=1.0, L_h1=1.0, L_l1=1.0, L_l2=0.0, H1=1.0)
