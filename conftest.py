"""Two CPU devices, so that sharded runs can be compared with vectorised ones; and bounded memory."""

import ctypes
import gc
import os
from importlib.util import find_spec
from pathlib import Path

import jax
import pytest

from sottovoce.accounting.content import remembered_keys
from sottovoce.accounting.table import remembered_tables
from sottovoce.accounting.trace import remembered

# Examples that need the extra [deploy] are run where it is installed.
collect_ignore = [] if find_spec("private_set_intersection") else ["src/sottovoce/runtime/join.py"]

jax.config.update("jax_num_cpu_devices", 2)

if find_spec("nvflare") is None:  # pip install 'sottovoce[deploy]'; `make test-deploy` has it
    collect_ignore_glob = ["src/sottovoce/deploy/*.py"]
_ROOM = 2 * 2**30  # bytes that a test process may hold before it forgets compiled programs
_MAPPINGS = 20_000  # Linux ends a process that needs more than 65 530, and each compiled program takes some
# Named when tests are collected, so that a cache that was renamed is noticed at once and not when memory is short.
_FORGET = (remembered.cache_clear, remembered_tables.cache_clear, remembered_keys.cache_clear, jax.clear_caches)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of a file to one worker, unless they say otherwise: its programs are then compiled once."""
    for item in items:
        if item.path.parent.name == "deploy":
            item.add_marker(pytest.mark.deploy)
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(str(item.path)))


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name bytes by their argument: an archive made at collection holds the time, and two workers name a test alike."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to spread the tests of a file: with pytest 9.2, pytest-xdist 3.8 groups none of them, and says nothing."""
    grouped = getattr(session.config.option, "loadgroup", False)
    if grouped and session.items and not any("@" in item.nodeid for item in session.items):
        raise pytest.UsageError("pytest-xdist does not group tests with this pytest: install what constraints.txt says")


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Forget compiled programs if they fill the memory (between files), or the process (after any slow test)."""
    between = nextitem is None or nextitem.path != item.path
    slow = item.get_closest_marker("slow") is not None
    if (between and _resident() > _ROOM) or (slow and _mappings() > _MAPPINGS):
        for forget in _FORGET:
            forget()
        gc.collect()
        _give_back()


def _resident() -> int:
    """Return the bytes that this process holds, where the system tells."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0


def _mappings() -> int:
    """Return how many pieces of memory this process has mapped, where the system tells."""
    maps = Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else 0


def _give_back() -> None:
    """Return freed memory to the system, where the C library can."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except OSError:
        return
