"""Per-record functions of many shapes, and their gradients from vmap(grad): each case returns (fn, at, records)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

B = 6
CASES = {}


def case(fn):
    CASES[fn.__name__] = fn
    return fn


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), jnp.float32)


def labels(classes, *shape, seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).integers(0, classes, (B, *shape)))


def cross_entropy(scores, label):
    return -jax.nn.log_softmax(scores)[label]


@case
def linear():
    return lambda w, r: 0.5 * (r[0] @ w - r[1]) ** 2, draw(7), (draw(B, 7), draw(B))


@case
def mlp():
    def fn(p, r):
        return cross_entropy(jnp.tanh(r["x"] @ p["in"][0] + p["in"][1]) @ p["out"], r["y"])

    at = {"in": (draw(9, 8), draw(8)), "out": draw(8, 4)}
    return fn, at, {"x": draw(B, 9), "y": labels(4)}


def surrogate(order):
    fn, at, records = mlp()
    z = jax.tree.map(lambda x: draw(*x.shape, seed=1), at)

    def hvp(p, r):
        return jax.jvp(lambda q: fn(q, r), (p,), (z,))[1] - fn(p, r)

    def by_grad(p, r):
        g = jax.grad(fn)(p, r)
        return sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(g), jax.tree.leaves(z)))

    return {"jvp": hvp, "grad": by_grad}[order], at, records


@case
def hessian_vector_by_jvp():
    return surrogate("jvp")


@case
def hessian_vector_by_grad():
    return surrogate("grad")


@case
def jacobian_vector():
    """Gradient in x of <grad_y g(x, y), z>: hyper-representation, x the embedding, y the head."""
    y, z = draw(5), draw(5, seed=1)

    def fn(x, r):
        def g(y):
            return 0.5 * (jnp.tanh(r[0] @ x) @ y - r[1]) ** 2

        return jax.jvp(g, (y,), (z,))[1]

    return fn, draw(7, 5), (draw(B, 7), draw(B))


@case
def convolutions():
    def fn(p, r):
        x = lax.conv_general_dilated(r[0][None], p["a"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = lax.reduce_window(jax.nn.relu(x + p["b"]), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = lax.conv_general_dilated(x, p["c"], (2, 1), [(1, 1), (0, 1)], dimension_numbers=("NHWC", "OIHW", "NCHW"))
        return cross_entropy(x.reshape(-1) @ p["d"], r[1])

    at = {"a": draw(3, 3, 2, 4), "b": draw(4), "c": draw(3, 4, 3, 2), "d": draw(3 * 2 * 4, 5) / 5}
    return fn, at, (draw(B, 8, 8, 2), labels(5))


@case
def grouped_convolution_second_order():
    z = draw(3, 2, 4, seed=1)

    def loss(w, r):
        out = lax.conv_general_dilated(
            r[None], w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=2
        )
        return jnp.sum(jnp.sin(out))

    return lambda w, r: jax.jvp(lambda w: loss(w, r), (w,), (z,))[1], draw(3, 2, 4), draw(B, 6, 4)


@case
def residual_with_shared_weights():
    def fn(w, r):
        x = r
        for _ in range(3):
            x = x + jnp.tanh(x @ w) @ w.T
        return jnp.sum(x**2)

    return fn, draw(12, 12) / 4, draw(B, 12)


@case
def attention():
    def fn(p, r):
        q, k, v = (jnp.einsum("td,dhe->hte", r, p[name]) for name in "qkv")
        mixed = jnp.einsum("hts,hse->hte", jax.nn.softmax(jnp.einsum("hte,hse->hts", q, k)), v)
        return jnp.sum(jnp.tanh(jnp.einsum("hte,hed->td", mixed, p["o"])))

    at = {name: draw(16, 2, 8, seed=i) / 3 for i, name in enumerate("qkv")} | {"o": draw(2, 8, 16)}
    return fn, at, draw(B, 3, 16)


@case
def embedding():
    def fn(p, r):
        table, head = p
        return cross_entropy(jnp.tanh(table[r["words"]].mean(0)) @ head + table[r["words"][0], :3], r["y"])

    return fn, (draw(40, 5), draw(5, 3)), {"words": labels(40, 4), "y": labels(3)}


@case
def tied_embedding():
    def fn(table, r):
        return cross_entropy(table @ jnp.tanh(table[r[0]]), r[1])

    return fn, draw(9, 4), (labels(9), labels(9, seed=1))


@case
def only_indexed():
    """Data reweighting: one weight per record, picked by the record's number."""
    return lambda w, r: jax.nn.sigmoid(w[r["id"]]) * r["loss"], draw(30), {"id": labels(30), "loss": draw(B)}


