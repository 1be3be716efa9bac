"""Bytes and texts that somebody made up, for every reader of what others send: an error that is expected, or a value.

`make soak` tries 2000 examples per reader, which takes about ten minutes; `make test` a few.
"""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sottovoce import archives, defused
from sottovoce.runtime import stored_program
from sottovoce.runtime.frames import Message, MessageId

from .campaign import cases

EXAMPLES = settings(
    max_examples=cases(2000, 8),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
ARCHIVE = archives.packed({"leaf0": np.arange(6.0), "leaf1": np.ones((2, 3), np.int32)})
FRAME = Message(
    MessageId("run", 5, 3, "step: mix 4"), (np.arange(6.0).reshape(2, 3), np.int32(7)), "release"
).to_bytes()
LEAVES = [np.ones(2, np.float32)]
PROGRAM = stored_program.stored(
    lambda x, rows: jnp.tanh(rows @ x) + jnp.sort(rows, axis=0)[:, 0], LEAVES, np.zeros((1, 2))
)
RUN_FILE = """
title = "t"
[data]
name = "digits"
agents = 5
[task]
name = "mlp"
hidden = [8, 8]
[method]
name = "DpSgd"
rate = {value = 0.5, power = 0.9}
sampling = {kind = "poisson", batch = 20}
gradient = {clip = 1.0}
[run]
steps = 20
[privacy]
epsilon = 8.0
[deploy]
sites = ["a", "b"]
deadline = 100
[[variant]]
name = "one"
"""


@st.composite
def changed(draw, whole):
    """Return bytes or a text with some pieces changed, cut out, moved or made up."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(whole)))
        end = min(len(whole), at + draw(st.integers(0, 40)))
        other = draw(st.binary(max_size=12) if isinstance(whole, bytes) else st.text(max_size=12))
        start = draw(st.integers(0, len(whole)))
        moved = whole[start : start + draw(st.integers(0, 60))]
        whole = whole[:at] + draw(st.sampled_from([other, moved])) + whole[end:]
    return whole


@EXAMPLES
@given(changed(ARCHIVE))
def test_archives(data):
    try:
        found = archives.unpacked(data, "leaf[0-9]+")
    except ValueError:
        return
    assert sum(array.nbytes for array in found.values()) <= len(data)


@EXAMPLES
@given(changed(FRAME))
def test_frames(data):
    try:
        assert Message.from_bytes(data).to_bytes() == data
    except ValueError as error:
        assert "no message" in str(error)  # noqa: PT017


@EXAMPLES
@given(changed(PROGRAM["text"]))
def test_programs(text):
    """What is read again is arithmetic; nothing of it is run here."""
    try:
        stored_program.opened({**PROGRAM, "text": text}, LEAVES)
    except ValueError as error:
        assert "program" in str(error)  # noqa: PT017


FACTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@EXAMPLES
@given(st.sampled_from(sorted(PROGRAM)), FACTS)
def test_facts_of_programs(name, value):
    try:
        stored_program.opened({**PROGRAM, name: value}, LEAVES)
    except ValueError as error:
        assert "program" in str(error)  # noqa: PT017


@EXAMPLES
@given(st.text(max_size=60))
def test_texts(text):
    shown = defused.visible(text)
    assert defused.visible(shown) == shown
    assert "\x1b" not in shown
    assert json.loads(defused.visible(json.dumps(text, ensure_ascii=False))) == text
    assert "\n" not in defused.markdown(text)
    assert "<" not in defused.markdown(text).replace("\\<", "")
    assert not str(defused.cell(text)).startswith(("=", "@", "\t", "\r"))


@EXAMPLES
@given(changed(RUN_FILE))
def test_run_files_of_a_federation(text):
    pytest.importorskip("nvflare")
    from sottovoce.deploy import bounds
    from sottovoce.deploy.order import Order

    try:
        _, case, _ = Order(text, "r").case()
        assert 1 <= bounds.work_of(case) <= 10**15
    except (ValueError, TypeError, PermissionError):
        pass


@EXAMPLES
@given(FACTS | st.dictionaries(st.sampled_from(["state", "round", "steps", "why", "since", "waits for"]), FACTS))
def test_what_sites_say(said):
    pytest.importorskip("nvflare")
    from sottovoce.deploy.poc import in_words
    from sottovoce.deploy.progress import STATES, understood

    found = understood(said)
    assert found["state"] in STATES
    assert understood(found) == found
    assert in_words(found)


@EXAMPLES
@given(changed(b'{"run": "r", "after": [0, -1], "stored": 0, "hold": 1.5}'))
def test_questions(question):
    pytest.importorskip("nvflare")
    from sottovoce.deploy.flare import FlareTransport

    transport = FlareTransport.__new__(FlareTransport)
    transport.run, transport.names, transport.me = "r", ["a", "b"], 0
    found = transport._understood("b", question)
    assert found is None or found["run"] == "r"
