"""Identities are frozen: a changed text would give every run other noise, and no stored run could go on.

`python -m tests.accounting.test_identity` writes `frozen.json` anew. Do that only where other bytes are wanted, and say
why in the change.
"""

import json
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.accounting.identity import identity
from sottovoce.accounting.table import table_account
from sottovoce.privacy.labels import Fresh, Printed
from sottovoce.schedules import Constant, Decay, Scaled

from ..methods import columns_contract, contract
from ..methods.test_contract import EXAMPLES

FROZEN = Path(__file__).parent / "frozen.json"
PAPERS = ("LdpDsbo-sound", "DpGradientTracking-sound", "DpMixSgd-sound", "DpBilevel-gap", "DpNewton-plain")


def _account(name: str) -> Any:
    method, case = contract.noisy(EXAMPLES[name]), contract.case_for(EXAMPLES[name])
    network = contract.network_for(method, len(case.parts))
    return account_of(method, case.parts, 3, network, problem=case.problem)


def _columns(name: str) -> Any:
    return table_account(columns_contract.examples()[name], columns_contract.case().table(),
                         columns_contract.case().problem, 3, 0.0)  # fmt: skip


def _ends(name: str) -> list[float]:
    """Return where three noisy steps end: all numbers of the agents' average. Columns with much noise would diverge."""
    if name in EXAMPLES:
        method, case = contract.noisy(EXAMPLES[name]), contract.case_for(EXAMPLES[name])
        result = contract.run(method, case, 3, seed=0)
    else:
        case, method = columns_contract.case(), replace(columns_contract.examples()[name], labels=Fresh(0.1))
        result = sv.run(case.problem, case.table(), method, steps=3, seed=0)
    return [round(float(number), 6) for leaf in jax.tree.leaves((result.x, result.y)) for number in np.ravel(leaf)]


def _identity(name: str) -> str:
    return (_account if name in EXAMPLES else _columns)(name).trace.identity


NAMES = [*EXAMPLES, *columns_contract.examples()]


