"""A run reads its parties, traces and calibrates once: what calibration hands on is what tracing anew would make."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting import trace as tracing
from sottovoce.accounting.account import account_for, account_of
from sottovoce.accounting.renoise import renoised
from sottovoce.data.parties import Parties
from sottovoce.schedules import Schedule

from ..methods import contract
from ..methods.test_contract import EXAMPLES

RING = sv.networks.ring(3)
PARTS = [np.full((20, 2), number, np.float32) for number in range(3)]
PROBLEM = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(2))
SGD = sv.methods.DpSgd(0.1, sv.Release(1.0, 0.1), sv.Full())
DRAWS = ("LdpDsbo-sound", "DpGradientTracking-sound", "DpBilevel-gap")  # their steps do nothing with noise but draw it


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what a run does with its data and its method."""
    found: Counter[str] = Counter()

    def count(what: str, holder: Any, name: str, of: Any) -> None:
        def counted(*given: Any, **named: Any) -> Any:
            found[what] += 1
            return of(*given, **named)

        monkeypatch.setattr(holder, name, counted)

    made = Parties.__init__
    count("parties", Parties, "__init__", made)
    count("population", sv.Population, "__post_init__", sv.Population.__post_init__)
    count("records", Parties.__dict__["records"], "func", Parties.__dict__["records"].func)
    count("traces", tracing, "_traced", tracing._traced)
    return found


def test_a_run_reads_its_parties_and_traces_once(counts: Counter[str]) -> None:
    problem = replace(PROBLEM)  # of which no trace is remembered
    result = sv.run(problem, PARTS, SGD, network=RING, steps=3, epsilon=2.0)
    assert result.privacy.epsilon <= 2.0
    assert counts == {"parties": 1, "population": 1, "records": 1, "traces": 1}


@dataclass(frozen=True)
class _Reader(sv.methods.DpSgd):
    """Move by less where the noise is large."""

    def step(self, problem: Any, state: Any, agent: Any) -> Any:
        moved = super().step(problem, state, agent)
        share = 1 / (1 + self.gradient.scale(agent.t, agent.index))
        return moved._replace(x=state.x + share * (moved.x - state.x))


@dataclass(frozen=True)
class _Maker(sv.methods.DpSgd):
    """Release with a noise of its own making."""

    def step(self, problem: Any, state: Any, agent: Any) -> Any:
        return sv.methods.DpSgd(self.rate, self.gradient.louder(2.0), self.sampling).step(problem, state, agent)


@pytest.mark.parametrize("kind", [_Reader, _Maker])
def test_a_step_that_reads_its_noise_is_traced_once_more(kind: type[Any], counts: Counter[str]) -> None:
    method = kind(0.1, sv.Release(1.0, 0.1), sv.Full())
    tuned = sv.calibrate(method, PARTS, network=RING, steps=3, epsilon=2.0, problem=PROBLEM)
    assert counts["traces"] == 2
    account = account_of(tuned, PARTS, 3, RING, problem=PROBLEM)
    assert 1.998 <= account.report.epsilon <= 2.0


class _Falling(Schedule):
    """A schedule of a module of one's own, which a trace lists."""

    agents = None

    def __call__(self, t: Any, agent: Any = 0) -> Any:
        return 1.0 / (2.0 + t)


OWN = {
    "a schedule of one's own": replace(SGD, gradient=sv.Release(1.0, _Falling())),
    "a method in a method": sv.methods.Averaged(SGD),
    "noise that falls": replace(SGD, gradient=sv.Release(1.0, sv.Decay(0.1, 0.5))),
    "noise per agent": replace(SGD, gradient=sv.Release(1.0, (0.1, 0.2, 0.3))),
}


@pytest.mark.parametrize("name", OWN)
def test_other_noise_gives_the_trace_of_the_other_method(name: str) -> None:
    _check_same(account_of(OWN[name], PARTS, 3, RING, problem=PROBLEM))


@pytest.mark.parametrize("name", [n if n in DRAWS else pytest.param(n, marks=pytest.mark.slow) for n in EXAMPLES])
def test_other_noise_gives_the_trace_of_the_other_example(name: str) -> None:
    method, case = contract.noisy(EXAMPLES[name]), contract.case_for(EXAMPLES[name])
    network = contract.network_for(method, len(case.parts))
    account = account_of(method, case.parts, 3, network, problem=case.problem)
    if name in DRAWS:
        assert renoised(account.trace, method, method.louder(1.7)) is not None
    _check_same(account)


def _check_same(account: Any) -> None:
    """Check that an account with other noise is that of the method with this noise, traced anew."""
    found = account.of_louder(1.7)
    anew = account_for(account.method.louder(1.7), account.trace.known, account.delta, problem=account.problem)
    assert found.trace.identity == anew.trace.identity != account.trace.identity
    assert found.trace.charges == anew.trace.charges
    assert found.trace is anew.trace or found.trace.reads_noise == anew.trace.reads_noise


@pytest.mark.parametrize("beside", ["a cached value", "another rate"])
def test_what_differs_in_more_than_noise_is_traced(beside: str) -> None:
    account = account_of(SGD, PARTS, 3, RING, problem=PROBLEM)
    method, other = replace(SGD), SGD.louder(2.0)
    if beside == "a cached value":
        object.__setattr__(method, "_worked_out", 0.1)
    else:
        other = replace(other, rate=0.2)
    assert renoised(account.trace, SGD, SGD.louder(2.0)) is not None
    assert renoised(account.trace, method, other) is None
