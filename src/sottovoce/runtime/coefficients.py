"""Say what the coefficients of a private linear model are, in the columns' own units, and how sure they are.

All of this is post-processing of what `DpNewton` released: its last state, the noise that was added, and the number of
rows. So it costs nothing, and may leave wherever the model may. Three things make a coefficient unsure:

- *sampling*: other rows from the same population would have given another model;
- *noise*: the steps are linear in their noise near the optimum, so its covariance follows step by step;
- *what noise hides*: directions whose second moment is below the noise were hardly trained. They could hold as much of
  the score as those that can be seen, and this is added to the variance of a coefficient. A coefficient with more than
  half of its variance from there has no interval: nothing that was released says how large it may be.

Steps that stop early leave coefficients too small. The estimate corrects this; predictions use the model as it is.
Not in the intervals: what clipping changes. ``python -m benchmarks.coverage`` measures how often intervals are right.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from sottovoce.data import Column, Declarations, curves
from sottovoce.data.declarations import FLAG, MISSING
from sottovoce.methods import Method
from sottovoce.methods.dp_newton import DpNewton
from sottovoce.privacy.trust import Sum
from sottovoce.problems import Minimize
from sottovoce.problems.linear_model import INTERCEPT
from sottovoce.runtime import shapes as curve_shapes
from sottovoce.shown import Shown, glance

_LEVEL = 0.9  # of the intervals that are shown
_HIDDEN = 1.1  # a direction is hidden if its moment is below this many times the noise of the moments
_SHARE = 0.25  # the moment of a hidden direction, over that noise: it lies between 0 and 1
_NODES = 41  # of the Gauss-Hermite rule for means over scores
WHAT_IT_IS = (
    "The interval (90 %) is for the same model without noise, trained on the whole population. It counts chance in "
    "which rows were there, and noise. It does not count what clipping changes. An effect need not be a cause."
)
_YEAR, _LEAST = 365.25, 1e-12
_ANY = 1e6  # variance of a coefficient where nothing at all stands out of the noise


@dataclass(frozen=True, eq=False, repr=False)
class Coefficients(Shown):
    """Hold coefficients by name: the model's own, estimates, and the covariances of the estimates.

    >>> two = Coefficients(("age", "intercept"), np.array([1.0, 0.0]), np.array([1.2, 0.1]), np.eye(2), 3 * np.eye(2))
    >>> two.errors.tolist(), two.interval()[0].round(2).tolist()
    ([2.0, 2.0], [-2.09, 4.49])
    """

    names: tuple[str, ...]
    model: np.ndarray
    estimates: np.ndarray
    sampling: np.ndarray  # covariance that other rows would cause
    noise: np.ndarray  # covariance that noise causes, with what it hides
    on: str = ""  # what they are effects on, such as "log odds of ill"
    shapes: tuple[curve_shapes.Shape, ...] = ()  # of columns with a curve
    hidden: np.ndarray | None = None  # the part of `noise` that hidden directions have

    @property
    def errors(self) -> np.ndarray:
        """Return the standard errors, sampling and noise together."""
        return np.sqrt(np.diag(self.sampling) + np.diag(self.noise))

    @property
    def known(self) -> np.ndarray:
        """Say which coefficients are known: more of the error was computed than had to be assumed."""
        if self.hidden is None:
            return np.ones(len(self.names), bool)
        return np.diag(self.hidden) <= 0.5 * self.errors**2

    def interval(self, level: float = _LEVEL) -> np.ndarray:
        """Return the ends of each coefficient's interval, one line per name; infinite where noise hides it."""
        reach = NormalDist().inv_cdf((1 + level) / 2) * np.where(self.known, self.errors, np.inf)
        return np.stack([self.estimates - reach, self.estimates + reach], axis=1)

    def of(self, sums: np.ndarray, names: Sequence[str]) -> "Coefficients":
        """Return coefficients that are sums of these: one line of `sums` per new name."""
        return Coefficients(
            tuple(names),
            sums @ self.model,
            sums @ self.estimates,
            sums @ self.sampling @ sums.T,
            sums @ self.noise @ sums.T,
            self.on,
            hidden=None if self.hidden is None else sums @ self.hidden @ sums.T,
        )

    def scaled(self, factor: float, middle: float) -> "Coefficients":
        """Return them for a label that is `middle` plus `factor` times the one that was trained for."""
        made, above = self.of(factor * np.eye(len(self.names)), self.names), np.zeros(len(self.names))
        above[-1] = middle
        turned = tuple(one.times(factor) for one in self.shapes)
        return replace(made, model=made.model + above, estimates=made.estimates + above, shapes=turned)

    def band(self, rows: Any, level: float = _LEVEL) -> np.ndarray:
        """Return the band of each row's score: `rows` has a column per name, without the intercept, which is last.

        For a classifier of two classes the score is the logarithm of the odds.
        """
        rows = np.asarray(rows, np.float64)
        return self.of(np.hstack([rows, np.ones((len(rows), 1))]), [""] * len(rows)).interval(level)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return heads and cells: the coefficient, its 90 % interval, and the two parts of its standard error."""
        sampled, noised = np.sqrt(np.diag(self.sampling)), np.sqrt(np.diag(self.noise))
        cells = []
        for number, name in enumerate(self.names):
            told = [
                self.model[number],
                self.estimates[number],
                *self.interval()[number],
                sampled[number],
                noised[number],
            ]
            shown = [f"{one:.3g}" for one in told]
            cells.append([name, *(shown if self.known[number] else [shown[0], *["hidden by noise"], *["-"] * 4])])
        return ["coefficient", "in the model", "estimate", "from", "to", "error by sampling", "error by noise"], cells

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "on": self.on, "names": list(self.names), "model": self.model.tolist(),
            "estimates": self.estimates.tolist(),
            "sampling": self.sampling.tolist(), "noise": self.noise.tolist(),
            "hidden": np.zeros_like(self.noise).tolist() if self.hidden is None else self.hidden.tolist(),
            "shapes": [one.to_dict() for one in self.shapes],
        }  # fmt: skip

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> "Coefficients":
        """Read what `to_dict` gave."""
        count = len(told["names"])
        model, estimates, sampling, noise, hidden = arrays = [
            np.asarray(told[name], np.float64) for name in ("model", "estimates", "sampling", "noise", "hidden")
        ]
        if [one.shape for one in arrays] != [(count,)] * 2 + [(count, count)] * 3:
            raise ValueError("coefficients have other shapes than their names say: save the model again")
        shapes = tuple(map(curve_shapes.Shape.from_dict, told["shapes"]))
        return cls(tuple(map(str, told["names"])), model, estimates, sampling, noise, str(told["on"]), shapes, hidden)

    def _told(self) -> list[tuple[str, str]]:
        each = [
            (cells[0], f"{cells[2]} (90 %: {cells[3]} to {cells[4]})" if sure else cells[2])
            for cells, sure in zip(self.table()[1], self.known)
        ]
        return [("effect on", self.on), *each] if self.on else each

    def _repr_html_(self) -> str:
        return glance("Coefficients", self._told())


@dataclass(frozen=True, eq=False, repr=False)
class Passage(Shown):
    """Hold what was released of a run's last steps; see the module's text.

    `point` is the model in the coordinates of a row with its intercept, `basis` and `stride` are those of the state,
    `noise` and `hidden` the deviations of a released gradient's and of the moments' entries.
    """

    point: np.ndarray
    basis: np.ndarray
    stride: float
    noise: float
    hidden: float
    steps: int
    tail: float
    rows: int
    norm: float
    whole: float  # stride of Newton's own step, over the squared clip: 1 over the curvature, times the rate
    reach: float
    fitted: bool  # squared loss, where the start is the solution of the moments

    def coefficients(self, names: Sequence[str], empty: np.ndarray | None = None, unit: float = 1.0) -> Coefficients:
        """Return the coefficients of encoded columns and the intercept.

        Args:
            names: of the encoded columns.
            empty: directions, one per column, that no row has by the declarations: nothing is hidden there.
            unit: what a coefficient is multiplied with: columns are often divided by a norm before training.
        """
        width = len(self.point)
        clip2 = self.stride / self.whole
        moments, seen = self._moments(clip2)
        if self.fitted:
            residual2 = clip2 / self.reach**2 / max(seen, 1)
            curve, spread = moments, residual2 * moments
        else:
            curve = spread = logistic_curve(moments, self.point)
        pull, turned = np.linalg.eigh(_symmetric(self.stride * self.basis.T @ curve @ self.basis))
        pull = np.clip(pull, _LEAST, 2.0 - 1e-6)
        kept, weight = _averaged(pull, self.steps, self.tail)
        correction = np.ones(width) if self.fitted else 1.0 / (1.0 - kept)
        axes = self.basis @ turned
        estimate = axes @ (correction * np.linalg.solve(axes, self.point))
        spread = axes.T @ spread @ axes
        sampling = axes @ (self.stride**2 * spread / np.outer(pull, pull) / self.rows) @ axes.T
        noise = axes @ np.diag((self.stride * self.noise * correction) ** 2 * weight) @ axes.T
        hidden = self._unseen(estimate, sampling + noise, empty)
        scale = unit * np.append(np.full(width - 1, 1.0 / self.norm), INTERCEPT)
        scale[-1] = INTERCEPT
        both = np.outer(scale, scale)
        model, found = scale * self.point, scale * estimate
        everything = both * (noise + hidden)
        return Coefficients((*names, "intercept"), model, found, both * sampling, everything, hidden=both * hidden)

    def _moments(self, clip2: float) -> tuple[np.ndarray, int]:
        """Return the second moments of rows, with a guess where noise hides them, and how many directions are seen."""
        values, vectors = np.linalg.eigh(_symmetric(np.linalg.inv(self.basis @ self.basis) / clip2))
        lost = values <= 1.01 * self.hidden
        return (vectors * np.where(lost, _SHARE * values, values)) @ vectors.T, int(np.sum(~lost))

    def _unseen(self, estimate: np.ndarray, known: np.ndarray, empty: np.ndarray | None) -> np.ndarray:
        """Return the covariance of what hidden directions may hold: as much of the score as those that are seen.

        A direction with the moment m and the coefficient c holds m c^2 of the score's variance. A hidden moment is
        taken to be as large as it can be, which is what the moments were raised to.
        """
        width = len(estimate)
        free = np.eye(width) if empty is None else np.linalg.svd(empty, full_matrices=True)[0][:, empty.shape[1] :]
        raised = np.linalg.inv(self.basis @ self.basis) / (self.stride / self.whole)
        values, vectors = np.linalg.eigh(_symmetric(free.T @ raised @ free))
        hidden = values <= _HIDDEN * self.hidden
        lost, seen = free @ vectors[:, hidden], free @ vectors[:, ~hidden]
        if not seen.shape[1]:
            return _ANY * lost @ lost.T
        squares = (seen.T @ estimate) ** 2 - np.einsum("ij,ik,kj->j", seen, known, seen)
        held = max(float(np.mean(values[~hidden] * squares)), 0.0)
        return (lost * (held / values[hidden])) @ lost.T


def passage(
    state: Any, method: Method, problem: Any, sizes: Sequence[int], steps: int, trust: Sum | None = None
) -> Passage | None:
    """Return what a run's last state tells; None where the method or the model is another than those it is known for.

    `state` is that of all agents, stacked, as `Result.agents` has it. All agents have the same releases up to how far
    they agree, so the first one speaks for all.
    """
    if not isinstance(method, DpNewton) or not isinstance(problem, Minimize) or problem.linear is None:
        return None
    if problem.public is not Minimize.public or problem.spread:
        return None
    x = {name: np.asarray(leaf[0], np.float64) for name, leaf in state.x.items()}
    if x["bias"].size != 1 or method.norm <= 0:
        return None
    # With secure sums the program is that of one agent, and the shares of noise add up to more than is charged.
    size = np.asarray(sizes if trust is None else [sum(sizes)], np.float64)
    louder = 1.0 if trust is None else trust.factor(len(sizes))
    own = louder * np.array([float(method.gradient.scale(steps - 1, agent)) for agent in range(len(size))])
    moments = louder * np.array([float(method.moments.scale(0, agent)) for agent in range(len(size))])
    width = len(x["weights"].reshape(-1)) + 1
    # As in `DpNewton`: gradients are averaged by size, moments by squared size.
    deviation = math.sqrt(float(np.sum((size**2 * moments) ** 2))) / float(np.sum(size**2))
    return Passage(
        point=np.append(x["weights"].reshape(-1) * method.norm, x["bias"].reshape(-1) / INTERCEPT),
        basis=np.asarray(state.basis[0], np.float64),
        stride=float(np.asarray(state.stride).reshape(-1)[0]),
        noise=math.sqrt(float(np.sum((size * own) ** 2))) / float(np.sum(size)),
        hidden=method.trust * deviation * math.sqrt(width),
        steps=steps,
        tail=method.tail,
        rows=int(size.sum()),
        norm=method.norm,
        whole=method.rate / problem.linear.curvature,
        reach=method.reach,
        fitted=problem.linear.target is not None,
    )


def logistic_curve(moments: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Return the mean of p(1-p) row row^T for rows that are normal with these second moments, by Stein's lemma.

    The last entry of a row is the constant `INTERCEPT`, so the moments know the mean.

    >>> logistic_curve(np.diag([1.0, 0.25]), np.zeros(2)).round(4).tolist()
    [[0.25, 0.0], [0.0, 0.0625]]
    """
    mean = moments[:, -1] / INTERCEPT
    spread = moments - np.outer(mean, mean)
    toward = spread @ point
    variance = max(float(point @ toward), _LEAST)
    nodes, weights = np.polynomial.hermite.hermgauss(_NODES)
    away = math.sqrt(2.0 * variance) * nodes
    # p(1-p) = 1 / (4 cosh^2(s/2)), which does not overflow
    curve = weights / math.sqrt(math.pi) * 0.25 / np.cosh(np.clip((mean @ point + away) / 2, -300, 300)) ** 2
    rows = mean[:, None] + np.outer(toward, away / variance)
    return np.sum(curve) * (spread - np.outer(toward, toward) / variance) + (rows * curve) @ rows.T


