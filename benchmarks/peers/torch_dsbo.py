"""LDP-DSBO in torch.func, the same releases and the same clip: ``python -m benchmarks.peers.torch_dsbo``.

Every agent draws a Poisson batch, padded to one size as ours is, so that agents and records are one `vmap` each.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.func import grad, jvp, vmap

from benchmarks import measure
from benchmarks.peers import work
from benchmarks.peers.pace import paced

PENALTY = 1 / 7840


def loss(w: Any, b: Any, record: Any, label: Any) -> Any:
    return F.cross_entropy((record @ w + b)[None], label[None])


def public(x: Any, w: Any) -> Any:
    return PENALTY * torch.sum(torch.exp(x)[:, None] * w**2)


def along(w: Any, b: Any, zw: Any, zb: Any, record: Any, label: Any) -> Any:
    """Its gradient is the Hessian times z minus the gradient: both levels have the same loss."""
    value, moved = jvp(lambda w, b: loss(w, b, record, label), (w, b), (zw, zb))
    return moved - value


def contender() -> measure.Turns:
    torch.manual_seed(0)
    agents, batch, n = work.DSBO_AGENTS, work.DSBO_BATCH, work.DSBO_RECORDS
    features, labels = (torch.from_numpy(each) for each in work.pictures())
    labels = labels.long()
    rows = torch.arange(agents)[:, None]
    size = batch + 6 * round(batch**0.5)
    state = [torch.zeros(agents, 784), torch.zeros(agents, 784, 10), torch.zeros(agents, 10)]
    state += [torch.zeros_like(state[1]), torch.zeros_like(state[2])]

    def clipped(gradients: Any, mask: Any) -> list[Any]:
        squares = sum((g**2).flatten(2).sum(2) for g in gradients)
        factor = mask * torch.clamp(work.DSBO_CLIP / torch.sqrt(squares), max=1.0) / batch
        means = [torch.einsum("ar,ar...->a...", factor, g) for g in gradients]
        return [mean + work.DSBO_NOISE * torch.randn_like(mean) for mean in means]

    slope_y = vmap(vmap(grad(loss, (0, 1)), (None, None, 0, 0)))
    slope_z = vmap(vmap(grad(along, (0, 1)), (None, None, None, None, 0, 0)))
    public_y = vmap(grad(public, 1))
    public_z = vmap(grad(lambda w, x, zw: jvp(lambda w: public(x, w), (w,), (zw,))[1]))
    public_x = vmap(grad(lambda x, w, zw: -jvp(lambda w: public(x, w), (w,), (zw,))[1]))

    def mixed(value: Any) -> Any:
        weight = work.DSBO_WEIGHT
        return (1 - 2 * weight) * value + weight * (torch.roll(value, 1, 0) + torch.roll(value, -1, 0))

    def step() -> None:
        x, w, b, zw, zb = state
        taken, order = (torch.rand(agents, n) < batch / n).float().topk(size, dim=1)
        data, label = features[rows, order], labels[rows, order]
        radius = work.DSBO_RADIUS / torch.sqrt((zw**2).flatten(1).sum(1) + (zb**2).sum(1)).clamp(min=work.DSBO_RADIUS)
        zw, zb = zw * radius[:, None, None], zb * radius[:, None]
        yw, yb = clipped(slope_y(w, b, data, label), taken)
        hw, hb = clipped(slope_z(w, b, zw, zb, data, label), taken)
        yw, hw = yw + public_y(x, w), hw + public_z(w, x, zw)
        slopes = (public_x(x, w, zw), yw, yb, hw, hb)
        state[:] = [mixed(v) - work.DSBO_RATE * s for v, s in zip((x, w, b, zw, zb), slopes)]
        state[0].clamp_(-10.0, 10.0)

    with torch.no_grad():
        return paced(step)


if __name__ == "__main__":
    with torch.no_grad():
        measure.serve(contender())
