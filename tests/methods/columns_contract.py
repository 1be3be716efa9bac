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
from sottovoce.methods.column_method import ColumnMethod
from sottovoce.privacy.labels import Fresh, Labels, Memoised, Open
from sottovoce.registry import over_columns

from .bambi_twin import Twin
from .vertical_twin import VerticalTwin

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

    def least(self, method: ColumnMethod) -> float:
        """The least value of what a method minimises, which a closed form gives, with SciPy for two levels."""
        if "upper" in method.batches:
            return float(minimize(self.upper, np.full(2, -2.0), method="Nelder-Mead").fun)
        features = np.concatenate(self.blocks, axis=1).astype(np.float64)  # penalties can be made as small as wanted
        _, (left, *_), *_ = np.linalg.lstsq(features, self.label.astype(float), rcond=None)
        return float(left) / ROWS / 2

    def value(self, method: ColumnMethod, x: list, y: list) -> float:
        """The value of what a method minimises."""
        if "upper" in method.batches:
            return self.upper(np.asarray(x, np.float64))
        scores = np.concatenate(self.blocks, axis=1) @ np.concatenate(y)[:, 0]
        penalties = sum(map(self.problem.penalty_of, x, y))
        return float(np.mean((scores - self.label) ** 2) / 2 + penalties)

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


def check_converges(method: ColumnMethod, case: Columns) -> None:
    """With true labels, what is minimised comes near its least value."""
    result = sv.run(case.problem, case.table(), method, steps=120, every=120)
    best, start = case.least(method), case.value(method, case.problem.x0, case.problem.y0)
    reached = case.value(method, result.x, result.y)
    assert start - best > 1e-3
    assert reached - best < 0.1 * (start - best)


def check_private_is_accounted(method: ColumnMethod, case: Columns) -> None:
    """A memoised label costs its epsilon; true labels are infinite; calibration sets the one and refuses the other."""
    private = replace(method, labels=Memoised(2.0))
    given = {"problem": case.problem, "steps": 5}
    assert sv.account(private, case.table(), **given).epsilon == 2.0
    assert sv.account(method, case.table(), **given).epsilon == np.inf
    louder = sv.calibrate(private, case.table(), epsilon=0.5, **given)
    assert sv.account(louder, case.table(), **given).epsilon == 0.5


def check_twin_equals_federated(method: ColumnMethod, case: Columns) -> None:
    """All columns in one place, differentiated as a whole, do what the parties and the server do."""
    twin = TWINS[type(method).__name__](case.problem, case.table(), method)
    options = {"steps": 3, "every": 1, "evaluate": _flat}
    federated = sv.run(case.problem, case.table(), method, **options).history["all"][1:]
    np.testing.assert_allclose(federated, twin.path(3), rtol=2e-3, atol=2e-4)


def check_noise_is_drawn(method: ColumnMethod, case: Columns) -> None:
    """Another seed gives another run, the same seed the same bytes."""
    method = method.behind(Fresh(0.1))
    once, again, other = (
        jax.tree.leaves(sv.run(case.problem, case.table(), method, steps=2, seed=seed).x) for seed in (1, 1, 2)
    )
    for a, b in zip(once, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(np.any(np.asarray(a) != np.asarray(b)) for a, b in zip(once, other))


TWINS = {"Bambi": Twin, "VerticalSgd": VerticalTwin}
CHECKS = [check_converges, check_private_is_accounted, check_twin_equals_federated, check_noise_is_drawn]


def examples() -> dict[str, ColumnMethod]:
    found = {f"{name}-{label}": one for name, kind in over_columns.items() for label, one in kind.examples().items()}
    assert all(isinstance(method.labels, Open) for method in found.values())
    return found
