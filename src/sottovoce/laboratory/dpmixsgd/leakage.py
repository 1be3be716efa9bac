"""Reconstruct pictures from the messages that an agent really sends (gradient inversion).

Two attacks. DLG (Zhu, Liu and Han, "Deep leakage from gradients", NeurIPS 2019): L-BFGS on a dummy picture and a dummy
label until their gradient matches the message. And a stronger one (Geiping et al., "Inverting gradients", NeurIPS
2020): the label is found first, then the picture's gradient is turned into the direction of the message, with a penalty
on total variation. Both know the model and the clip; the message is that of `DpMixSgd`, taken from the method itself.
An attack that fails proves nothing: only epsilon is a guarantee. The attack shows what an epsilon means in practice.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import brentq, minimize

from sottovoce import data, networks
from sottovoce.accounting.account import account_of
from sottovoce.laboratory.dpmixsgd.similarity import matched, scores
from sottovoce.naming import optional
from sottovoce.papers.dpmixsgd.method import DpMixSgd
from sottovoce.privacy import sound
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full
from sottovoce.problems.tasks import Shape
from sottovoce.problems.tasks.robust import group_robust
from sottovoce.runtime.array import ArrayPlace
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out
from sottovoce.trees import Tree, inner, norm

DELTA = 1e-5
HIDDEN = (64,)
_TINY = 1e-12


@dataclass(frozen=True)
class FirstMessages:
    """Hold what the neighbours of some agents see in the first round: one pair (g*, h*) per agent, stacked."""

    g: Tree
    h: jax.Array
    clip: float


def messages(pictures: np.ndarray, labels: np.ndarray, clip: float, noise: float, seed: int = 0) -> FirstMessages:
    """Return the first messages of `DpMixSgd`; agent i holds ``pictures[i]`` (records, height, width).

    The model is a perceptron for ten classes under the worst weighting of classes.

    >>> seen = messages(np.zeros((2, 1, 4, 4)), np.zeros((2, 1), int), clip=math.inf, noise=0.0)
    >>> seen.h.shape
    (2, 10)
    """
    release = Release(clip, noise)
    method = DpMixSgd(0.1, 0.1, Full(), release_x=release, release_y=release)
    parts = [
        {"features": p.reshape(len(p), -1).astype(np.float32), "label": np.asarray(l, np.int32)}
        for p, l in zip(pictures, labels, strict=True)
    ]
    network = networks.single() if len(parts) == 1 else networks.ring(len(parts))
    problem = _problem(pictures.shape[2:])
    trace = account_of(method, parts, 1, network, problem=problem).trace
    sent = trace.state(ArrayPlace(trace, problem, lay_out(parts), root_key(seed), 1024).begin()).sent
    return FirstMessages(sent[0], sent[1], clip)


def noise_for(epsilon: float, clip: float, records: int = 1, delta: float = DELTA) -> float:
    """Return the noise that makes one such message of both gradients (epsilon, delta)-private.

    The batch is not sampled, and adjacency is replace-one.

    >>> sigma = noise_for(8.0, clip=1.0)
    >>> round(float(sound.storm_printed(1, 1.0, 1.0, 1.0, 1, 1, sigma, sigma, {0}, DELTA)), 4)
    8.0
    """
    return float(brentq(lambda sigma: epsilon_of(sigma, clip, records, delta) - epsilon, 1e-2 * clip, 1e3 * clip))


def epsilon_of(noise: float, clip: float, records: int = 1, delta: float = DELTA) -> float:
    """Return the epsilon of a noise, the inverse of `noise_for`; infinite without clip or noise.

    >>> round(epsilon_of(noise_for(8.0, clip=1.0), clip=1.0), 4), epsilon_of(0.0, clip=1.0)
    (8.0, inf)
    """
    if noise == 0 or not math.isfinite(clip):
        return math.inf
    return float(sound.storm_printed(1, 1.0, 1.0, clip, records, records, noise, noise, {0}, delta))


def infer_labels(seen: FirstMessages) -> np.ndarray:
    """Infer the label of each agent's one record from the message.

    The gradient of the cross entropy in the last bias is negative in one entry only: that of the label. The gradient h
    of the maximising variable is the loss in the label's entry and zero elsewhere. Both are used, each divided by its
    noise.
    """
    bias = seen.g[-1]["bias"]
    return np.asarray(jnp.argmax(seen.h / _spread(seen.h) - bias / _spread(bias), axis=-1))


def dlg(seen: FirstMessages, shape: tuple[int, ...], records: int = 1, steps: int = 200, seed: int = 0) -> np.ndarray:
    """Find pictures (agents, records, height, width) whose gradients match the messages (deep leakage)."""
    pixels = math.prod(shape)

    def attack(agent: int) -> np.ndarray:
        target = jax.tree.map(lambda leaf: leaf[agent], seen.g)
        start = np.random.default_rng((seed, agent)).normal(size=records * (pixels + 10)) * 0.1

        def objective(dummy: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = _distance(jnp.asarray(dummy, jnp.float32), target, seen.clip, shape, records)
            return float(value), np.asarray(slope, np.float64)

        found = minimize(
            objective, start, jac=True, method="L-BFGS-B", options={"maxiter": steps, "ftol": 0, "gtol": 0}
        )
        return found.x.reshape(records, -1)[:, :pixels].reshape(records, *shape)

    return np.stack([attack(agent) for agent in range(len(seen.h))])


@partial(jax.jit, static_argnames=("clip", "shape", "records"))
@partial(jax.value_and_grad, argnums=0)
def _distance(dummy: jax.Array, target: Tree, clip: float, shape: tuple[int, ...], records: int) -> jax.Array:
    """Return the squared distance from the gradient of dummy pictures and labels to the message, relative to it."""
    pictures, labels = jnp.split(dummy.reshape(records, -1), [math.prod(shape)], axis=1)
    gap = jax.tree.map(jnp.subtract, _clipped_mean(shape, clip, pictures, jax.nn.softmax(labels)), target)
    return inner(gap, gap) / (inner(target, target) + _TINY)


def cosine(seen: FirstMessages, shape: tuple[int, ...], steps: int = 600, seed: int = 0) -> np.ndarray:
    """Match the direction of the message, with a penalty on total variation; each agent has one record.

    All agents are attacked at once.
    """
    labels = jax.nn.one_hot(infer_labels(seen), 10)
    start = np.random.default_rng(seed).uniform(size=(len(seen.h), *shape))
    return np.asarray(_turn(jnp.asarray(start, jnp.float32), labels, seen.g, seen.clip, steps))[:, None]


@partial(jax.jit, static_argnames=("clip", "steps"))
def _turn(start: jax.Array, labels: jax.Array, targets: Tree, clip: float, steps: int) -> jax.Array:
    """Run Adam on all pictures at once, with step sizes that fall to zero and pixels kept in [0, 1]."""
    rate, variation = 0.05, 1e-2

    def mismatch(picture: jax.Array, label: jax.Array, target: Tree) -> jax.Array:
        guess = _clipped_mean(picture.shape, clip, picture.reshape(1, -1), label[None])
        angle = 1 - inner(guess, target) / (norm(guess) * norm(target) + _TINY)
        rough = sum(jnp.mean(jnp.abs(jnp.diff(picture, axis=axis))) for axis in (0, 1))
        return angle + variation * rough

    slope = jax.vmap(jax.grad(mismatch))

    def move(k: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        picture, first, second = carry
        step = slope(picture, labels, targets)
        first, second = 0.9 * first + 0.1 * step, 0.999 * second + 0.001 * step**2
        way = first / (1 - 0.9 ** (k + 1)) / (jnp.sqrt(second / (1 - 0.999 ** (k + 1))) + _TINY)
        return jnp.clip(picture - rate * (1 - k / steps) * way, 0, 1), first, second

    return jax.lax.fori_loop(0, steps, move, (start, jnp.zeros_like(start), jnp.zeros_like(start)))[0]


@dataclass(frozen=True)
class Reconstruction:
    """Hold the result of attacking one setting of the noise: figures over all pictures, and the pictures."""

    name: str
    epsilon: float
    scores: Mapping[str, tuple[float, float]]  # attack -> median SSIM and PSNR
    labels_right: float | None
    guesses: Mapping[str, np.ndarray]


def attack(
    name: str, truth: np.ndarray, labels: np.ndarray, clip: float, noise: float, steps: int = 200, seed: int = 0
) -> Reconstruction:
    """Send the pictures ``truth`` (agents, records, height, width) and attack what was sent."""
    records, shape = truth.shape[1], truth.shape[2:]
    seen = messages(truth, labels, clip, noise, seed)
    guesses = {"DLG": dlg(seen, shape, records, steps, seed)}
    right = None
    if records == 1:
        guesses["cosine + TV"] = cosine(seen, shape, seed=seed)
        right = float(np.mean(infer_labels(seen) == labels[:, 0]))
    ordered = {kind: np.stack([matched(t, g) for t, g in zip(truth, guess)]) for kind, guess in guesses.items()}
    figures = {kind: scores(truth, guess) for kind, guess in ordered.items()}
    return Reconstruction(name, epsilon_of(noise, clip, records), figures, right, ordered)


def main(
    out: str | Path = "audit",
    dataset: str = "mnist",
    count: int = 20,
    noises: Sequence[float] = (1e-3, 1e-2, 1e-1),
    epsilon: float = 8.0,
    batch: int = 128,
    steps: int = 200,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> list[Reconstruction]:
    """Attack `count` pictures of a data set under growing noise, print the table, write the pictures to `out`.

    The attack is made on batches of one record, which is the worst case, and on one batch of `batch` records with
    noise 1, which is the setting of the DPMixSGD paper (`batch=0` leaves it out).
    """
    _pyplot()  # what is missing is said before the work
    train, test = data.load(dataset)
    side = math.isqrt(train["features"].shape[1])
    pictures, labels = test["features"].reshape(-1, side, side), test["label"]
    rows = np.random.default_rng(seed).permutation(len(labels))
    one, their = pictures[rows[:count], None], labels[rows[:count], None]
    plans = [
        ("clear, batch 1", one, their, math.inf, 0.0, steps),
        *((f"clip 1, noise {noise:g}, batch 1", one, their, 1.0, noise, steps) for noise in noises),
        (f"clip 1, epsilon {epsilon:g}, batch 1", one, their, 1.0, noise_for(epsilon, 1.0), steps),
    ]
    if batch:
        many, mixed, fewer = pictures[rows[None, :batch]], labels[rows[None, :batch]], -(-steps // 4)
        plans += [
            (f"clear, batch {batch}", many, mixed, math.inf, 0.0, fewer),
            (f"clip 1, noise 1, batch {batch}", many, mixed, 1.0, 1.0, fewer),
        ]
    cases = []
    for name, truth, right, clip, noise, often in plans:
        say(f"attacking: {name}")
        cases.append(attack(name, truth, right, clip, noise, often, seed))
    blind = np.broadcast_to(train["features"].mean(axis=0).reshape(side, side), one.shape)
    console = Console(width=80)
    with console.capture() as table:
        console.print(_table(cases, scores(one, blind), dataset, count))
    say(table.get())
    path = Path(out) / f"dlg-{dataset}.png"
    draw(cases, one[:, 0], blind[0, 0], path)
    say(f"pictures: {path}")
    return cases


def _table(cases: Sequence[Reconstruction], blind: tuple[float, float], dataset: str, count: int) -> Table:
    table = Table(title=f"Gradient inversion, {count} pictures of {dataset}: median SSIM / PSNR")
    for column in ("sent", "epsilon of the message", "DLG", "cosine + TV", "labels read"):
        table.add_column(column)
    for case in cases:
        told = [_pair(case.scores[kind]) if kind in case.scores else "-" for kind in ("DLG", "cosine + TV")]
        labels = "-" if case.labels_right is None else f"{case.labels_right:.0%}"
        table.add_row(case.name, f"{case.epsilon:.4g}", *told, labels)
    table.add_row("nothing: the mean image is guessed", "0", _pair(blind), "", "")
    return table


def _pair(score: tuple[float, float]) -> str:
    return f"{score[0]:.3f} / {score[1]:.1f} dB"


def draw(cases: Sequence[Reconstruction], truth: np.ndarray, blind: np.ndarray, path: Path, columns: int = 8) -> None:
    """Draw rows of pictures: the truth, what each attack made of each message of one record, and the blind guess."""
    pyplot = _pyplot()
    rows = [("truth", truth[:columns])]
    for case in cases:
        rows += [(f"{case.name}\n{kind}", guess[:columns, 0]) for kind, guess in case.guesses.items() if len(guess) > 1]
    rows.append(("mean image", np.broadcast_to(blind, truth[:columns].shape)))
    figure, axes = pyplot.subplots(len(rows), columns, figsize=(columns + 2, len(rows)), squeeze=False)
    for (name, pictures), line in zip(rows, axes):
        for axis, picture in zip(line, pictures):
            axis.imshow(np.clip(picture, 0, 1), cmap="gray", vmin=0, vmax=1)
        for axis in line:
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80, bbox_inches="tight")
    pyplot.close(figure)


def _pyplot() -> Any:
    optional("matplotlib", "pictures", "the attack").use("Agg")
    return optional("matplotlib.pyplot", "pictures", "the attack")


@lru_cache
def _problem(shape: tuple[int, ...]) -> Any:
    return group_robust(Shape((math.prod(shape),), classes=10, agents=1), hidden=HIDDEN).problem


def _clipped_mean(shape: tuple[int, ...], clip: float, pictures: jax.Array, labels: jax.Array) -> Tree:
    """Compute what the gate computes, without noise, on the attacker's guess.

    Labels are distributions, pictures are rows of pixels.
    """
    problem = _problem(shape)

    def loss(x: Tree, picture: jax.Array, label: jax.Array) -> jax.Array:
        each = jax.vmap(lambda c: problem.loss(x, problem.y0, {"features": picture, "label": c}))(jnp.arange(10))
        return label @ each

    def clipped(picture: jax.Array, label: jax.Array) -> Tree:
        slope = jax.grad(loss)(problem.x0, picture, label)
        factor = jnp.minimum(1.0, clip / (norm(slope) + _TINY))
        return jax.tree.map(lambda leaf: factor * leaf, slope)

    if math.isinf(clip):  # no gradient per record needed
        return jax.grad(lambda x: jnp.mean(jax.vmap(partial(loss, x))(pictures, labels)))(problem.x0)
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), jax.vmap(clipped)(pictures, labels))


def _spread(values: jax.Array) -> jax.Array:
    return jnp.std(values, axis=-1, keepdims=True) + _TINY
