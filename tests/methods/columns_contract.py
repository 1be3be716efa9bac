"""What every method for a table split by columns must satisfy: the contract's other wing.

Its checks have the names of those for rows; the twin with all columns in one place plays the part of the second place.
"""

from dataclasses import dataclass, replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

import sottovoce as sv
from sottovoce.papers.bambi.method import Bambi
from sottovoce.privacy.labels import Labels, Memoised, Open

from .bambi_twin import Twin

ROWS = 48


@dataclass(frozen=True)
class Columns:
    """Ridge regression with one penalty per party, on two parties' columns; the second party's are noise."""

    problem: sv.Vertical
    blocks: list[np.ndarray]
    label: np.ndarray

    def table(self) -> sv.Table:
        columns = sv.Columns(self.blocks, upper=np.arange(24), lower=np.arange(24, ROWS))
        return sv.Table(columns, Labels(self.label, 2, seed=0))

    def upper(self, x: np.ndarray) -> float:
        """The upper loss at the lower minimiser, in closed form."""
        features, label = np.concatenate(self.blocks, axis=1).astype(np.float64), self.label
        a, b = features[24:], label[24:]
        penalty = np.repeat(np.exp(x), [block.shape[1] for block in self.blocks])
        y = np.linalg.solve(a.T @ a / len(a) + np.diag(penalty), a.T @ b / len(a))
        return float(np.mean((features[:24] @ y - label[:24]) ** 2) / 2)


@cache
def case() -> Columns:
    rng = np.random.default_rng(0)
    told, noise = rng.normal(size=(ROWS, 2)).astype(np.float32), rng.normal(size=(ROWS, 6)).astype(np.float32)
    problem = sv.Vertical(
        embed=lambda x, a: a,
        head=lambda y, e: e @ y,
        losses=lambda s: jnp.concatenate([0.5 * s**2, 0.5 * (s - 1) ** 2], axis=-1),
        x0=[jnp.asarray(-2.0)] * 2,
        y0=[jnp.zeros((2, 1)), jnp.zeros((6, 1))],
        penalty=lambda x, y: 0.5 * jnp.exp(x) * jnp.sum(y**2),
    )
    return Columns(problem, [told, noise], (told.sum(axis=1) + 0.3 * rng.normal(size=ROWS) > 0).astype(int))


def _flat(x, y):
    return {"all": jax.flatten_util.ravel_pytree((x, y))[0]}


def check_converges(method: Bambi, case: Columns) -> None:
    """With true labels, the upper loss comes near its least value, which a closed form and SciPy give."""
    result = sv.run(case.problem, case.table(), method, steps=120, every=120)
    best = minimize(case.upper, np.full(2, -2.0), method="Nelder-Mead").fun
    start, reached = case.upper(np.full(2, -2.0)), case.upper(np.asarray(result.x, np.float64))
    assert start - best > 1e-3
    assert reached - best < 0.1 * (start - best)


def check_private_is_accounted(method: Bambi, case: Columns) -> None:
    """A memoised label costs its epsilon; true labels are infinite; calibration sets the one and refuses the other."""
    private = replace(method, labels=Memoised(2.0))
    given = {"problem": case.problem, "steps": 5}
    assert sv.account(private, case.table(), **given).epsilon == 2.0
    assert sv.account(method, case.table(), **given).epsilon == np.inf
    louder = sv.calibrate(private, case.table(), epsilon=0.5, **given)
    assert sv.account(louder, case.table(), **given).epsilon == 0.5


def check_twin_equals_federated(method: Bambi, case: Columns) -> None:
    """All columns in one place, differentiated as a whole, do what the parties and the server do."""
    options = {"steps": 3, "every": 1, "evaluate": _flat}
    federated = sv.run(case.problem, case.table(), method, **options).history["all"][1:]
    np.testing.assert_allclose(federated, Twin(case.problem, case.table(), method).path(3), rtol=2e-3, atol=2e-4)


def check_noise_is_drawn(method: Bambi, case: Columns) -> None:
    """Another seed gives another run, the same seed the same bytes."""
    once, again, other = (
        jax.tree.leaves(sv.run(case.problem, case.table(), method, steps=2, seed=seed).x) for seed in (1, 1, 2)
    )
    for a, b in zip(once, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(np.any(np.asarray(a) != np.asarray(b)) for a, b in zip(once, other))


CHECKS = [check_converges, check_private_is_accounted, check_twin_equals_federated, check_noise_is_drawn]


def examples() -> dict[str, Bambi]:
    assert all(isinstance(method.labels, Open) for method in Bambi.examples().values())
    return {f"Bambi-{label}": method for label, method in Bambi.examples().items()}
