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

from . import contract

EXAMPLES = {
    f"{name}-{label}": example
    for name, cls in sv.methods.available.items()
    if cls is not sv.methods.Bambi
    for label, example in cls.examples().items()
}


def _cases() -> list[Any]:
    """Every example with every check; an example's go to one worker, so that its programs are compiled once.

    A baseline's second design shares its first one's code: the costly checks of it are left to `make test-all`.
    """
    costly = (contract.check_threads_equal_vectorised, contract.check_sharded_equals_vectorised)
    cases = []
    for name, method in EXAMPLES.items():
        second = ".baselines." in type(method).__module__ and method != next(iter(type(method).examples().values()))
        for check in contract.CHECKS:
            marks = [pytest.mark.xdist_group(name), *([pytest.mark.slow] if second and check in costly else [])]
            title = f"{name}-{check.__name__.removeprefix('check_')}"
            cases.append(pytest.param(name, check, marks=marks, id=title))
    return cases


@pytest.mark.parametrize(("example", "check"), _cases())
def test_contract(example: str, check: Any) -> None:
    method = EXAMPLES[example]
    check(method, contract.case_for(method))


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