@pytest.mark.parametrize("name", [n if n in PAPERS else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_identities_are_frozen(name: str) -> None:
    assert _identity(name) == json.loads(FROZEN.read_text())[name]["identity"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_trajectories_are_frozen(name: str) -> None:
    """Three steps with noise end where they ended: up to rounding, which depends on the processor."""
    np.testing.assert_allclose(_ends(name), json.loads(FROZEN.read_text())[name]["ends"], rtol=1e-3, atol=1e-4)


# What changes nothing that is computed changes no identity.


@dataclass(frozen=True)
class _Other(sv.methods.DpSgd):
    """The same algorithm by another name."""


class _Renamed(NamedTuple):
    there: Any
    memory: Any


def _of(method: Any = None, loss: Any = None, **how: Any) -> str:
    sgd = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(clip=1.0, noise=0.5), sampling=sv.Poisson(4))
    network = how.pop("network", sv.networks.ring(4))
    parts = how.pop("parts", [np.ones((12, 3), np.float32)] * 4)
    problem = sv.Minimize(loss or (lambda x, r: jnp.sum((x - r) ** 2)), jnp.zeros(3))
    return account_of(replace(method or sgd, **how), parts, 3, network, problem=problem).trace.identity


def test_names_are_no_part_of_an_identity() -> None:
    def square_distance(point: Any, row: Any) -> Any:
        return jax.jit(another)(point, row)

    def another(u: Any, v: Any) -> Any:
        return jnp.sum((u - v) ** 2)

    def third(a: Any, b: Any) -> Any:
        return jnp.sum((a - b) ** 2)

    inner = jax.jit(third)
    renamed = _Other(rate=0.1, gradient=sv.Release(clip=1.0, noise=0.5, name="g"), sampling=sv.Poisson(4))
    assert _of(renamed) == _of()
    assert _of(loss=square_distance) == _of(loss=lambda x, r: inner(x, r))
    law = make_dataclass("Faded", [("value", float), ("power", float), ("offset", float)], frozen=True)
    law.kind = "decay"
    assert identity(law(1.0, 0.5, 2.0)) == identity(Decay(1.0, 0.5, 2.0))
    state = jax.make_jaxpr(lambda x: _Renamed(x, 2 * x))(1.0)
    assert identity(state) == identity(jax.make_jaxpr(lambda x: {"a": x, "b": 2 * x})(1.0))


@jax.custom_vjp
def _bent(x: Any) -> Any:
    return x


_bent.defvjp(lambda x: (x, None), lambda _, g: (2 * g,))

_RULE = np.array([1.0, 2.0, 3.0], np.float32)


def _bent_by(table: np.ndarray) -> str:
    """Return the identity where the rule of a derivative holds an array, which was declared public."""
    ruled = jax.custom_vjp(lambda x: x)
    ruled.defvjp(lambda x: (x, None), lambda _, g: (jnp.asarray(table) * g,))
    problem = sv.Minimize(lambda x, r: jnp.sum(ruled((x - r) ** 2)), jnp.zeros(3), public_constants=True)
    sgd = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(clip=1.0, noise=0.5), sampling=sv.Poisson(4))
    return account_of(sgd, [np.ones((12, 3), np.float32)], 3, problem=problem).trace.identity


def test_arrays_inside_the_rule_of_a_derivative_are_part_of_an_identity() -> None:
    assert _bent_by(_RULE) == _bent_by(_RULE.copy())
    assert _bent_by(_RULE) != _bent_by(_RULE[::-1].copy())


OTHER = {
    "a number": lambda: _of(loss=lambda x, r: 2.0 * jnp.sum((x - r) ** 2)),
    "the rule of a derivative": lambda: _of(loss=lambda x, r: jnp.sum(_bent((x - r) ** 2))),
    "the rate": lambda: _of(rate=0.2),
    "the scale of the noise": lambda: _of(gradient=sv.Release(clip=1.0, noise=0.25)),
    "a schedule's kind": lambda: _of(gradient=sv.Release(clip=1.0, noise=Decay(0.5, 0.0))),
    "a schedule in a schedule": lambda: _of(gradient=sv.Release(clip=1.0, noise=Scaled(Constant(0.5), 1.0))),
    "the noise's law": lambda: _of(gradient=sv.Release(clip=1.0, noise=0.5, mechanism="laplace")),
    "the clip": lambda: _of(gradient=sv.Release(clip=2.0, noise=0.5)),
    "the sampling": lambda: _of(sampling=sv.FixedSize(4)),
    "the batch": lambda: _of(sampling=sv.Poisson(5)),
    "the network's weights": lambda: _of(network=sv.networks.ring(4, weight=0.3)),
    "the number of records": lambda: _of(parts=[np.ones((n, 3), np.float32) for n in (12, 12, 12, 13)]),
}


@pytest.mark.parametrize("what", OTHER)
def test_what_changes_a_run_changes_its_identity(what: str) -> None:
    assert OTHER[what]() != _of()
    assert _of() == _of()


def test_pieces_do_not_run_together() -> None:
    alike = [("ab", "c"), ("a", "bc"), (("ab",), "c"), (["a", "b"], "c"), (b"ab", "c"), (1, 11), (11, 1), ("1", 11)]
    arrays = [(np.zeros(2),), (np.zeros(2, np.float32),), (np.zeros((2, 1)),), (np.zeros(1), np.zeros(1))]
    found = [identity(*things) for things in [*alike, *arrays]]
    assert len(set(found)) == len(found)
    gates = [Fresh(1.0), Fresh(2.0), Fresh(1.0, shared=True), Printed(1.0)]
    assert len({identity(gate) for gate in gates}) == len(gates)


if __name__ == "__main__":
    frozen = {name: {"identity": _identity(name), "ends": _ends(name)} for name in NAMES}
    FROZEN.write_text(json.dumps(frozen, indent=1) + "\n")