def _averaged(pull: np.ndarray, steps: int, tail: float) -> tuple[np.ndarray, np.ndarray]:
    """Return, per direction, how much of the start is left in the average of the last steps, and the noise's weight.

    A step keeps 1 - pull of the distance to the optimum, and adds a draw of noise.
    """
    last = np.arange(int((1 - tail) * steps), steps)
    left = 1.0 - pull
    kept = np.mean(left[:, None] ** (last + 1), axis=1)
    age = last[None, :] - np.arange(steps)[:, None]  # of the draw of each step, at each averaged step
    passed = np.where(age >= 0, left[:, None, None] ** np.maximum(age, 0), 0.0)
    return kept, np.sum(np.mean(passed, axis=2) ** 2, axis=1)


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return (matrix + matrix.T) / 2


def empty_directions(columns: Declarations, norm: float) -> np.ndarray:
    """Return, in the coordinates of a row with its intercept, directions that no row has whatever the rows are.

    The numbers of one category add up to one (over `norm`, in a row), which the intercept says already; and "other" is
    for what is not expected.

    >>> empty_directions(Declarations({"sex": Column(categories=["F", "M"])}), norm=1.0).shape
    (4, 2)
    """
    width, found, place = len(columns.names) + 1, [], 0
    for column in columns.values():
        if not column.numeric:
            ones = np.zeros(width)
            ones[place : place + column.width] = 1.0
            ones[-1] = -1.0 / (norm * INTERCEPT)
            found.append(ones)
            if len(column.names) < column.width - (column.missing == FLAG):
                found.append(np.eye(width)[place + len(column.names)])
        place += column.width
    return np.array(found).T if found else np.zeros((width, 0))


