"""Join the processes of a cluster: say hello to the keeper, then connect JAX's own multi-process runtime.

For trusted networks only: neither the hello nor JAX's collectives are encrypted.

Example, one process of two: ``join("10.0.0.5:7000", processes=2, rank=1, facts=facts("mine.toml"))``. From then on
every `sottovoce.run` in this process is a run over both; all processes must make the same calls.
"""

import hashlib
import platform
import socket
import threading
import time
from collections.abc import Mapping

import jax

import sottovoce
from sottovoce.runtime import coordination, peers
from sottovoce.runtime.peers import Joined, Link

WAIT = 300.0  # seconds in which all processes must have come


def facts(text: str) -> dict[str, str]:
    """Return what must be the same in all processes; `text` is all that says what is run.

    >>> sorted(facts("title = 'mine'"))
    ['jax', 'jaxlib', 'python', 'run file', 'sottovoce']
    """
    return {
        "sottovoce": sottovoce.__version__,
        "jax": jax.__version__,
        "jaxlib": jax.lib.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "run file": hashlib.sha256(text.encode()).hexdigest()[:16],
    }


def parse_address(address: str) -> tuple[str, int]:
    """Return the host and port of ``HOST:PORT``.

    >>> parse_address("10.0.0.5:7000")
    ('10.0.0.5', 7000)
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f"the coordinator is {address!r}: give HOST:PORT, for example 10.0.0.5:7000")
    return host, int(port)


def check_rank(rank: int, processes: int) -> None:
    """Refuse a rank that is none.

    >>> check_rank(2, processes=2)
    Traceback (most recent call last):
    ...
    ValueError: rank is 2, but with 2 processes ranks go from 0 to 1
    """
    if processes < 1:
        raise ValueError(f"processes is {processes}: it must be at least 1")
    if not 0 <= rank < processes:
        raise ValueError(f"rank is {rank}, but with {processes} processes ranks go from 0 to {processes - 1}")


def join(coordinator: str, processes: int, rank: int, facts: Mapping[str, str], wait: float = WAIT) -> Joined:
    """Become one of the processes; ValueError says what does not fit, before any work."""
    check_rank(rank, processes)
    if not coordination.untouched():
        raise ValueError("this process has used JAX already: join the cluster before anything else")
    link = Link(_reach(parse_address(coordinator), wait))
    link.say(rank=rank, processes=processes, facts=dict(facts), host=socket.gethostname())
    said = link.hear()
    if said is None:
        raise ValueError(f"the keeper at {coordinator} hung up: see the output of process 0")
    if "refused" in said:
        raise ValueError(said["refused"])
    joined = Joined(coordination.connect(said["service"], processes, rank), rank, processes, link)
    threading.Thread(target=_listen, args=(joined,), daemon=True).start()
    peers.enter(joined)
    return joined


def finish(joined: Joined) -> None:
    """Leave in order: tell the others that this process is not lost."""
    joined.gather("done")
    joined.link.say(done=True)


def fail(joined: Joined, why: str) -> None:
    """Tell the others why this process ends, so that they end too."""
    joined.link.say(error=why)


def _reach(address: tuple[str, int], wait: float) -> socket.socket:
    """Connect to the keeper, which may not be there yet."""
    deadline = time.monotonic() + wait
    while True:
        try:
            connection = socket.create_connection(address, timeout=5.0)
            connection.settimeout(None)
            return connection
        except OSError as error:
            if time.monotonic() > deadline:
                raise ValueError(
                    f"nobody answers at {address[0]}:{address[1]} within {wait:g} seconds ({error}): is process 0 "
                    "running there, and is the port open?"
                ) from error
            time.sleep(0.2)


def _listen(joined: Joined) -> None:
    """Wait until the keeper says that a process is lost, and then leave."""
    while (said := joined.link.hear()) is not None:
        if "gone" in said:
            joined.leave(said["gone"])
