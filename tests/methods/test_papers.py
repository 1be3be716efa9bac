"""The papers' own configurations: printed numbers against the formulas, and the account that stands beside them."""

import ast
import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.experiments import build
from sottovoce.experiments.schema import MethodTable
from sottovoce.methods import DpBilevel, DpGradientTracking, DpMixSgd
from sottovoce.papers.dp_bilevel.theory import Facts, paper_numbers
from sottovoce.papers.dpmixsgd import theory as dpmixsgd
from sottovoce.papers.gradient_tracking.theory import S1, S2
from sottovoce.privacy.sampling import FixedSize, Full, WithReplacement

FACTS = Facts(dx=3, dy=4, ell=2.0, kappa=3.0, drop=0.5)


THEORY = {"theory", "budget", "constants", "convergence", "lemmas", "plan", "bound"}


def test_theory_knows_no_method() -> None:
    allowed = {"privacy", "problems", "networks", "data", "schedules", "trees", "naming", *THEORY}
    files = [file for file in (Path(sv.__file__).parent / "papers").rglob("*.py") if file.stem in THEORY]
    assert len(files) == 12
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            ours = [name.split(".")[1:] for name in names if name and name.startswith("sottovoce.")]
            held = {path[-1] if path[0] == "papers" else path[0] for path in ours}
            assert held <= allowed, f"{file} imports {held - allowed}"


class TestDpBilevel:
    def test_numbers_are_those_of_the_theorems(self) -> None:
        n, epsilon, delta, T = 500, 0.8, 1e-6, 12
        numbers = paper_numbers(FACTS, n, epsilon, delta, steps=T)
        share = epsilon / math.sqrt(18 * T)  # Algorithm 1, line 3
        assert numbers.y.steps == numbers.penalised.steps == n**2
        assert numbers.y.release.scale(0) == pytest.approx(2.0 / share)  # L / epsilon'
        assert numbers.penalised.release.scale(0) == pytest.approx(4.0 / share)  # 2 penalty L / epsilon', over penalty
        assert [numbers.y.rate(t) for t in (0, 1)] == pytest.approx([1.5, 0.75])  # 1 / (mu (t+1)), mu = ell / kappa
        assert numbers.penalised.rate(0) == pytest.approx(3.0)  # half the convexity
        sigma = math.sqrt(3600 * 2.0**2 * 3.0**2 * T * math.log(T / delta)) / (epsilon * n)
        assert numbers.release_x.scale(0) == pytest.approx(sigma)
        reach = 3.0 / (share * n)
        expected = [1.0]
        while len(expected) < len(numbers.y.radii):
            expected.append(math.sqrt(expected[-1] * reach) + reach * math.sqrt(4))
        assert numbers.y.radii == pytest.approx(tuple(expected))

    def test_the_printed_epsilon_is_the_target_and_the_account_tells_the_true_one(self) -> None:
        method = DpBilevel.paper(FACTS, n=2000, epsilon=0.5, delta=1e-5, steps=10, inner_steps=20)
        report = sv.account(method, sv.Population([2000]), steps=10, delta=1e-5)
        assert report.published == pytest.approx(0.5)
        inner = [(solve.clip, float(solve.scale(0)), 20 * rounds) for solve, rounds in (
            (method.release_y, len(method.inner.radii)),
            (method.release_penalised, len(method.inner_penalised.radii)),
        )]  # fmt: skip
        x = method.release_x
        truth = sv.privacy.sound.dp_bilevel(10, 2000, x.clip, float(x.scale(0)), inner, 1e-5)
        assert report.epsilon == pytest.approx(float(truth), rel=1e-6)
        assert report.epsilon > 0.5  # the factors that the paper hides are not 1

    @pytest.mark.slow
    def test_it_runs_as_printed(self) -> None:
        problem = sv.Bilevel(
            upper=lambda x, y, r: 0.5 * jnp.sum((y - r) ** 2),
            lower=lambda x, y, r: 0.5 * jnp.sum((y - x - r) ** 2),
            x0=jnp.zeros(2),
            y0=jnp.zeros(2),
        )
        records = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
        for batches, kind in ((None, Full), ((4, 8), WithReplacement)):
            method = DpBilevel.paper(FACTS, n=40, epsilon=5.0, delta=1e-3, steps=3, inner_steps=4, batches=batches)
            assert (method.solve, method.output, method.warm) == ("apart", "smallest step", False)
            assert method.inner.averaged
            assert isinstance(method.sampling, kind)
            result = sv.run(problem, [records], method, steps=3)
            assert np.isfinite(result.x).all()

    def test_a_run_file_can_ask_for_it(self) -> None:
        table = MethodTable(
            name="DpBilevel.paper", facts={"dx": 3, "dy": 4}, n=100, epsilon=1.0, delta=1e-5, steps=5, inner_steps=5
        )
        assert build.method(table).design_name == "sound"


