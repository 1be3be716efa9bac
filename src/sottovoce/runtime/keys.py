"""Make the keys of a simulated run: same run and same seed, same bytes; anything else, other noise.

Example: two runs with seed 0 that differ in the noise's scale must not draw the same noise, because somebody who sees
both could subtract it. So the seed is folded together with all that the releases depend on: the traced program (method,
noise, losses), the network, and the agent's own records. How a run is computed (chunk, devices) stays out.

The digest of an agent's records lives in memory only. It is never written down: it would confirm a guessed record.
"""

import hashlib
import re
import secrets
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import jax
import numpy as np

from sottovoce.privacy.threefry import fold

PHASES = {"init": 0, "step": 1}


def check_seed(seed: Any) -> None:
    """Refuse what is neither a whole number nor None.

    >>> check_seed(True)
    Traceback (most recent call last):
    ...
    ValueError: seed is True: it must be a whole number, or None
    """
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral)):
        raise ValueError(f"seed is {seed!r}: it must be a whole number, or None")


def root_key(seed: int) -> jax.Array:
    """Return a key made of a seed alone. Threefry only: its vectorised draws equal single ones.

    >>> root_key(0).shape
    ()
    """
    return jax.random.key(seed, impl="threefry2x32")


def agent_keys(seed: int | str, program: str, records: Sequence[bytes]) -> jax.Array:
    """Return one key per agent, made of the seed, what is computed, and the agent's own records.

    >>> one, other = agent_keys(0, "sgd", [b"north", b"south"])
    >>> bool(one == other)
    False
    """
    words = [hashlib.sha256(f"{seed}|{program}|".encode() + own).digest()[:8] for own in records]
    return jax.random.wrap_key_data(jax.device_put(np.frombuffer(b"".join(words), np.uint32).reshape(-1, 2)))


def described(method: Any) -> str:
    """Return a method in words for people, which are the same in every process.

    What it computes is in the traced program (`sottovoce.accounting.identity`).

    >>> described("scale at 0x7f00dead")
    "'scale'"
    """
    return re.sub(r" at 0x[0-9a-f]+", "", repr(method))


def secret_key() -> jax.Array:
    """Return a key from the operating system's entropy.

    >>> bool(secret_key() == secret_key())
    False
    """
    return jax.random.wrap_key_data(jax.device_put(np.frombuffer(secrets.token_bytes(8), np.uint32)))


def common_key(session: bytes) -> jax.Array:
    """Return a key for choices that parties make together, from what all of them know: such a choice is no secret.

    >>> bool(common_key(bytes(32)) == common_key(bytes(32)))
    True
    """
    words = np.frombuffer(hashlib.sha256(b"choices " + session).digest()[:8], np.uint32)
    return jax.random.wrap_key_data(jax.device_put(words))


def phase_key(root: jax.Array, agent: Any, phase: str) -> jax.Array:
    """Return the key of one agent that is common to all steps of a phase.

    >>> phase_key(root_key(0), 1, "step").shape
    ()
    """
    return fold(fold(root, agent), PHASES[phase])


def step_key(root: jax.Array, agent: Any, phase: str, t: Any) -> jax.Array:
    """Return the key of one agent at one step of a phase ("init" or "step").

    >>> bool(step_key(root_key(0), 1, "step", 2) == step_key(root_key(0), 1, "init", 2))
    False
    """
    return fold(phase_key(root, agent, phase), t)
