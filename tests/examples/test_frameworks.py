"""The examples for Flax, Equinox and PyTorch, in an environment of their own: they are not in `make setup`."""

import os
import re
import site
import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TORCH = os.environ.get("SOTTOVOCE_TORCH", "torch==2.13.0+cpu")  # a build for processors: the others are very large
PACKAGES = {"flax_model": ["flax"], "equinox_model": ["equinox"], "torch_encoder": [TORCH]}


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Make an environment that sees this one's packages, and is thrown away afterwards."""
    folder = tmp_path_factory.mktemp("frameworks")
    venv.create(folder, with_pip=True)
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "base.pth").write_text("\n".join([str(ROOT / "src"), *site.getsitepackages()]))
    return folder / "bin" / "python"


@pytest.mark.slow
@pytest.mark.parametrize("example", PACKAGES)
def test_an_example_trains_saves_and_opens_a_model(python, tmp_path, example):
    install = [str(python), "-m", "pip", "install", "--quiet", *PACKAGES[example]]
    found = subprocess.run(install, capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"{PACKAGES[example][0]} cannot be installed here: {found.stderr.strip().splitlines()[-1]}")
    run = [str(python), str(ROOT / "examples" / f"{example}.py"), str(tmp_path / "model.sv")]
    found = subprocess.run(run, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    assert found.returncode == 0, found.stderr[-2000:]
    accuracy, epsilon = map(float, re.search(r"accuracy ([\d.]+), epsilon ([\d.]+)", found.stdout).groups())
    assert accuracy > 0.8  # always guessing one class gives about a half
    assert epsilon <= 8.0
