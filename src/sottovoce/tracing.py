"""Let threads trace one at a time.

Rules for derivatives inside of a program keep what JAX found out of them, and JAX fails where two threads trace one of
them at once. Tracing and compiling wait for each other here; compiled programs run side by side.
"""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")
_TRACING = threading.RLock()


def one_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that traces, for one thread at a time.

    >>> one_at_a_time(lambda x: x + 1)(1)
    2
    """

    @wraps(function)
    def alone(*given: P.args, **named: P.kwargs) -> R:
        with _TRACING:
            return function(*given, **named)

    return alone


def compiled(function: Callable[..., Any]) -> Any:
    """Return a function compiled by `jax.jit`, whose tracing waits for that of other threads.

    >>> int(compiled(lambda x: x + 1)(1))
    2
    """
    return jax.jit(one_at_a_time(function))
