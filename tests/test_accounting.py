"""`account` and `calibrate`: what a method's own code is charged."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.data.parts import Levels, Part
from sottovoce.methods.base import Method
from sottovoce.privacy import accountant
from sottovoce.privacy.accountant import Mechanism
from sottovoce.privacy.sampling import FixedSize, Full, OnePass, Poisson, Sampling
from sottovoce.schedules import Linear, Schedule


def sgd(noise: float = 0.1, sampling: Sampling | None = None, **options: Any) -> sv.methods.DpSgd:
    return sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, noise, **options), sampling=sampling or Full())


@dataclass(frozen=True)
class _TwoReleases(Method):
    """One batch, two releases."""

    first: sv.Release
    second: sv.Release
    sampling: Sampling
    shared: bool = True

    def init(self, problem, agent):
        return {"x": problem.x0}

    def step(self, problem, state, agent):
        batch = agent.sample(self.sampling)
        a = agent.release(self.first, problem.loss, at=state["x"], batch=batch)
        if not self.shared:
            batch = agent.sample(self.sampling)
        b = agent.release(self.second, problem.loss, at=state["x"], batch=batch)
        return {"x": a + b}


@dataclass(frozen=True)
class _Looped(Method):
    gradient: sv.Release
    sampling: Sampling
    inside: bool = True

    def init(self, problem, agent):
        batch = agent.sample(self.sampling)
        return {"x": agent.release(self.gradient, problem.loss, at=problem.x0, batch=batch)}

    def step(self, problem, state, agent):
        outer = agent.sample(self.sampling)

        def body(x, agent):
            batch = agent.sample(self.sampling) if self.inside else outer
            return agent.release(self.gradient, problem.loss, at=x, batch=batch)

        return {"x": agent.loop(3, body, state["x"])}


def test_poisson_gaussian_matches_the_oracle():
    method = sgd(noise=1.5 / 40, sampling=Poisson(40))
    report = sv.account(method, sv.Population([1000]), steps=2250)
    assert report.epsilon == pytest.approx(6.7688, abs=1e-3)
    assert report.adjacency == "zero-out"


def test_gradient_release_worked_value():
    """privacy.md 3.5: K = 500 (501 releases), m = 100 of 1000, clip 1, noise .1."""
    report = sv.account(sgd(0.1, Poisson(100)), sv.Population([1000]), steps=501)
    assert report.epsilon == pytest.approx(0.828943, abs=1e-3)
    fixed = sv.account(sgd(0.1, FixedSize(100)), sv.Population([1000]), steps=501)
    assert fixed.epsilon == pytest.approx(1.91594, abs=1e-3)
    assert fixed.adjacency == "replace-one"


def test_full_batches_are_exact_gdp():
    report = sv.account(sgd(0.1), sv.Population([50]), steps=9)
    mu = 3 * (2 / 50) / 0.1
    assert report.epsilon == pytest.approx(float(sv.privacy.sound.gdp_epsilon(mu, 1e-5)), abs=1e-9)
    assert report.accountant == "exact GDP"


def test_laplace_full_batches_are_the_pure_sum_at_delta_zero():
    report = sv.account(sgd(0.5, mechanism="laplace"), sv.Population([10]), steps=7, delta=0.0)
    assert report.epsilon == pytest.approx(7 * (2 / 10) / 0.5, rel=1e-12)


def test_what_an_attacker_gains_is_that_at_the_worst_party_even_if_its_epsilon_is_smaller():
    """A sampled party has a large epsilon from rare events alone; one that takes all its records loses more often."""
    noise, sizes = (0.0055, 0.17), (10_000, 50)

    def stated(*parties: int) -> sv.PrivacyReport:
        release = sv.Release(1.0, tuple(noise[party] for party in parties))
        method = sv.methods.DpSgd(0.1, release, sv.Poisson(100, cut=True))
        network = sv.networks.complete(2) if len(parties) > 1 else None
        return sv.account(method, sv.Population([sizes[party] for party in parties]), steps=20, network=network)

    both, sampled, full = stated(0, 1), stated(0), stated(1)
    assert sampled.epsilon > full.epsilon
    assert full.attack[-1][1] > 1.5 * sampled.attack[-1][1]
    for rate, power in both.attack:
        assert power == max(dict(sampled.attack)[rate], dict(full.attack)[rate])


def test_gaussian_refuses_delta_zero():
    with pytest.raises(ValueError, match="delta"):
        sv.account(sgd(0.1), sv.Population([50]), steps=9, delta=0.0)


def test_releases_of_one_batch_are_one_mechanism():
    first, second = sv.Release(1.0, 0.2), sv.Release(1.0, 0.1)
    together = sv.account(_TwoReleases(first, second, Poisson(10)), sv.Population([100]), steps=20)
    merged = Mechanism(gaussian=1 / 2**2 + 1 / 1**2, amplification=Poisson(10).event(100))
    assert together.epsilon == pytest.approx(float(accountant.epsilon([(merged, 20)], 1e-5, "zero-out")), rel=1e-4)
    apart = sv.account(_TwoReleases(first, second, Poisson(10), shared=False), sv.Population([100]), steps=20)
    assert apart.epsilon < together.epsilon


def test_laplace_releases_of_one_batch_are_not_merged_like_gaussians():
    release = sv.Release(1.0, 0.1, "laplace")
    method = _TwoReleases(release, release, Poisson(10))
    report = sv.account(method, sv.Population([100]), steps=100, delta=1e-6)
    assert report.epsilon == pytest.approx(9.0, abs=0.06)


def test_adjacency_is_stated_and_never_mixed():
    by_default = sv.account(sgd(0.1, Poisson(100)), sv.Population([1000]), steps=501)
    replaced = sv.account(sgd(0.1, Poisson(100)), sv.Population([1000]), steps=501, adjacency="replace-one")
    assert replaced.epsilon == pytest.approx(1.761, abs=2e-3)
    assert (by_default.adjacency, replaced.adjacency) == ("zero-out", "replace-one")
    with pytest.raises(ValueError, match="zero-out, replace-one"):
        sv.account(sgd(), sv.Population([10]), steps=1, adjacency="add-or-remove")  # type: ignore[arg-type]


def test_loops_multiply():
    def counted(method):
        charges = account_of(method, sv.Population([100]), 5).charges
        return [(charge.phase, charge.batches, charge.times) for charge in charges]

    method = _Looped(sv.Release(1.0, 1.0), Poisson(10))
    assert counted(method) == [("init", 1, 1), ("step", 3, 1)]
    assert counted(dataclasses.replace(method, inside=False)) == [("init", 1, 1), ("step", 1, 3)]


def test_init_is_charged_once():
    method = _Looped(sv.Release(1.0, 0.5), Full())
    mu = (2 / 20 / 0.5) * np.sqrt(1 + 3 * 4)
    report = sv.account(method, sv.Population([20]), steps=4)
    assert report.epsilon == pytest.approx(float(sv.privacy.sound.gdp_epsilon(mu, 1e-5)), abs=1e-9)


def test_one_pass_pays_for_one_step():
    once = sv.account(sgd(0.1, OnePass(10)), sv.Population([100]), steps=10)
    assert once.epsilon == pytest.approx(float(sv.privacy.sound.gdp_epsilon(2 / 10 / 0.1, 1e-5)), abs=1e-9)
    with pytest.raises(ValueError, match="10 steps"):
        sv.account(sgd(0.1, OnePass(10)), sv.Population([100]), steps=11)


@dataclass(frozen=True)
class _LowerOnly(Method):
    low: sv.Release
    both: sv.Release
    solves = (sv.Bilevel,)

    def init(self, problem, agent):
        return {"x": problem.x0, "y": problem.y0}

    def step(self, problem, state, agent):
        batch = agent.sample(Full())
        x, y = state["x"], state["y"]
        a = agent.release(self.low, at=y, batch=batch, lower=lambda y, r: problem.lower(x, y, r))
        b = agent.release(
            self.both,
            at=x,
            batch=batch,
            lower=lambda x, r: problem.lower(x, y, r),
            upper=lambda x, r: problem.upper(x, y, r),
        )
        return {"x": b, "y": a}


def test_disjoint_levels_pay_in_parallel():
    method = _LowerOnly(sv.Release(1.0, 0.2), sv.Release(1.0, 0.2))
    report = sv.account(method, sv.Population([Levels(20, 80, disjoint=True)]), steps=1)
    gdp = sv.privacy.sound.gdp_epsilon
    upper, lower = float(gdp(2 / 20 / 0.2, 1e-5)), float(gdp(np.sqrt(2) * 2 / 80 / 0.2, 1e-5))
    assert report.per_level == pytest.approx({"upper": upper, "lower": lower}, abs=1e-9)
    assert report.epsilon == max(upper, lower)
    # a unit in both levels moves both means of the release that reads both, under one noise
    both = sv.account(method, sv.Population([Levels(20, 80)]), steps=1)
    moved = np.hypot(2 / 20 / 0.2 + 2 / 80 / 0.2, 2 / 80 / 0.2)
    assert both.epsilon == pytest.approx(float(gdp(moved, 1e-5)), abs=1e-9)
    laplace = sv.Release(1.0, 0.2, "laplace")
    with pytest.raises(ValueError, match="one Laplace noise"):
        sv.account(_LowerOnly(laplace, laplace), sv.Population([Levels(20, 80)]), steps=1)
    one_set = sv.account(method, sv.Population([100]), steps=1)
    assert one_set.epsilon == pytest.approx(float(gdp(np.sqrt(2) * 2 / 100 / 0.2, 1e-5)), abs=1e-9)


def test_unequal_parties_each_have_their_epsilon():
    report = sv.account(sgd(0.1), sv.Population([50, 100, 50]), steps=4, network=sv.networks.ring(3))
    assert report.per_agent[0] == report.per_agent[2] > report.per_agent[1]
    assert report.epsilon == report.per_agent[0]


def test_noise_per_agent():
    method = dataclasses.replace(sgd(), gradient=sv.Release(1.0, (0.1, 0.2)))
    report = sv.account(method, sv.Population([50, 50]), steps=4, network=sv.networks.ring(2))
    assert report.per_agent[0] > report.per_agent[1]
    with pytest.raises(ValueError, match="lists noise for 2 agents"):
        sv.account(method, sv.Population([50] * 3), steps=4, network=sv.networks.ring(3))


@dataclass(frozen=True)
class _Tupled(Method):
    """Its releases are in a tuple, which is not a field of type Release."""

    gradients: tuple[sv.Release, ...]
    sampling: Sampling

    def init(self, problem, agent):
        return {"x": problem.x0}

    def step(self, problem, state, agent):
        batch = agent.sample(self.sampling)
        return {"x": sum(agent.release(one, problem.loss, at=state["x"], batch=batch) for one in self.gradients)}


def test_noise_per_agent_counts_wherever_the_release_is_kept():
    setting = {"data": sv.Population([50, 50]), "steps": 4, "network": sv.networks.ring(2)}
    quiet = sv.Release(1.0, (0.5, 0.05), name="gradient")
    method = _Tupled((quiet,), Full())
    plain = dataclasses.replace(sgd(), gradient=quiet)
    assert sv.account(method, **setting).per_agent == sv.account(plain, **setting).per_agent
    calibrated = sv.calibrate(_Tupled((quiet, sv.Release(1.0, 0.3, name="other")), Full()), epsilon=1.0, **setting)
    assert 0.999 <= sv.account(calibrated, **setting).epsilon <= 1.0
    assert not any(release.private for release in method.without_privacy().releases())


def test_ten_thousand_agents_cost_one():
    report = sv.account(
        sgd(0.1, Poisson(10)), sv.Population([20] * 10_000), steps=100, network=sv.networks.ring(10_000)
    )
    assert len(set(report.per_agent)) == 1
    assert len(report.per_agent) == 10_000


@dataclass(frozen=True)
class _Printed(Method):
    message: sv.Release

    def init(self, problem, agent):
        return {"x": agent.mean(self.message, problem.loss, at=problem.x0, batch=agent.sample(Full()))}

    def step(self, problem, state, agent):
        told = agent.tell(self.message, state["x"])
        return {"x": agent.mix(told, own=state["x"])}


@dataclass(frozen=True)
class _Careless(_Printed):
    def step(self, problem, state, agent):
        return {"x": agent.mix(state["x"])}


@dataclass(frozen=True)
class _AtPrivatePoint(_Printed):
    def step(self, problem, state, agent):
        return {"x": agent.release(self.message, problem.loss, at=state["x"], batch=agent.sample(Full()))}


def test_messages_of_private_state_are_unproved():
    report = sv.account(_Printed(sv.Release(1.0, 1.0)), sv.Population([10]), steps=3)
    assert report.epsilon == np.inf
    assert report.design == "printed"
    assert any("private state" in caveat for caveat in report.caveats)


def test_private_values_do_not_leave_un_noised():
    with pytest.raises(TypeError, match="may not leave the agent"):
        sv.account(_Careless(sv.Release(1.0, 1.0)), sv.Population([10]), steps=3)
    with pytest.raises(TypeError, match="private point"):
        sv.account(_AtPrivatePoint(sv.Release(1.0, 1.0)), sv.Population([10]), steps=3)


@pytest.mark.parametrize("wrap", ["cond", "scan", "vmap", "jit"])
def test_releases_in_uncounted_control_flow_are_refused(wrap):
    @dataclass(frozen=True)
    class _Hidden(Method):
        gradient: sv.Release

        def init(self, problem, agent):
            return {"x": problem.x0}

        def step(self, problem, state, agent):
            batch = agent.sample(Full())

            def release(x):
                return agent.release(self.gradient, problem.loss, at=x, batch=batch)

            x = state["x"]
            if wrap == "cond":
                x = jax.lax.cond(agent.t > 0, release, lambda x: x, x)
            elif wrap == "scan":
                x = jax.lax.scan(lambda x, _: (release(x), None), x, None, length=3)[0]
            elif wrap == "vmap":
                x = jax.vmap(release)(jnp.stack([x, x]))[0]
            else:
                x = jax.jit(release)(x)
            return {"x": x}

    with pytest.raises(ValueError, match=r"agent\.loop"):
        sv.account(_Hidden(sv.Release(1.0, 1.0)), sv.Population([10]), steps=3)


@pytest.mark.parametrize("target", [0.1, *(pytest.param(epsilon, marks=pytest.mark.slow) for epsilon in (1.0, 8.0))])
@pytest.mark.parametrize("sampling", [Full(), Poisson(20)], ids=str)
def test_calibrate_lands_just_below(target, sampling):
    setting = {"data": sv.Population([200, 300]), "steps": 50, "network": sv.networks.ring(2)}
    method = sv.calibrate(sgd(3.0, sampling), epsilon=target, **setting)
    reached = sv.account(method, **setting).epsilon
    assert target * (1 - 2e-3) <= reached <= target


def test_calibrate_explains_what_it_cannot_do():
    with pytest.raises(ValueError, match=r"\['gradient'\] have no clip or no noise"):
        sv.calibrate(sgd().without_privacy(), sv.Population([10]), epsilon=1.0, steps=1)
    with pytest.raises(ValueError, match="no noise level helps"):
        sv.calibrate(_Printed(sv.Release(1.0, 1.0)), sv.Population([10]), epsilon=1.0, steps=1)
    with pytest.raises(ValueError, match="positive"):
        sv.calibrate(sgd(), sv.Population([10]), epsilon=-1.0, steps=1)


def test_sizes_may_be_the_records():
    records = {"features": np.zeros((40, 3)), "label": np.zeros(40), "id": np.repeat(np.arange(8), 5)}
    assert sv.Population.of([records]).sizes == {"records": (40,)}
    assert sv.Population.of(sv.data.split(records, agents=1, unit="id")).sizes == {"records": (8,)}


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="2 parties need a network"):
        sv.account(sgd(), sv.Population([10, 10]), steps=1)
    with pytest.raises(ValueError, match="3 agents, but there are 2 parties"):
        sv.account(sgd(), sv.Population([10, 10]), steps=1, network=sv.networks.ring(3))
    with pytest.raises(ValueError, match="at least one record"):
        sv.account(sgd(), sv.Population([10, 0]), steps=1, network=sv.networks.ring(2))
    with pytest.raises(ValueError, match="steps is 0"):
        sv.account(sgd(), sv.Population([10]), steps=0)
    with pytest.raises(ValueError, match="delta"):
        sv.account(sgd(), sv.Population([10]), steps=1, delta=1.5)


# What an ordinary mistake could make look private.


@dataclass(frozen=True)
class _Outside(Method):
    """Uses the handle outside a loop within it."""

    gradient: sv.Release
    sampling: Sampling

    def init(self, problem, agent):
        return {"x": problem.x0}

    def step(self, problem, state, agent):
        batch = agent.sample(self.sampling)

        def body(carry, inner):
            return agent.release(self.gradient, problem.loss, at=carry, batch=batch)

        return {"x": agent.loop(5, body, state["x"])}


def test_the_agent_outside_a_loop_is_refused_inside():
    with pytest.raises(ValueError, match="use the agent that it hands to its body"):
        sv.account(_Outside(sv.Release(1.0, 0.1), Full()), sv.Population([50]), steps=1)


@pytest.mark.parametrize("sizes", [[Levels(100, 100)], {"train": [100]}])
def test_levels_that_nothing_reads_are_refused(sizes):
    with pytest.raises(ValueError, match=r"reads records|name the levels"):
        sv.account(sgd(), sv.Population(sizes), steps=10)


class _Odd(Schedule):
    def __call__(self, t, agent=0):
        return 1.0 if agent == 0 else 1e-3

    @property
    def agents(self):
        return None


def test_a_schedule_of_ones_own_may_differ_by_agent():
    setting = {"data": sv.Population([50, 50]), "steps": 2, "network": sv.networks.ring(2)}
    own = sv.account(sgd(_Odd()), **setting).per_agent
    assert own == sv.account(sgd((1.0, 1e-3)), **setting).per_agent
    assert own[1] > 100 * own[0]


def test_records_given_for_sizes_tell_who_is_shared():
    ids = np.repeat(np.arange(20), 2)
    pool = np.ones((40, 2), np.float32)
    parts = [Levels(Part(pool, np.arange(0, 40, 2), ids), Part(pool, np.arange(1, 40, 2), ids))]
    method = _LowerOnly(sv.Release(1.0, 0.2), sv.Release(1.0, 0.2))
    told = sv.account(method, parts, steps=1)
    assert told.unit == "unit"
    assert (
        told.epsilon
        == sv.account(method, sv.Population([Levels(20, 20)], shared={((0, "upper"), (0, "lower"))}), steps=1).epsilon
    )
    same_rows = [Levels(Part(pool, np.arange(20)), Part(pool, np.arange(20)))]  # no ids: rows of one set
    assert sv.account(method, same_rows, steps=1).epsilon == told.epsilon
    apart = [Levels(Part(pool, np.arange(20)), Part(pool, np.arange(20, 40)))]
    assert sv.account(method, apart, steps=1).epsilon < told.epsilon


def test_units_with_several_parties_are_said_and_repeated_rows_refused():
    pool, ring = np.ones((40, 2), np.float32), sv.networks.ring(2)
    shared = sv.account(sgd(), [Part(pool, np.arange(25)), Part(pool, np.arange(15, 40))], steps=1, network=ring)
    assert any("several parties" in caveat for caveat in shared.caveats)
    apart = sv.account(sgd(), [Part(pool, np.arange(20)), Part(pool, np.arange(20, 40))], steps=1, network=ring)
    assert not any("several parties" in caveat for caveat in apart.caveats)
    with pytest.raises(ValueError, match="lists a row twice"):
        sv.account(sgd(), [Part(pool, np.zeros(5, int))], steps=1)


@pytest.mark.parametrize("stop", [-1.0, 0.0])
def test_noise_that_reaches_zero_is_infinite_in_every_design(stop):
    fading = sv.Release(1.0, Linear(1.0, stop, 4))
    for design in ("sound", "printed"):
        method = sv.methods.DpMixSgd(0.1, 0.1, Full(), release_x=fading, release_y=fading, design=design)
        report = sv.account(method, sv.Population([50]), steps=6)
        assert report.epsilon == np.inf
        assert report.published is None


def test_a_method_calibrated_for_another_run_warns_and_names_both_epsilons():
    problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(2))
    parts = [np.ones((40, 2), np.float32)]
    tuned = sv.calibrate(sgd(1.0, Poisson(10)), parts, epsilon=1.0, steps=5)
    assert tuned == dataclasses.replace(tuned)  # the target is no part of the method
    with pytest.warns(
        UserWarning, match=r"calibrated for epsilon 1 .* 5 steps\), but this run has epsilon .* 50 steps"
    ):
        sv.run(problem, parts, tuned, steps=50)
    result = sv.run(problem, parts, sgd(1.0, Poisson(10)), steps=5, epsilon=1.0)
    assert 0.998 <= result.privacy.epsilon <= 1.0


def test_a_budget_counts_as_the_run_does_and_a_refusal_offers_the_weaker_sense():
    """Two runs at epsilon 1 fit a budget of 3, as the pages say; in the stronger sense they do not."""
    method = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, 1.0), sampling=sv.Full())
    parts, problem = [np.ones((50, 1), np.float32)], sv.Minimize(lambda x, r: (x - r[0]) ** 2, 0.0)
    how = {"steps": 2, "epsilon": 1.0, "adjacency": "zero-out"}
    kept = sv.Ledger()
    for _ in range(2):
        sv.run(problem, parts, method, ledger=kept, budget=sv.Budget(3.0, 1e-5), **how)
    with pytest.raises(sv.privacy.BudgetExceeded, match=r"adjacency='zero-out': epsilon 1\.") as refused:
        sv.run(problem, parts, method, budget=sv.Budget(2.0, 1e-5, "replace-one"), **{**how, "epsilon": 1.2})
    assert "replace-one" in str(refused.value)
