"""Training needs no extra: without dp-accounting and matplotlib everything works but what is theirs, which says so."""

import subprocess
import sys
from pathlib import Path

import pytest

from sottovoce import registry

BLOCKED = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        absent = name.partition(".")[0] in ("dp_accounting", "matplotlib")
        return None if absent else self.finder.find_spec(name, path, target)

sys.meta_path = [Without(finder) for finder in sys.meta_path]
"""

CODE = """
import numpy as np, jax.numpy as jnp, sottovoce as sv
from sottovoce import registry
from sottovoce.laboratory import exhibits
from sottovoce.laboratory.dpmixsgd import leakage
from sottovoce.privacy.accountant import Mechanism, epsilon

def refused(call, words):
    try:
        call()
    except ValueError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"{call} was not refused")

problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), x0=jnp.zeros(2))
method = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(clip=1.0, noise=1.0), sampling=sv.Poisson(20))
parts = [np.ones((50, 2), np.float32)] * 3
result = sv.run(problem, parts, method, network=sv.networks.ring(3), steps=3, epsilon=2.0)
assert result.privacy.epsilon <= 2 and result.privacy.technical()
assert epsilon([(Mechanism(laplace=(0.5,)), 5000)], 1e-5, "zero-out").considered.keys() == {"pure sum", "PLD", "RDP"}
refused(lambda: result.privacy.dp_event, "pip install 'sottovoce[events]'")
refused(lambda: sv.networks.draw(sv.networks.ring(3)), "pip install 'sottovoce[pictures]'")
refused(lambda: leakage.main(), "pip install 'sottovoce[pictures]'")
"""

RUN_FILE = """
title = "tiny"
data = {name = "digits", agents = 3, limit = 90}
task = {name = "softmax"}
method = {name = "DpSgd", rate = 0.5, sampling = {kind = "poisson", batch = 8}, gradient = {clip = 1.0}}
run = {steps = 2}
privacy = {epsilon = 2.0}
"""


def without(code: str, *arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", BLOCKED + code, *arguments], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_python_needs_no_extra() -> None:
    without(CODE)


@pytest.mark.slow
def test_the_command_line_needs_no_extra(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(RUN_FILE)
    main = "from sottovoce.cli import main; main()"
    assert "Report:" in without(main, "run", str(file), "--out", str(tmp_path / "out"))
    assert '"dp_event": null' in without(main, "account", str(file), "--json")
    assert "holds" in without(main, "audit", "--exhibit", "bambi-controls", "--quick")


FIRST = """
import importlib, os, sys
import jax, numpy, pydantic

def alone(name):
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

print([name for name in sys.argv[1:] if not alone(name)])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_method_can_be_imported_first() -> None:
    """The registry imports each of them, whichever comes first."""
    names = [kind.__module__ for kind in registry.available.values()]
    told = subprocess.run([sys.executable, "-c", FIRST, *names], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
