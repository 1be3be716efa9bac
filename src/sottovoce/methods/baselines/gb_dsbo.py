"""GBDSBO: gossip-based decentralised bilevel optimisation with full second derivatives.

Yang, Zhang and Wang, "Decentralized gossip-based stochastic bilevel optimization over communication networks",
NeurIPS 2022. Agents gossip moving averages of gradients and of whole Hessian and Jacobian matrices: q x q and p x q
numbers a message, which is what LDP-DSBO does without.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from sottovoce.methods.base import Method
from sottovoce.methods.ldp_dsbo import Design, check_design, keeper, toward_y, voice
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling
from sottovoce.problems import Bilevel
from sottovoce.schedules import Schedule, schedule
from sottovoce.trees import Tree, combine, descend, reveal

if TYPE_CHECKING:
    from sottovoce.runtime.agent import Agent


class GbState(NamedTuple):
    """Moving averages: `s` of grad_x f, `h` of grad_y f, `jacobian` of hess_xy g, `hessians` of hess_yy g (b of them)."""

    x: Tree
    y: Tree
    s: Tree
    h: Tree
    jacobian: Tree
    hessians: Tree


@dataclass(frozen=True)
class GbDsbo(Method):
    """GBDSBO: gossiped moving averages of gradients, one Jacobian and `terms` Hessians; a Neumann series inverts.

    ``x' = W x - step_x (s - U Q h)`` with ``Q = Q_terms / smoothness``, ``Q_i = I + (I - V_i / smoothness) Q_{i-1}``.
    The Hessians are averaged from batches of their own. Every gossiped matrix is charged: a step makes
    ``4 + terms`` releases (sound), or sends ``5 + terms`` messages of private state (printed).

    Args:
        step_x, step_y: step sizes.
        average: weight of the newest value in every moving average, in (0, 1].
        smoothness: an upper bound on the lower level's Hessian (the series diverges below it).
        terms: how many Hessians are averaged: the length of the series.
        x, y: clip and noise of the upper gradient in x and the lower gradient (printed: noise of the messages x and y).
        gradients: the same for the gossiped gradients s and h.
        matrices: the same for the gossiped matrices; the clip acts on all entries together.
        sampling: how each batch is drawn.
        design: "sound" or "printed".

    >>> import sottovoce as sv
    >>> private = Release(1.0, 0.1)
    >>> method = GbDsbo(0.1, 0.1, 0.5, 1.0, 5, private, private, private, private, sampling=Full())
    >>> [event.split()[-2] for event in sv.account(method, sizes=[50] * 4, steps=1, network=sv.networks.ring(4)).events]
    ['1', '1', '1', '1', '5']
    """

    step_x: Schedule | float
    step_y: Schedule | float
    average: Schedule | float
    smoothness: float
    terms: int
    x: Release
    y: Release
    gradients: Release
    matrices: Release
    sampling: Sampling
    design: Design = "sound"

    solves: ClassVar[tuple[type, ...]] = (Bilevel,)
