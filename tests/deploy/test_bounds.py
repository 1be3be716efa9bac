"""A policy bounds the work: what a line of a run file multiplies is refused before anything is built."""

import subprocess
import sys
import tomllib

import jax
import pytest

from sottovoce.deploy import bounds, rows
from sottovoce.deploy.order import Order
from sottovoce.deploy.outbox import Outbox
from sottovoce.experiments import build
from sottovoce.experiments.runfile import RunFile
from sottovoce.experiments.toml import dump
from sottovoce.runtime.transport import Silence
from tests.deploy import cases
from tests.runtime.test_transport import said

LARGE = {  # a line of the run file, another one in its place, and what is said
    "steps": ("steps = 20", "steps = 1000000000", r"1e\+09 steps: at most 20"),
    "one step more": ("steps = 20", "steps = 21", "21 steps: at most 20"),
    "a batch": ("batch = 20", "batch = 1000000000", r"work 1e\+09"),
    "a large number with a point": ("batch = 20", "batch = 1e12", r"work 1e\+12"),
    "wide layers": ('name = "softmax"', 'name = "mlp"\nhidden = [100000, 100000]', r"work 4e\+06"),
    "an endless number": ("rate = 0.5", "rate = {value = inf}", r"work 1e\+15"),
    "a network": ('kind = "ring"', 'kind = "regular"\ndegree = 100000000', r"work 2e\+09"),
    "a large set": ('name = "digits"', 'name = "digits"\nn = 100000000', r"work 2e\+09"),
    "a deadline": ("deadline = 120", "deadline = 1e300", r"a deadline of 1e\+300 seconds: at most 120"),
}
NESTED = {
    "inner steps": ("DpBilevel", "inner = {steps = 3", "inner = {steps = 300000000"),
    "rounds that are written out": ("DpGradientTracking", "scheme =", "rounds = 1000000\nscheme ="),
}


@pytest.mark.parametrize("case", LARGE)
def test_large_work_is_refused_before_anything_is_built(homes, hall, monkeypatch, case):
    line, other, why = LARGE[case]
    folder = homes(cases.text())
    for name in ("records", "network", "method", "task"):
        monkeypatch.setattr(build, name, lambda *given: pytest.fail("something was built"))
    text = cases.text().replace(line, other)
    assert text != cases.text()
    with pytest.raises(PermissionError, match=f"the policy of south does not agree to {why}"):
        hall(folder, text).parties["south"].prepare()


@pytest.mark.parametrize("case", NESTED)
def test_loops_inside_a_step_are_work(homes, hall, case):
    method, line, other = NESTED[case]
    folder, text = homes(cases.text(method)), cases.text(method).replace(line, other)
    assert text != cases.text(method)
    with pytest.raises(PermissionError, match="does not agree to work"):
        hall(folder, text).parties["south"].prepare()


def test_a_model_is_measured_before_it_is_made(homes, hall, monkeypatch):
    """The sizes of layers are agreed to; what follows from them and from the table's width is not."""
    text = cases.text(steps=2)
    folder = homes(text)
    path = folder / "south" / "policy.toml"
    path.write_text(dump({**tomllib.loads(path.read_text()), "weights": 64 * 10 + 9}))
    party = hall(folder, text).parties["south"]
    party.prepare()
    monkeypatch.setattr(party.transport, "learn", lambda peer, tag, seconds: said_sizes(party))
    monkeypatch.setattr(rows, "setup", lambda *given, **how: pytest.fail("a model was made"))
    with pytest.raises(PermissionError, match="does not agree to weights 650: at most 649"):
        party.run()


def said_sizes(party):
    from sottovoce.runtime.frames import Message

    return Message.from_bytes(party.transport._facts["sizes"])


@pytest.mark.parametrize(
    "more",
    [
        "".join(f'\n[[variant]]\nname="{n}"' for n in range(300)),
        "".join(f'\n[[variant]]\nname="{n}"' for n in range(300))
        + "".join(f'\n[[column]]\nname="{n}"' for n in range(300)),
        '\n[[variant]]\nname="a"' + "".join(f'\n[[column]]\nname="{n}"' for n in range(300)),
        "\n# " + "x" * bounds.LONGEST,
    ],
    ids=["variants", "variants in columns", "columns", "letters"],
)
def test_a_run_file_of_many_runs_is_refused_before_they_are_made(monkeypatch, more):
    monkeypatch.setattr(RunFile, "parse", lambda *given: pytest.fail("it was expanded"))
    with pytest.raises(ValueError, match="a federation"):
        Order(cases.text() + more, "r").case()


