"""Whoever reads how a record is read has little to read: few calls lie between the question and the records."""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.accounting.content import remembered_keys
from sottovoce.accounting.trace import remembered as traced
from sottovoce.data.sealed import Sealed
from sottovoce.privacy import exact_gate
from sottovoce.runtime.array import ArrayAnswers, ArrayPlace
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out
from sottovoce.runtime.lone_agent import LoneAnswers, programs_of
from sottovoce.runtime.threads import ThreadPlace

PACKAGE = str(Path(sv.__file__).parent)
MOST = 8
PARTS = list(np.ones((2, 4, 2), np.float32))
PROBLEM = sv.Minimize(lambda x, r: x @ r, jnp.zeros(2))
METHOD = sv.methods.DpSgd(0.1, sv.Release(1.0, 0.5), sv.Full())


def frames() -> list[tuple[str, Any]]:
    """The package's own frames on this thread, the innermost first."""
    found, frame = [], sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            found.append((frame.f_code.co_name, frame.f_code))
        frame = frame.f_back
    return found


@pytest.mark.parametrize("place", ["array", "threads", "discrete"])
def test_at_most_eight_frames_lie_between_an_answer_and_the_records(place, monkeypatch):
    for remembered in (traced, remembered_keys, programs_of, exact_gate._slopes):
        remembered.cache_clear()
    jax.clear_caches()
    trace, layout = account_of(METHOD, PARTS, 1, sv.networks.ring(2), problem=PROBLEM).trace, lay_out(PARTS)
    where = {
        "array": lambda: ArrayPlace(trace, PROBLEM, layout, root_key(0), 64),
        "threads": lambda: ThreadPlace.simulated(trace, PROBLEM, layout, root_key(0), 64),
        "discrete": lambda: ThreadPlace.deployed(trace, PROBLEM, layout, 64, lambda agent, t: None),
    }[place]()
    answer = (LoneAnswers if place == "discrete" else ArrayAnswers).__call__.__code__
    seen, honest = [], Sealed.unseal

    def unseal(self: Sealed, *given: Any) -> Any:
        seen.append(frames())
        return honest(self, *given)

    monkeypatch.setattr(Sealed, "unseal", unseal)
    where.advance(where.begin(), 0, 1)
    names, codes = zip(*seen[0])
    depth = codes.index(answer) + 1
    assert depth <= MOST, f"{depth} frames: {', '.join(names[:depth])}"
