"""What the campaigns share: how many cases to try, damage to bytes, and the command line inside this process."""

import contextlib
import io
import math
import os
import random
import sys
from typing import NamedTuple
from unittest import mock

from sottovoce import cli


def cases(full: int, few: int) -> int:
    """Return how many cases to try: `few` in `make test`, `full` in `make soak`, which sets SOAK=1 (or a share)."""
    share = float(os.environ.get("SOAK", "0"))
    return math.ceil(full * share) if share else few


class Told(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


def command(*words: object) -> Told:
    """Run a command of `sottovoce` in this process; what it raises beside SystemExit is a traceback for its user."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["sottovoce", *map(str, words)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Told(code, out.getvalue(), err.getvalue())


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return what an accident might leave: flipped bits, a cut, a hole, bytes too many, zeros, or something else."""
    how = rng.choice(["flip"] * 6 + ["cut", "cut", "hole", "insert", "zeros", "blank", "noise", "empty", "twice"])
    bad, at = bytearray(data), rng.randrange(max(1, len(data)))
    if how == "flip":
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del bad[at:]
    elif how == "hole":
        del bad[at : at + rng.randrange(1, 20)]
    elif how == "insert":
        bad[at:at] = rng.randbytes(rng.randrange(1, 16))
    elif how == "zeros":
        some = min(rng.randrange(1, 64), len(bad) - at)
        bad[at : at + some] = bytes(some)
    elif how == "blank":
        bad = bytearray(len(bad))
    elif how == "noise":
        bad = bytearray(rng.randbytes(rng.randrange(1, 2 * len(bad) + 2)))
    elif how == "twice":
        bad += data
    return b"" if how == "empty" else bytes(bad)