@pytest.mark.parametrize("more", ["seeds = [0, 1]", "redraw = true"])
def test_several_seeds_are_refused(more):
    with pytest.raises(ValueError, match=r"run\.seeds has several seeds"):
        Order(cases.text().replace("[run]", f"[run]\n{more}"), "r").case()


def test_a_ready_made_set_is_not_split_into_more_parts_than_there_are_sites(homes, hall, monkeypatch):
    monkeypatch.setattr(build, "records", lambda table: pytest.fail("a set was read"))
    text = cases.text().replace("agents = 5", "agents = 1000000")
    party = hall(homes(text), text).parties["south"]
    party.prepare()
    with pytest.raises(ValueError, match=r"data\.agents is 1000000"):
        party.run()


def test_what_is_kept_for_others_is_bounded_and_a_run_goes_on_once_they_have_it(tmp_path):
    """A peer that never says that it has stored something would keep all messages on this disk."""
    size = len(said().to_bytes())
    box = Outbox(tmp_path, most=3 * size)
    for round in range(3):
        box.say(1, said(round))
    with pytest.raises(Silence, match="have not stored"):
        box.say(1, said(3))
    again = Outbox(tmp_path, most=3 * size)
    with pytest.raises(Silence, match="have not stored"):
        again.say(1, said(3))
    again.forget(lambda hearer: 2, 0)
    again.say(1, said(3))
    assert again.after(1, (2, 0), 0)[0] == (3, 0)


ALLOCATE = """
import numpy as np
from sottovoce.deploy.confine import limit_memory
limit_memory(1.0)
try:
    np.ones(1 << 27)
    raise SystemExit("a gigabyte beside what was there")
except MemoryError:
    limit_memory(4.0)
    np.ones(1 << 27)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems do not count like this")
def test_the_process_of_a_run_gets_no_more_memory_than_the_policy_says():
    tried = subprocess.run([sys.executable, "-c", ALLOCATE], capture_output=True, text=True)
    assert tried.returncode == 0, tried.stderr


def test_a_refusal_for_the_budget_closes_it_and_says_what_a_policy_says(homes, hall):
    """Runs with one epsilon after the other would find out what is left: after the first refusal there is no answer."""
    text = cases.text(steps=2)
    folder = homes(text)
    assert hall(folder, text, run="one").run().failures == {}
    quick = text.replace("deadline = 120", "deadline = 5")
    beyond = hall(folder, quick, run="two").run()
    assert {type(failure).__name__ for failure in beyond.failures.values()} == {"BudgetExceeded"}
    words = beyond.parties["south"].seat.refusal
    assert words == "the policy of south does not agree to epsilon 8.0"
    small = quick.replace("epsilon = 8.0", "epsilon = 0.001")
    for other, run in ((small, "three"), (quick, "two"), (quick.replace("epsilon = 8.0", "epsilon = 9.0"), "four")):
        with pytest.raises(PermissionError) as refused:
            hall(folder, other, run=run).parties["south"].prepare()
        said = str(refused.value).partition(":")[0]
        assert said == f"the policy of south does not agree to epsilon {tomllib.loads(other)['privacy']['epsilon']}"
        assert not (folder / "south" / "runs" / run / "order.json").exists() or run == "two"
    hall(folder, text, run="one").parties["south"].prepare()  # what was begun may go on
    path = folder / "south" / "policy.toml"
    path.write_text(dump({**tomllib.loads(path.read_text()), "budget": 100.0}))
    hall(folder, small, run="five").parties["south"].prepare()


def test_a_policy_of_an_honest_run_has_room(homes, hall):
    """What is written with the kits agrees to the run that it was written for."""
    for method in cases.METHODS:
        folder = homes(cases.text(method))
        hall(folder, cases.text(method)).parties["south"].prepare()
        jax.tree.map(lambda path: path.unlink(), list(folder.glob("*/runs/r/order.json")))