class TestDpMixSgd:
    def test_the_noise_is_equation_18(self) -> None:
        T, m = 50, 8
        method = DpMixSgd.paper(theta=0.5, gamma=1e-4, steps=T - 1, agents=m, clip=2.0)
        spread = 8 * T * (T + 1) * (2 * T + 1) / 3 + 4 * T
        sigma = 2.0 * math.sqrt(spread * math.log(1e4)) / (2 * 0.5 * math.sqrt(m))
        assert method.release_x.scale(0) == method.release_y.scale(0) == pytest.approx(sigma)
        assert method.sampling == FixedSize(20)
        report = sv.account(method, sv.Population([300] * m), steps=T - 1, network=sv.networks.ring(m), delta=1e-4)
        assert report.published == pytest.approx(0.5)
        assert math.isfinite(report.epsilon)
        assert any("cut to the records" in caveat for caveat in report.caveats)

    def test_both_parts_of_theorem_1_agree(self) -> None:
        chosen, m, T0, kappa = dpmixsgd.theorem_1(kappa=2.0, L=3.0, spectral=0.4, agents=3, T0=500), 3, 500, 2.0
        accuracy = 20 * chosen.beta_x / min(1.0, m * (m * T0) ** (-1 / 3))  # beta_x = epsilon min(1, m epsilon) / 20
        assert accuracy == pytest.approx((m * T0) ** (-1 / 3))
        assert chosen.steps == math.ceil(1500 * kappa**3 / (0.6**2 * accuracy * chosen.beta_x) - 1e-6)
        with pytest.raises(ValueError, match=r"10 m\^2"):
            dpmixsgd.theorem_1(kappa=2.0, L=3.0, spectral=0.4, agents=30, T0=500)


class TestDpGradientTracking:
    @pytest.mark.parametrize(("scheme", "p", "noise"), [(S1(2000), 0.1, 5**0.1), (S2(2000), 0.9996, 0.9996**2000)])
    def test_step_sizes_batch_and_noise_are_the_schemes(self, scheme, p, noise) -> None:
        method = DpGradientTracking.paper(scheme, p_zeta=p, p_eta=p, clip=1.0)
        assert (method.design, method.form, method.sampling) == ("printed", "box", FixedSize(scheme.batch))
        assert method.state.mechanism == method.gradient.mechanism == "laplace"
        assert method.state.scale(4) == method.gradient.scale(4) == pytest.approx(noise)

    def test_the_published_budget_stands_beside(self) -> None:
        cycle = [(0, 1), (1, 2), (2, 0)]
        method = DpGradientTracking.paper(S2(50), p_zeta=0.99, p_eta=0.98, clip=0.5)
        report = sv.account(
            method, sv.Population([30] * 3), steps=51, network=sv.networks.directed(cycle, cycle), delta=0.0
        )
        wanted = sv.privacy.published.gradient_tracking(50, 1.0, 2, 0.1, 0.01, 0.1, ("S2", 0.99), ("S2", 0.98))
        assert report.published == pytest.approx(wanted)
        assert report.epsilon == math.inf  # without a Lipschitz constant nothing is proved
