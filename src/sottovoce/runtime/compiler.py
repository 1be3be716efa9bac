"""Refuse a compiler that computes wrong sums.

jaxlib 0.10.2 returns wrong numbers on processors when a product of a matrix with a row is followed by a sum (issue
39103 of JAX). A clipped sum that is wrong has no known sensitivity, so no epsilon holds for it. Versions on which this
package was tested are trusted. Any other one is asked, once per process, for a sum whose value is known.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

TESTED = ("0.10.0", "0.10.1")
_ROWS = 32_769  # one more than what the wrong program handles at a time


@cache
def require_right_sums() -> None:
    """Raise a RuntimeError that says the remedy if compiled sums are wrong.

    >>> require_right_sums()
    """
    if jax.lib.__version__ not in TESTED and not sums_are_right():
        raise RuntimeError(
            f"jaxlib {jax.lib.__version__} computes wrong sums on this machine, so no guarantee would hold: install "
            "another version (pip install 'jax!=0.10.2'), or set XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type= "
            "(empty) before Python starts"
        )


def sums_are_right() -> bool:
    """Say whether the compiler adds up squares of whole numbers, of which every partial result is exact.

    >>> sums_are_right()
    True
    """
    rows = np.zeros((_ROWS, 3), np.float32)
    rows[:, 0] = np.arange(_ROWS) % 1024
    turned = jax.jit(jax.vmap(lambda row: jnp.sum((jnp.eye(3) @ row) ** 2)))(rows)
    return bool(np.array_equal(turned, rows[:, 0] ** 2))
