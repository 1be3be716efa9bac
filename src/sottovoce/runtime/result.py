"""Hold what a run gives: the model, its history, and its privacy statement, which travels with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.accounting.content import KEPT, first_alike, program
from sottovoce.files import write_facts
from sottovoce.privacy.report import PrivacyReport
from sottovoce.runtime import checkpoint
from sottovoce.runtime.about import About
from sottovoce.shown import Shown, glance
from sottovoce.tracing import compiled
from sottovoce.trees import Tree

RESULT = ("the result of a run", 1)  # kind and version of result.json
TRAIN = "train "  # first word of a metric that is computed on private records, without noise
EACH = 64  # agents up to which metrics are computed for each of them


def measure(variables: tuple[Tree, ...], evaluate: Callable[..., Mapping[str, Any]] | None) -> dict[str, jax.Array]:
    """Return the consensus error, and the user's metrics for the agents' average and for each agent.

    >>> float(measure((jnp.asarray([1.0, 3.0]),), None)["consensus"])    # the mean squared distance from the average
    1.0
    """
    return evaluated(_figures(evaluate), variables)


@lru_cache(maxsize=KEPT)
def _figures(evaluate: Callable[..., Mapping[str, Any]] | None) -> Callable[..., dict[str, jax.Array]]:
    def figures(variables: tuple[Tree, ...]) -> dict[str, jax.Array]:
        mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), variables)
        agents = jax.tree.leaves(variables)[0].shape[0]
        pairs = zip(jax.tree.leaves(variables), jax.tree.leaves(mean))
        gap = [jnp.sum((leaf - middle) ** 2) for leaf, middle in pairs]
        metrics: dict[str, jax.Array] = {"consensus": sum(gap[1:], gap[0]) / agents}
        if evaluate is not None:
            metrics.update({name: jnp.asarray(value) for name, value in evaluate(*mean).items()})
            if 1 < agents <= EACH:
                each = jax.lax.map(lambda one: dict(evaluate(*one)), variables)
                metrics.update({f"{name}/agents": jnp.asarray(value) for name, value in each.items()})
        return metrics

    return figures


def evaluated(function: Callable[..., Any], *given: Any) -> Any:
    """Return ``function(*given)``, compiled with the arrays that it holds as inputs.

    Test records would otherwise be written into the program, which would be another one for each seed that draws them.
    As it is, all runs side by side share it.

    >>> records = np.arange(3.0)
    >>> float(evaluated(lambda x: jnp.sum(x * records), jnp.asarray(2.0)))
    6.0
    """
    leaves, structure = jax.tree.flatten(given)
    run, form, held = _compiled(function, structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
    return jax.tree.unflatten(form, run(held, *leaves))


@lru_cache(maxsize=KEPT)
def _compiled(
    function: Callable[..., Any], structure: Any, shapes: tuple[Any, ...]
) -> tuple[Callable[..., list[jax.Array]], Any, list[jax.Array]]:
    given = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*one) for one in shapes])
    closed, found = jax.make_jaxpr(function, return_shape=True)(*given)
    alike = first_alike(program(closed, constants=False), compiled(partial(jax.core.eval_jaxpr, closed.jaxpr)))
    return alike, jax.tree.structure(found), [jax.device_put(held) for held in closed.consts]


def handed(releasable: bool, privacy: PrivacyReport) -> list[tuple[str, str]]:
    """Say whether a model may leave, and its statement, for prompts and notebooks.

    >>> import sottovoce as sv
    >>> method = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(1.0, 0.1), sampling=sv.Full())
    >>> handed(False, sv.account(method, sv.Population([50]), steps=1))[0]
    ('may leave', 'no')
    """
    return [("may leave", "yes, with its statement" if releasable else "no"), ("statement", privacy.statement())]


@dataclass(frozen=True, repr=False)
class Result(Shown):
    """Hold what a finished run gives.

    `x` and `y` are the agents' average (for columns: the parties' blocks); `agents` holds all states, stacked.
    `history` maps a metric to its values over time; a metric computed on private records is for the owner's eyes.

    `covered` says whether the privacy statement covers every state of the result: a printed design's final state is
    un-noised, and only its messages are covered. `releasable` says that it is covered and that the noise was drawn as
    deployed; it is never true for a simulation. No statement covers the figures of `evaluate` in the history:
    `public_test` says that they were declared to be of public rows. `about` has the facts that a report shows beside
    the guarantee. `public_constants` is what the problem declared of the arrays inside its functions, `predictor` among
    them.
    """

    x: Tree
    y: Tree | None
    agents: Any
    history: dict[str, np.ndarray]
    privacy: PrivacyReport
    releasable: bool
    predictor: Callable[..., Any] | None = None
    about: About | None = None
    public_constants: bool = False
    public_test: bool = False

    @property
    def covered(self) -> bool:
        """Say whether the statement covers every state of the result."""
        return self.privacy.covered

    def become_chosen(self, epsilon: float, delta: float, words: str, seeded: bool) -> "Result":
        """Return it with the statement of a choice (`sv.select`) in which it was the best trial."""
        privacy = self.privacy.of_the_best(epsilon, delta, words, seeded)
        return replace(self, privacy=privacy, releasable=self.releasable and not seeded)

    def _told(self) -> list[tuple[str, str]]:
        measured = [name for name in self.history if name not in ("step", "seconds") and "/" not in name]
        return [*handed(self.releasable, self.privacy), ("measured (in .history)", ", ".join(measured) or "nothing")]

    def _repr_html_(self) -> str:
        return glance("Result of a run", self._told(), self.privacy.meaning)

    def predict(self, features: Any) -> Any:
        """Return the problem's `predict` with this model."""
        return Model(self.x, self.y, self.privacy, self.predictor).predict(features)

    def save(self, folder: str | Path) -> Path:
        """Write `model.npz` and `result.json` (history, privacy statement and facts) into a folder."""
        folder = Path(folder)
        Model(self.x, self.y, self.privacy, self.predictor).save(folder / "model.npz")
        summary = {
            "privacy": self.privacy.to_dict(),
            "covered": self.covered,
            "releasable": self.releasable,
            "public_test": self.public_test,
            "about": None if self.about is None else self.about.to_dict(),
            "history": {name: values.tolist() for name, values in self.history.items()},
        }
        write_facts(folder / "result.json", *RESULT, summary)
        return folder


