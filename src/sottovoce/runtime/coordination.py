"""Use JAX's coordination service: the only file that uses names of JAX that are not public.

JAX's processes find each other through a service. The public way, `jax.distributed.initialize`, runs it inside of
process 0 and aborts the others when that process ends; then no survivor could store its state. Here the keeper runs the
service, outside of the run. JAX has no public function for that (looked up in 0.10.2), so this file calls what
`jax.distributed.initialize` itself calls. It was written for jax 0.10, and `tests/cluster` runs all of it. A version
that has changed these names is refused before any work, by an error that names the version; runs in one process do not
need them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

HEARTBEAT = 100  # seconds after which JAX gives a silent process up
_JOINING = 60  # seconds in which JAX's part of a process must have joined


@contextmanager
def _known_to_jax() -> Iterator[None]:
    try:
        yield
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(
            f"several processes need jax 0.10, and jax {jax.__version__} differs from it ({error}): install jax 0.10, "
            "or leave out --processes"
        ) from error


def untouched() -> bool:
    """Say whether this process has not computed anything with JAX yet.

    >>> _ = jax.devices()
    >>> untouched()
    False
    """
    with _known_to_jax():
        from jax._src import xla_bridge

        return not xla_bridge.backends_are_initialized()


def serve(address: str, processes: int) -> Any:
    """Run the service at ``HOST:PORT``, as long as what is returned is held."""
    with _known_to_jax():
        from jax._src.lib import _jax

        return _jax.get_distributed_runtime_service(address, processes, heartbeat_timeout=HEARTBEAT, shutdown_timeout=5)


def connect(address: str, processes: int, rank: int) -> Any:
    """Make this process one of JAX's processes; return its line to the service."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    with _known_to_jax():
        from jax._src import distributed
        from jax._src.lib import _jax

        state = distributed.global_state
        state.process_id, state.num_processes, state.coordinator_address = rank, processes, address
        state.client = _jax.get_distributed_runtime_client(
            address,
            rank,
            init_timeout=_JOINING,
            heartbeat_timeout=HEARTBEAT,
            shutdown_on_destruction=False,
            use_compression=True,
        )
    state.client.connect()
    return state.client