def in_units(encoded: Coefficients, columns: Declarations, label: Column | None = None) -> Coefficients:
    """Return the coefficients of columns in their own units.

    Per unit of a number, per year of a date, per doubling of a logarithm; per category the difference from the first
    one, per missing value that from the middle. Of a curve, the differences of some values from the middle one, and its
    shape. The intercept is for the middle of each range, the middle value of a curve, and first categories.
    With `label`, a number, effects are in its unit (those of a logarithm are factors' logarithms).
    """
    width = len(encoded.names)
    named, lines, place, base = [], [], 0, np.eye(width)[-1]
    drawn: list[curve_shapes.Shape] = []
    for name, column in columns.items():
        if column.curve is not None:
            own = np.eye(width)[place : place + curves.WIDTH]
            values, sums = curve_shapes.told(column)
            named += [f"{name} {value}" for value in values]
            lines += list(sums @ own)
            base = base + curve_shapes.middle(column) @ own
            drawn.append(_shape(encoded, name, column, own))
            if column.missing == FLAG:
                named.append(f"{name} {MISSING}")
                lines.append(np.eye(width)[place + curves.WIDTH])
        elif column.numeric:
            low, high = map(math.log, column.bounds) if column.log else column.bounds
            unit = math.log(2) if column.log else _YEAR if column.dates else 1.0
            suffix = ", per doubling" if column.log else ", per year" if column.dates else ""
            named.append(name + suffix)
            lines.append(np.eye(width)[place] * 2.0 * unit / (high - low))
            if column.missing == FLAG:
                named.append(f"{name} {MISSING}")
                lines.append(np.eye(width)[place + 1])
        else:
            first, *others = range(place, place + len(column.names))
            base = base + np.eye(width)[first]
            named += [f"{name}={one}, not {column.names[0]}" for one in column.names[1:]]
            lines += [np.eye(width)[other] - np.eye(width)[first] for other in others]
            if column.missing == FLAG:
                named.append(f"{name} {MISSING}, not {column.names[0]}")
                lines.append(np.eye(width)[place + column.width - 1] - np.eye(width)[first])
        place += column.width
    made = replace(encoded.of(np.array([*lines, base]), [*named, "intercept"]), shapes=tuple(drawn))
    if label is None or not label.numeric:
        return made
    low, high = map(math.log, label.bounds) if label.log else label.bounds
    return made.scaled((high - low) / 2, (low + high) / 2)


def _shape(encoded: Coefficients, name: str, column: Column, own: np.ndarray) -> curve_shapes.Shape:
    """Return the shape of a column's curve; `own` picks its encoded columns."""
    values, sums = curve_shapes.lines(column)
    made = encoded.of(sums @ own, [""] * len(values))
    errors = np.sqrt(np.maximum(np.diag(made.noise), 0.0))
    ends = curve_shapes.ends(column, values.tolist())
    return curve_shapes.Shape(name, tuple(values.tolist()), tuple(made.model.tolist()), tuple(errors.tolist()), ends)
