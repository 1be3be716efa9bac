"""Define neural networks as plain pytrees: `init(key)` gives the parameters, `apply(params, features)` the scores.

`apply` takes the features of one record, or of many with a leading axis. Nothing mixes records. Where deep networks
need normalisation it is group norm, within a record, because batch statistics would let a record bypass its own clip.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from sottovoce.trees import Tree


@dataclass(frozen=True)
class Architecture:
    """Describe a neural network: its starting parameters, and how they are applied to one record's features."""

    init: Callable[[jax.Array], Tree]
    single: Callable[[Tree, jax.Array], jax.Array]
    features: tuple[int, ...]

    def apply(self, params: Tree, features: jax.Array) -> jax.Array:
        """Return class scores, for one record or for one record per entry of a leading axis.

        >>> model = mlp((4,), classes=3)
        >>> model.apply(model.init(jax.random.key(0)), jnp.zeros((5, 4))).shape
        (5, 3)
        """
        features = jnp.asarray(features)
        own = math.prod(self.features)
        if features.size == own:
            return self.single(params, features.reshape(self.features))
        return jax.vmap(partial(self.single, params))(features.reshape(-1, *self.features))


def mlp(features: Sequence[int], classes: int, hidden: Sequence[int] = (64,)) -> Architecture:
    """Build a multi-layer perceptron with tanh units, which keep gradients small enough to clip without much loss.

    >>> size(mlp((784,), 10, hidden=(64,)).init(jax.random.key(0)))
    50890
    """
    sizes = [math.prod(features), *hidden, classes]

    def init(key: jax.Array) -> Tree:
        keys = jax.random.split(key, len(sizes) - 1)
        return [_dense(k, m, n) for k, m, n in zip(keys, sizes, sizes[1:])]

    def single(params: Tree, x: jax.Array) -> jax.Array:
        x = x.reshape(-1)
        for layer in params[:-1]:
            x = jnp.tanh(_affine(layer, x))
        return _affine(params[-1], x)

    return Architecture(init, single, tuple(features))


def cnn(features: Sequence[int], classes: int, channels: Sequence[int] = (16, 32), hidden: int = 32) -> Architecture:
    """Build the small network of private image classification: two convolutions with stride 2, two dense layers.

    >>> size(cnn((28, 28, 1), 10).init(jax.random.key(0)))
    26010
    """
    height, width, depth = _picture(features)
    kernels = [(8, "SAME"), *((4, "VALID") for _ in channels[1:])]
    sizes = [depth, *channels]

    def body(convolutions: Tree, x: jax.Array) -> jax.Array:
        for layer, (_, padding) in zip(convolutions, kernels):
            x = _pool(jnp.tanh(_convolve(x, layer["weights"], 2, padding) + layer["bias"]), 2, 1)
        return x.reshape(-1)

    def convolutions(keys: jax.Array) -> Tree:
        return [_conv(k, n, i, o) for k, (n, _), i, o in zip(keys, kernels, sizes, sizes[1:])]

    def flat(keys: jax.Array) -> jax.Array:
        return body(convolutions(keys), jnp.zeros((height, width, depth)))

    wide = jax.eval_shape(flat, jax.random.split(jax.random.key(0), len(kernels))).size
    if wide == 0:
        raise ValueError(
            f"pictures of shape {tuple(features)} are too small for {len(kernels)} convolutions: use fewer"
        )

    def init(key: jax.Array) -> Tree:
        keys = jax.random.split(key, len(kernels) + 2)
        dense = {"hidden": _dense(keys[-2], wide, hidden), "out": _dense(keys[-1], hidden, classes)}
        return {"convolutions": convolutions(keys[:-2]), **dense}

    def single(params: Tree, x: jax.Array) -> jax.Array:
        return _affine(params["out"], jnp.tanh(_affine(params["hidden"], body(params["convolutions"], x))))

    return Architecture(init, single, (*features,))


