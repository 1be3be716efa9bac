from dataclasses import dataclass
from typing import Any

import jax
import pytest

import sottovoce as sv
from sottovoce.methods.base import Method
from sottovoce.methods.dp_sgd import DpSgd, SgdState
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full
from sottovoce.trees import descend

from . import columns_contract, contract

EXAMPLES = {
    f"{name}-{label}": example
    for name, cls in sv.methods.available.items()
    if sv.Vertical not in cls.solves
    for label, example in cls.examples().items()
}


ALIKE = ("momentum", "adam", "optax", "optimisers", "exponential", "rounds")
SHOWN = ("DpSgd-adam", "Averaged-exponential", "LdpDsbo-optimisers")  # of examples that are alike: these converge here
EVERYWHERE = ("DpSgd-full", "DpGradientTracking-sound")


def _cases() -> list[Any]:
    """Every example with every check; an example's go to one worker, so that its programs are compiled once.

    Two designs are checked in every place. Of the others, that they converge and are accounted; of examples that
    differ in their optimiser alone, a few. The rest and all baselines are left to `make test-all`, because they share
    their code with what is checked here.
    """
    cases = []
    for name, method in EXAMPLES.items():
        label = name.split("-", 1)[1]
        baseline = ".rivals." in type(method).__module__ or name.split("-", 1)[0] in ("DpSgda", "Sgda", "DpGrid")
        for check in contract.CHECKS:
            if check is contract.check_converges:
                costly = (label in ALIKE and name not in SHOWN) or baseline
            elif check is contract.check_private_is_accounted:
                costly = baseline or label in ALIKE
            else:
                costly = name not in (EVERYWHERE)
            marks = [pytest.mark.xdist_group(name), *([pytest.mark.slow] if costly else [])]
            title = f"{name}-{check.__name__.removeprefix('check_')}"
            cases.append(pytest.param(name, check, marks=marks, id=title))
    return cases


@pytest.mark.parametrize(("example", "check"), _cases())
def test_contract(example: str, check: Any) -> None:
    method = EXAMPLES[example]
    check(method, contract.case_for(method))


@pytest.mark.parametrize("check", columns_contract.CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize(
    "example",
    [
        name if name.endswith("-open") else pytest.param(name, marks=pytest.mark.slow)
        for name in columns_contract.examples()
    ],
)
def test_contract_of_columns(example: str, check: Any) -> None:
    check(columns_contract.examples()[example], columns_contract.case())


def test_every_method_is_in_the_suite() -> None:
    assert all(cls.examples() for cls in sv.methods.available.values())


# A contract that cannot be broken proves nothing: each of these must fail.


@dataclass(frozen=True)
class _Uphill(DpSgd):
    def step(self, problem: Any, state: SgdState, agent: Any) -> SgdState:
        better = super().step(problem, state, agent)
        return better._replace(x=jax.tree.map(lambda old, new: 2 * old - new, state.x, better.x))


@dataclass(frozen=True)
class _Deaf(DpSgd):
    """Talks, but does not listen."""

    def step(self, problem: Any, state: SgdState, agent: Any) -> SgdState:
        better = super().step(problem, state, agent)
        batch = agent.sample(self.sampling, "deaf")
        slope = agent.release(self.gradient, problem.loss, at=state.x, batch=batch, public=problem.public)
        return better._replace(x=descend(state.x, self.rate, slope))


@dataclass(frozen=True)
class _Leaky(DpSgd):
    """Makes a release in a branch, where nobody can count it."""

    def step(self, problem: Any, state: SgdState, agent: Any) -> SgdState:
        return jax.lax.cond(agent.t > 0, lambda: DpSgd.step(self, problem, state, agent), lambda: state)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (_Uphill, contract.check_converges),
        (_Deaf, contract.check_converges),
        (_Leaky, contract.check_private_is_accounted),
    ],
)
def test_broken_methods_fail(broken: type[Method], check: Any) -> None:
    method = broken(rate=0.2, gradient=Release.open(), sampling=Full())  # type: ignore[call-arg]
    with pytest.raises((AssertionError, ValueError, FloatingPointError)):
        check(method, contract.case_for(method))
