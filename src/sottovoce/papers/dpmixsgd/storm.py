"""Estimate the two gradients of a min-max problem by STORM: read them from records, and combine them.

Cutkosky and Orabona, "Momentum-based variance reduction in non-convex SGD", NeurIPS 2019. With `keep = 1 - beta`, the
next estimate is ``grad F(here) + keep (estimate - grad F(before))``, with both gradients on the same batch. Example:
gradients 3 here and 2 before, an estimate of 4 and keep = 0.5 give 3 + 0.5 (4 - 2) = 4.
"""

from collections.abc import Callable
from typing import Any

import jax

from sottovoce.methods.agent import Agent, Batch
from sottovoce.methods.design import Reader
from sottovoce.privacy.release import Release
from sottovoce.problems import MinMax
from sottovoce.trees import Tree, add, zeros_like

XY = tuple[Tree, Tree]  # something for x and the same for y


def gradients(read: Reader, releases: tuple[Release, Release], problem: MinMax, at: XY, batch: Batch) -> XY:
    """Read the gradients in x and in y at one point."""
    x, y = (read(release, **_slope(problem, at, which), batch=batch) for which, release in enumerate(releases))
    return x, y


def increments(
    read: Reader,
    releases: tuple[Release, Release],
    problem: MinMax,
    here: XY,
    before: XY,
    keep: tuple[float, float],
    batch: Batch,
) -> XY:
    """Read what the records add to both estimators: the gradient here minus `keep` times the one before."""
    x, y = (
        read(release, **_change(problem, here, before, which, keep[which]), batch=batch)
        for which, release in enumerate(releases)
    )
    return x, y


def noised(agent: Agent, releases: tuple[Release, Release], estimate: XY) -> XY:
    """Return both estimates with the noise of their releases: the messages of the printed design."""
    return agent.tell(releases[0], estimate[0]), agent.tell(releases[1], estimate[1])


def storm(now: XY, keep: tuple[float, float], estimate: XY, then: XY) -> XY:
    """Return now + keep * (estimate - then), for x and for y.

    >>> storm((3.0, 1.0), (0.5, 0.0), (4.0, 9.0), (2.0, 9.0))
    (4.0, 1.0)
    """
    x, y = (
        jax.tree.map(lambda a, g, b, k=k: a + k * (g - b), *leaf)
        for *leaf, k in zip(now, estimate, then, keep, strict=True)
    )
    return x, y


def _toward(fn: Callable[..., Any], at: XY, which: int) -> Callable[..., Any]:
    """Return `fn(x, y, ...)` as a function of one of the two, with the other held at `at`."""
    return lambda own, *record: fn(own, at[1], *record) if which == 0 else fn(at[0], own, *record)


def _slope(problem: MinMax, at: XY, which: int) -> dict[str, Any]:
    """Return what to read for the gradient in x (0) or y (1)."""
    return {
        "records": _toward(problem.loss, at, which),
        "public": _toward(problem.public, at, which),
        "at": at[which],
    }


def _change(problem: MinMax, here: XY, before: XY, which: int, keep: float) -> dict[str, Any]:
    """Return what to read for the gradient here minus `keep` times the one before: one function, hence one clip.

    It is the derivative with respect to a common shift of both points, at shift zero.
    """
    if keep == 0:
        return _slope(problem, here, which)

    def difference(fn: Callable[..., Any]) -> Callable[..., Any]:
        now, then = _toward(fn, here, which), _toward(fn, before, which)
        return lambda shift, *record: (
            now(add(here[which], shift), *record) - keep * then(add(before[which], shift), *record)
        )

    return {
        "records": difference(problem.loss),
        "public": difference(problem.public),
        "at": zeros_like(here[which]),
    }
