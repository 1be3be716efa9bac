"""State what is optimised: a loss (`Minimize`), a min-max loss (`MinMax`), or a bilevel problem (`Bilevel`).

Losses are functions of *one record*, and records are read through the gate only. Terms that contain no record
(regularisers, divergences) are public and stated separately: they are neither clipped nor noised. Example: in softmax
regression the cross entropy of one record is the loss, and ``penalty * |x|^2`` is the public term.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from sottovoce.closed import Closed
from sottovoce.problems import captures, programs
from sottovoce.problems.linear_model import LinearModel, PartyWeights
from sottovoce.problems.sets import Projection
from sottovoce.trees import Tree

Record = Any


def nothing(*_: Any) -> float:
    """Return 0: a problem has no public term."""
    return 0.0


def _anywhere(tree: Tree) -> Tree:
    return tree


@final
@dataclass(frozen=True, eq=False)
class Minimize(Closed):
    """Minimise over x the mean over records of ``loss(x, record)``, plus ``public(x)``.

    Args:
        loss: per-record loss, any JAX function of x (a pytree) and one record.
        x0: where x starts; its structure and shapes are x's.
        public: a term without records, added as it is.
        project_x: keeps x in a set (`sottovoce.problems.sets`, or your own).
        predict: ``predict(x, features)``, for saved models and reports.
        public_constants: set it to True to declare that arrays captured by the functions are public. An array captured
            by a loss bypasses the gate, so by default it is an error.
        linear: what is known beforehand of a model that is linear in a row of numbers; `sv.auto` uses it.
        spread: each agent starts at x0 plus normal numbers of this deviation, drawn for it alone; 0: all start at x0.

    >>> import jax.numpy as jnp
    >>> problem = Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), x0=jnp.zeros(2))
    >>> problem.variables
    ('x',)
    """

    loss: Callable[[Tree, Record], jax.Array]
    x0: Tree
    public: Callable[[Tree], Any] = nothing
    project_x: Projection = _anywhere
    predict: Callable[..., Any] | None = None
    public_constants: bool = False
    linear: LinearModel | None = None
    spread: float = 0.0
    variables: ClassVar[tuple[str, ...]] = ("x",)
    losses: ClassVar[Mapping[str, str]] = {"records": "loss"}

    def __post_init__(self) -> None:
        _fill_defaults(self)


@final
@dataclass(frozen=True, eq=False)
class MinMax(Closed):
    """Minimise over x and maximise over y the mean over records of ``loss(x, y, record)``, plus ``public(x, y)``.

    Arguments as for `Minimize`; `project_y` keeps the adversary in its set (`sets.simplex()` for weights);
    `weighted` is what is known of a loss that weighs parties, each with a linear model's loss. `sv.auto` uses it.

    >>> import jax.numpy as jnp
    >>> saddle = MinMax(lambda x, y, r: x @ y + 0.5 * x @ x - 0.5 * y @ y + r @ x, x0=jnp.zeros(2), y0=jnp.zeros(2))
    >>> saddle.variables
    ('x', 'y')
    """

    loss: Callable[[Tree, Tree, Record], jax.Array]
    x0: Tree
    y0: Tree
    public: Callable[[Tree, Tree], Any] = nothing
    project_x: Projection = _anywhere
    project_y: Projection = _anywhere
    predict: Callable[..., Any] | None = None
    public_constants: bool = False
    spread: float = 0.0
    weighted: PartyWeights | None = None
    variables: ClassVar[tuple[str, ...]] = ("x", "y")
    losses: ClassVar[Mapping[str, str]] = {"records": "loss"}

    def __post_init__(self) -> None:
        _fill_defaults(self)


@final
@dataclass(frozen=True, eq=False)
class Bilevel(Closed):
    """Minimise over x the mean of ``upper(x, y*(x), record)``; y*(x) minimises the mean of ``lower(x, y, record)``.

    The levels may read the same records, or two sets (`sottovoce.data.Levels`: validation above, training below).
    ``public_upper(x, y)`` and ``public_lower(x, y)`` are terms without records, such as ``sum(exp(x) * y**2)``.

    >>> import jax.numpy as jnp
    >>> tune = Bilevel(
    ...     upper=lambda x, y, r: (y @ r["a"] - r["b"]) ** 2,
    ...     lower=lambda x, y, r: (y @ r["a"] - r["b"]) ** 2,
    ...     x0=jnp.zeros(3), y0=jnp.zeros(3),
    ...     public_lower=lambda x, y: jnp.sum(jnp.exp(x) * y**2),
    ... )
    >>> sorted(tune.losses)
    ['lower', 'upper']
    """

    upper: Callable[[Tree, Tree, Record], jax.Array]
    lower: Callable[[Tree, Tree, Record], jax.Array]
    x0: Tree
    y0: Tree
    public_upper: Callable[[Tree, Tree], Any] = nothing
    public_lower: Callable[[Tree, Tree], Any] = nothing
    project_x: Projection = _anywhere
    predict: Callable[..., Any] | None = None
    public_constants: bool = False
    spread: float = 0.0
    variables: ClassVar[tuple[str, ...]] = ("x", "y")
    losses: ClassVar[Mapping[str, str]] = {"upper": "upper", "lower": "lower"}

    def __post_init__(self) -> None:
        _fill_defaults(self)


Problem = Minimize | MinMax | Bilevel


def start(problem: Problem) -> tuple[Tree, ...]:
    """Return the variables' starting values, in the order of ``problem.variables``.

    >>> start(Minimize(lambda x, r: x * r, x0=1.5))
    (1.5,)
    """
    return tuple(getattr(problem, f"{name}0") for name in problem.variables)


def of_jax(problem: Any) -> Any:
    """Return the problem with NumPy's starting values as JAX arrays: NumPy would compute with them beside a trace.

    >>> type(of_jax(Minimize(lambda x, r: x @ r, x0=np.zeros(2))).x0).__name__
    'ArrayImpl'
    """

    def leaf(value: Any) -> Any:
        return jnp.asarray(value) if isinstance(value, np.ndarray) else value

    starts = {name: getattr(problem, name) for name in _STARTS if hasattr(problem, name)}
    return replace(problem, **jax.tree.map(leaf, starts))


def scattered(problem: Any, key: jax.Array) -> Any:
    """Return the problem with starting values of one agent's own: normal numbers of deviation `spread` are added.

    >>> line = Minimize(lambda x, r: x * r, x0=1.5, spread=0.1)
    >>> bool(abs(scattered(line, jax.random.key(0)).x0 - 1.5) < 0.5)
    True
    """
    moved = {}
    for number, name in enumerate(problem.variables):
        leaves, structure = jax.tree.flatten(getattr(problem, f"{name}0"))
        keys = jax.random.split(jax.random.fold_in(key, number), len(leaves))
        drawn = [leaf + problem.spread * jax.random.normal(own, jnp.shape(leaf)) for own, leaf in zip(keys, leaves)]
        keep = getattr(problem, f"project_{name}", _anywhere)
        moved[f"{name}0"] = keep(jax.tree.unflatten(structure, drawn))
    return replace(problem, **moved)


def along(fn: Callable[..., jax.Array], x: Tree, y: Tree, record: Record, z: Tree) -> jax.Array:
    """Return the derivative of ``fn(x, y, record)`` in y along z.

    Its gradient in y is the Hessian-vector product, in x the Jacobian-vector product, so that a second-order release
    is again the gradient of a scalar per record, and no matrix is formed. A loss with a `custom_vjp` inside has no
    forward derivative: write ``inner(jax.grad(fn, 1)(x, y, record), z)`` for it.

    >>> import jax.numpy as jnp
    >>> g = lambda x, y, r: 0.5 * r * jnp.sum(jnp.exp(x) * y**2)
    >>> x, y, z = jnp.zeros(2), jnp.ones(2), jnp.asarray([1.0, 2.0])
    >>> jax.grad(lambda y: along(g, x, y, 3.0, z))(y).tolist()    # Hessian in y times z
    [3.0, 6.0]
    """
    return jax.jvp(lambda at: fn(x, at, record), (y,), (z,))[1]


def public_along(fn: Callable[..., Any], x: Tree, y: Tree, z: Tree) -> jax.Array:
    """Do as `along` for a public term, which takes no record and may be a constant.

    >>> import jax.numpy as jnp
    >>> float(public_along(lambda x, y: jnp.sum(x * y), jnp.ones(2), jnp.zeros(2), jnp.asarray([1.0, 2.0])))
    3.0
    """
    return jax.jvp(lambda at: jnp.asarray(fn(x, at), dtype=float), (y,), (z,))[1]


def check(problem: Problem, records: Mapping[str, Record]) -> None:
    """Try each loss on one record of its set: a scalar must come out, and no undeclared array may be captured.

    Raises a ValueError that names the loss and the remedy.

    >>> check(Minimize(lambda x, r: x - r, x0=jnp.zeros(2)), {"records": jnp.ones(2)})
    Traceback (most recent call last):
    ...
    ValueError: loss returned shapes [(2,)] for one record: it must return one scalar per record
    """
    refuse_captures(problem)
    for name in problem.variables:
        for leaf in jax.tree.leaves(getattr(problem, f"{name}0")):
            if jnp.result_type(leaf) not in (jnp.float32, jnp.float64):
                raise ValueError(
                    f"{name}0 has a leaf of type {jnp.result_type(leaf)}: use floating-point numbers of 32 bits. "
                    "(Whole numbers have no gradient, and rounding to 16 bits moves a mean by more than a clip)"
                )
    for level, name in problem.losses.items():
        loss = getattr(problem, name)
        record = records.get(level, records.get("records"))
        try:
            traced = _traced(problem, name, loss, *start(problem), record)[0]
        except programs.Refused:
            raise
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            shapes = jax.tree.map(lambda leaf: tuple(leaf.shape), record)
            raise ValueError(
                f"{name} could not be evaluated on one record ({type(error).__name__}: {error}). "
                f"It is called as {name}({', '.join(problem.variables)}, record) with one record of shapes {shapes}."
            ) from error
        if [aval.shape for aval in traced.out_avals] != [()]:
            got = [aval.shape for aval in traced.out_avals]
            raise ValueError(f"{name} returned shapes {got} for one record: it must return one scalar per record")
        _derivative(problem, name, loss, record)
    _check_public(problem)


REMEDY = (
    "Pass data as part of the record (or of the features); if the array is public, say so with public_constants=True."
)


def refuse_captures(problem: Any) -> None:
    """Refuse a problem whose functions bring arrays along, unless it declares them public.

    >>> mean = jnp.asarray(0.3)
    >>> refuse_captures(Minimize(lambda x, r: x - r, x0=0.0, predict=lambda x, features: features * x + mean))
    Traceback (most recent call last):
    ...
    ValueError: predict closes over an array of shape (), which would by-pass the privacy gate (mean). Pass data ...
    """
    known = jax.tree.leaves(start(problem))
    for field in fields(problem):
        if field.name not in _STARTS:
            captures.refuse(field.name, getattr(problem, field.name), [], REMEDY, known, problem.public_constants)


_STARTS = ("x0", "y0")


def _traced(problem: Problem, name: str, function: Callable[..., Any], *given: Any) -> tuple[ClosedJaxpr, Any]:
    known = jax.tree.leaves(start(problem))
    return programs.traced(name, function, *given, remedy=REMEDY, declared=known, public=problem.public_constants)


def declared(problem: Any, records: Mapping[str, Record]) -> list[Any]:
    """Return the arrays that a problem declares: its starting values and, with `public_constants`, what it closes over.

    >>> table = jnp.arange(3.0)
    >>> problem = Minimize(lambda x, r: table @ x, x0=jnp.zeros(3), public_constants=True)
    >>> [array.tolist() for array in declared(problem, {"records": jnp.ones(())})]
    [[0.0, 0.0, 0.0], [0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]
    """
    known = jax.tree.leaves(start(problem))
    if not problem.public_constants:
        return known
    terms = _without_records(problem).items()
    traced = [_traced(problem, name, getattr(problem, name), *given)[0] for name, given in terms]
    for level, name in problem.losses.items():
        loss, record = getattr(problem, name), records.get(level, records.get("records"))
        traced += [_traced(problem, name, loss, *start(problem), record)[0], _derivative(problem, name, loss, record)]
    model = getattr(problem, "linear", None) or getattr(problem, "weighted", None)
    held = [array for _, array in captures.arrays_in(model)]
    return [*known, *held, *(one for closed in traced for one in programs.constants(closed.jaxpr, closed.consts))]


def _derivative(problem: Problem, name: str, loss: Callable[..., jax.Array], record: Record) -> ClosedJaxpr:
    """Return the loss's gradient as a jaxpr: rules of `custom_vjp` and `custom_jvp` are written out in it."""
    gradient = jax.grad(loss, argnums=tuple(range(len(problem.variables))))
    return _traced(problem, name, gradient, *start(problem), record)[0]


def _without_records(problem: Problem) -> dict[str, tuple[Tree, ...]]:
    """Return the public terms and the projections by name, with the arguments they are called with."""
    names = [field.name for field in fields(problem)]
    terms = {name: start(problem) for name in names if name.startswith("public") and name != "public_constants"}
    sets = {name: (getattr(problem, f"{name[-1]}0"),) for name in names if name.startswith("project_")}
    return {**terms, **sets}


def _check_public(problem: Problem) -> None:
    """Check that terms without records give one number, that projections keep shapes, and that none captures arrays."""
    for name, given in _without_records(problem).items():
        try:
            _, value = _traced(problem, name, getattr(problem, name), *given)
        except programs.Refused:
            raise
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise ValueError(f"{name} could not be evaluated ({type(error).__name__}: {error})") from error
        if name.startswith("public") and jnp.shape(value) != ():
            raise ValueError(f"{name} returned shape {jnp.shape(value)}: it must return one number (sum it)")
        if name.startswith("project_") and jax.tree.map(jnp.shape, value) != jax.tree.map(jnp.shape, given[0]):
            raise ValueError(f"{name} must return the shapes that it is given, but they changed")


def _fill_defaults(problem: Problem) -> None:
    """Replace None by the default, so that optional terms can be passed on unchanged; check the one number."""
    if not 0 <= problem.spread < math.inf:
        raise ValueError(f"spread is {problem.spread}: give a deviation of at least 0")
    for field in fields(problem):
        if getattr(problem, field.name) is None and callable(field.default):
            object.__setattr__(problem, field.name, field.default)
