"""Processes that talk over sockets, beside one that does the same on threads."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def apart(module: str, count: int) -> tuple[list[Any], Any, list[int]]:
    """Run ``python -m MODULE ME`` for each of `count` members, and MODULE alone for all of them on threads.

    A member prints its address and reads everybody's. Return what the members and the threads print at last, and all
    exit codes.
    """
    each, threads = [_started(module, str(me)) for me in range(count)], _started(module)
    try:
        addresses = json.dumps([json.loads(one.stdout.readline()) for one in each])
        for one in each:
            one.stdin.write(addresses + "\n")
            one.stdin.flush()
        *found, wanted = [json.loads(one.communicate(timeout=120)[0]) for one in (*each, threads)]
    finally:
        for one in (*each, threads):
            one.kill()
    return found, wanted, [one.returncode for one in (*each, threads)]


def _started(module: str, *arguments: str) -> Any:
    command = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "true"}  # for all: other programs, other last bits
    pipe, root = subprocess.PIPE, Path(__file__).parents[2]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=root)
