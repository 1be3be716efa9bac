"""Train a Flax model privately: `init` gives the variables, `apply` is the prediction.

pip install flax
python examples/flax_model.py
"""

import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
from common import finish, train


class Perceptron(nn.Module):
    """One hidden layer."""

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        """Return one logit per row."""
        return nn.Dense(1)(nn.tanh(nn.Dense(16)(features)))[:, 0]


if __name__ == "__main__":
    model = Perceptron()
    start = model.init(jax.random.key(0), jnp.zeros((1, 2)))
    finish(train(model.apply, start), Path(sys.argv[1] if len(sys.argv) > 1 else "flax.sv"))