def resnet18(features: Sequence[int], classes: int, width: int = 64, groups: int = 8) -> Architecture:
    """Build ResNet-18 with group norm, for small pictures (3x3 first convolution, no first pooling).

    `width` is the number of channels of the first stage: 64 is the full network, with 11 million parameters; narrower
    ones keep the depth. It must be a multiple of `groups`.

    >>> size(jax.eval_shape(resnet18((32, 32, 3), 10).init, jax.random.key(0)))
    11173962
    >>> size(jax.eval_shape(resnet18((28, 28, 1), 10, width=8).init, jax.random.key(0)))
    176258
    """
    depth = _picture(features)[2]
    if width < 1 or width % groups:
        raise ValueError(f"width is {width}: group norm needs a positive multiple of {groups} (groups)")
    stages = [(width * 2**stage, 1 if stage == 0 or block else 2) for stage in range(4) for block in range(2)]

    def init(key: jax.Array) -> Tree:
        first, last, *keys = jax.random.split(key, len(stages) + 2)
        blocks, before = [], width
        for k, (channels, stride) in zip(keys, stages):
            one, two, short = jax.random.split(k, 3)
            block = {
                "first": {"kernel": _kernel(one, 3, before, channels), "norm": _norm(channels)},
                "second": {"kernel": _kernel(two, 3, channels, channels), "norm": _norm(channels)},
            }
            if stride != 1 or before != channels:
                block["short"] = {"kernel": _kernel(short, 1, before, channels), "norm": _norm(channels)}
            blocks.append(block)
            before = channels
        stem = {"kernel": _kernel(first, 3, depth, width), "norm": _norm(width)}
        return {"stem": stem, "blocks": blocks, "out": _dense(last, before, classes)}

    def unit(layer: Tree, x: jax.Array, stride: int) -> jax.Array:
        return _group_norm(layer["norm"], _convolve(x, layer["kernel"], stride), groups)

    def single(params: Tree, x: jax.Array) -> jax.Array:
        x = jax.nn.relu(unit(params["stem"], x, 1))
        for block, (_, stride) in zip(params["blocks"], stages):
            inside = unit(block["second"], jax.nn.relu(unit(block["first"], x, stride)), 1)
            x = jax.nn.relu(inside + (unit(block["short"], x, stride) if "short" in block else x))
        return _affine(params["out"], jnp.mean(x, axis=(0, 1)))

    return Architecture(init, single, (*features,))


def size(params: Tree) -> int:
    """Count the parameters.

    >>> size({"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)})
    9
    """
    return sum(int(leaf.size) for leaf in jax.tree.leaves(params))


def _picture(features: Sequence[int]) -> tuple[int, int, int]:
    if len(features) != 3:
        raise ValueError(
            f"features have shape {tuple(features)}, convolutions need (height, width, channels): "
            "load pictures with image=True"
        )
    height, width, depth = features
    return height, width, depth


def _dense(key: jax.Array, inputs: int, outputs: int) -> dict[str, jax.Array]:
    return {"weights": jax.random.normal(key, (inputs, outputs)) / math.sqrt(inputs), "bias": jnp.zeros(outputs)}


def _conv(key: jax.Array, window: int, inputs: int, outputs: int) -> dict[str, jax.Array]:
    scale = 1 / math.sqrt(window**2 * inputs)
    return {"weights": jax.random.normal(key, (window, window, inputs, outputs)) * scale, "bias": jnp.zeros(outputs)}


def _kernel(key: jax.Array, window: int, inputs: int, outputs: int) -> jax.Array:
    """Draw a kernel by He's initialisation; the normalisation that follows has the bias."""
    return jax.random.normal(key, (window, window, inputs, outputs)) * math.sqrt(2 / (window**2 * inputs))


def _norm(channels: int) -> dict[str, jax.Array]:
    return {"scale": jnp.ones(channels), "shift": jnp.zeros(channels)}


def _affine(layer: Tree, x: jax.Array) -> jax.Array:
    return x @ layer["weights"] + layer["bias"]


def _convolve(x: jax.Array, kernel: jax.Array, stride: int, padding: str = "SAME") -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x[None], kernel, (stride, stride), padding, dimension_numbers=layout)[0]


def _pool(x: jax.Array, window: int, stride: int) -> jax.Array:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (window, window, 1), (stride, stride, 1), "VALID")


def _group_norm(layer: Tree, x: jax.Array, groups: int) -> jax.Array:
    height, width, channels = x.shape
    grouped = x.reshape(height * width, groups, channels // groups)
    centred = grouped - jnp.mean(grouped, axis=(0, 2), keepdims=True)
    variance = jnp.mean(centred**2, axis=(0, 2), keepdims=True)
    return (centred * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape) * layer["scale"] + layer["shift"]