@case
def indexed_outside():
    def fn(table, r):
        picked = table.at[r].get(mode="fill", fill_value=0.0)
        return jnp.sum(jnp.sin(picked * jnp.arange(1.0, 4.0)))

    return fn, draw(8, 3), jnp.array([[0, 7, 7], [1, 9, 7], [11, 12, 2], [3, 3, 3], [7, 8, 0], [5, 6, 8]])


@case
def shifted():
    """Parameters around a public point: a constant added to a leaf changes none of its derivatives."""
    here = draw(9, 8, seed=1)

    def fn(p, r):
        return jnp.sum(jnp.sin(jnp.tanh(r @ (p["a"] - here)) @ (p["b"] + 2.0)) + (here[0, :4] - p["c"]) ** 2)

    return fn, {"a": draw(9, 8), "b": draw(8, 4), "c": draw(4)}, draw(B, 9)


@case
def layers_of_one_array():
    def fn(w, r):
        return jnp.sum(jnp.tanh(jnp.tanh(r @ w[0]) @ w[1]) @ w[1:, 0].T)

    return fn, draw(3, 6, 6), draw(B, 6)


@case
def disjoint_layers():
    return lambda w, r: jnp.sum(jnp.tanh(jnp.tanh(r @ w[0]) @ w[1])), draw(2, 6, 6), draw(B, 6)


@case
def normalised():
    def fn(p, r):
        h = r @ p["w"]
        h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-3)
        return jnp.sum(jnp.tanh(h * p["scale"] + p["shift"]) * p["temperature"])

    at = {"w": draw(5, 8), "scale": draw(8), "shift": draw(8, seed=1), "temperature": jnp.float32(0.7)}
    return fn, at, draw(B, 4, 5)


@case
def regularised_inside():
    """Weight decay with learned strengths inside the record function: the leaves meet no record there."""

    def fn(p, r):
        return (
            (r[0] @ p["w"] - r[1]) ** 2
            + jnp.sum(jnp.exp(p["strength"]) * p["w"] ** 2)
            + jax.nn.relu(p["strength"]).sum()
        )

    return fn, {"w": draw(6), "strength": draw(6, seed=1), "unused": draw(2)}, (draw(B, 6), draw(B))


@case
def inside_scan():
    def fn(p, r):
        def step(h, x):
            h = jnp.tanh(h @ p["again"] + x @ p["in"])
            return h, None

        return jnp.sum(lax.scan(step, jnp.zeros(4), r["x"])[0] * jnp.where(r["flag"], 1.0, -2.0) @ p["out"])

    at = {"again": draw(4, 4), "in": draw(3, 4), "out": draw(4, 2)}
    return fn, at, {"x": draw(B, 5, 3), "flag": labels(2) > 0}


@case
def inside_cond_and_custom_rules():
    @jax.custom_vjp
    def halved(x):
        return x

    halved.defvjp(lambda x: (x, None), lambda _, d: (0.5 * d,))

    def fn(p, r):
        x = lax.cond(r[0] > 0, lambda w: jnp.sin(r @ w), lambda w: r @ w, p[0])
        return jnp.sum(halved(jax.nn.silu(x)) * halved(p[1]))

    return fn, (draw(4, 3), draw(3)), draw(B, 4)


@case
def long_sequence():
    return lambda w, r: jnp.sum(jnp.tanh(r @ w) ** 2), draw(4, 5), draw(B, 20, 4)


@case
def rematerialised_and_nested_jit():
    @jax.jit
    def layer(x, w):
        return jnp.tanh(x @ jnp.reshape(w, (6, 4)))

    return lambda w, r: jnp.sum(jax.checkpoint(layer)(r, w) ** 2), draw(2, 3, 4), draw(B, 6)


@case
def broadcast_and_stopped():
    def fn(w, r):
        tiled = jnp.broadcast_to(w[:, None], (5, 3))
        return jnp.sum(jnp.sin(r @ tiled) * (1 + lax.stop_gradient(w)[:3]))

    return fn, draw(5), draw(B, 5)


def explicit(fn, at, records):
    """Per-record gradients as a matrix: float32 numbers, as the clipped sum has them, to be measured in float64."""
    gradients = jax.jit(jax.vmap(jax.grad(fn), (None, 0)))(at, records)
    return np.concatenate([np.asarray(g, np.float64).reshape(g.shape[0], -1) for g in jax.tree.leaves(gradients)], 1)


def flat(tree):
    return np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(tree)])


def size(rows, norm):
    return np.linalg.norm(rows, 1 if norm == "l1" else 2, axis=-1)
