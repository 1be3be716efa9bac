"""Optimisers that a run file can name are those of optax."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sottovoce import optimisers
from sottovoce.schedules import Linear


def test_adam_is_that_of_optax_with_the_rate_of_the_step() -> None:
    ours, theirs = (
        optimisers.Adam(Linear(0.1, 0.0, steps=10), 0.3),
        optax.adamw(optax.linear_schedule(0.1, 0.0, 10), weight_decay=0.3),
    )
    one = two = {"a": jnp.asarray([1.0, -2.0]), "b": jnp.asarray(3.0)}
    kept, other = optimisers.memory(ours, one), optimisers.memory(theirs, two)
    for t in range(5):
        slope = {"a": jnp.asarray([0.1 * t, 1.0]), "b": jnp.asarray(-2.0)}
        one, kept = optimisers.update(ours, one, kept, slope, jnp.asarray(t))
        two, other = optimisers.update(theirs, two, other, slope, jnp.asarray(t))
    assert np.asarray(one["a"]) == pytest.approx(np.asarray(two["a"]), rel=1e-5)
    assert float(one["b"]) == pytest.approx(float(two["b"]), rel=1e-5)
    assert float(one["b"]) != 3.0


def test_a_step_size_remembers_nothing() -> None:
    assert optimisers.memory(0.5, jnp.ones(2)) == ()
    assert optimisers.update(0.5, jnp.ones(2), (), jnp.ones(2), jnp.asarray(0))[0].tolist() == [0.5, 0.5]
