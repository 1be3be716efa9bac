"""Train an Equinox model privately: its arrays are the variables, the rest of it stays in `predict`.

pip install equinox
python examples/equinox_model.py
"""

import sys
from pathlib import Path

import equinox as eqx
import jax
from common import finish, train

if __name__ == "__main__":
    model = eqx.nn.MLP(2, "scalar", width_size=16, depth=1, activation=jax.nn.tanh, key=jax.random.key(0))
    arrays, rest = eqx.partition(model, eqx.is_array)
    result = train(lambda x, features: jax.vmap(eqx.combine(x, rest))(features), arrays)
    finish(result, Path(sys.argv[1] if len(sys.argv) > 1 else "equinox.sv"))