@dataclass(frozen=True, repr=False)
class Model(Shown):
    """Hold a model with its privacy statement attached.

    >>> import tempfile, sottovoce as sv
    >>> problem = sv.Minimize(lambda x, r: jnp.sum((x - r) ** 2), jnp.zeros(2), predict=lambda x, rows: rows @ x)
    >>> method = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.1), sampling=sv.Full())
    >>> result = sv.run(problem, [np.ones((100, 2), np.float32)], method, steps=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = Model.load(result.save(folder) / "model.npz", problem)
    >>> model.privacy.epsilon == result.privacy.epsilon, model.predict(np.ones((5, 2))).shape
    (True, (5,))
    """

    x: Tree
    y: Tree | None
    privacy: PrivacyReport
    predictor: Callable[..., Any] | None = None

    def _told(self) -> list[tuple[str, str]]:
        return [("statement", self.privacy.statement())]

    def predict(self, features: Any) -> Any:
        """Return the problem's `predict` on features."""
        if self.predictor is None:
            raise ValueError("this problem was stated without predict=: give it predict(x, features), or with y too")
        given = (self.x,) if self.y is None else (self.x, self.y)
        return self.predictor(*given, features)

    def save(self, path: str | Path) -> None:
        """Write one file: arrays and statement."""
        checkpoint.save(Path(path), (self.x, self.y), {"privacy": self.privacy.to_dict()}, kind="model")

    @classmethod
    def load(cls, path: str | Path, problem: Any) -> "Model":
        """Read a saved model of this problem (which gives the structure of x and y, and `predict`)."""
        like = (problem.x0, getattr(problem, "y0", None))
        (x, y), meta = checkpoint.load(Path(path), like, kind="model")
        return cls(x, y, PrivacyReport.from_dict(meta.get("privacy"), Path(path)), problem.predict)
