"""Measure how long a newcomer needs: from `pip install` of the wheel to a report on an own CSV.

    python benchmarks/first_report.py dist/sottovoce-0.1.0-py3-none-any.whl

For each of Python 3.11 to 3.13 that is on this machine: an empty environment, the wheel, a table of 2 000 patients, and
the commands that a newcomer would type. The lines to fill in come from knowledge of the domain, as a user's would.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

PYTHONS = ("python3.11", "python3.12", "python3.13")
KNOWN = """
age = {range = [18, 100]}
sex = {categories = ["F", "M"]}
pressure = {range = [80, 220]}
ill = {categories = [0, 1]}
"""


def patients(path: Path) -> None:
    """Write a table of made patients of three clinics."""
    rng = np.random.default_rng(0)
    age, pressure = rng.uniform(18, 100, 2000), rng.normal(140, 20, 2000)
    sex = rng.choice(["F", "M"], 2000)
    ill = (age / 40 + (pressure - 140) / 40 + (sex == "M") + rng.normal(0, 0.7, 2000) > 2.2).astype(int)
    clinic = rng.choice(["north", "south", "west"], 2000, p=[0.5, 0.3, 0.2])
    lines = [f"{a:.0f},{s},{p:.0f},{c},{y}" for a, s, p, c, y in zip(age, sex, pressure, clinic, ill)]
    path.write_text("\n".join(["age,sex,pressure,clinic,ill", *lines]) + "\n")


def walk(python: str, wheel: Path) -> dict[str, float]:
    """Do what a newcomer does, and return the seconds of each command."""
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        patients(folder / "patients.csv")

        def typed(*words: str) -> None:
            start = time.perf_counter()
            found = subprocess.run(words, cwd=folder, capture_output=True, text=True)
            if found.returncode:
                raise SystemExit(f"{' '.join(words)}\n{found.stdout}{found.stderr}")
            seconds[" ".join(Path(word).name for word in words)] = time.perf_counter() - start

        own = folder / "env" / "bin"
        typed(python, "-m", "venv", "env")
        typed(str(own / "pip"), "install", "--quiet", str(wheel))
        typed(str(own / "sottovoce"), "init", "patients.csv", "--label", "ill", "--party", "clinic")
        with (folder / "patients.toml").open("a") as file:
            file.write(KNOWN)
        typed(str(own / "sottovoce"), "check", "patients.toml")
        typed(str(own / "sottovoce"), "run", "patients.toml")
        model = next((folder / "runs").rglob("model.sv"))
        typed(str(own / "sottovoce"), "predict", str(model), "patients.csv", "--out", "predicted.csv")
        assert (folder / "runs" / "patients" / "report.html").is_file()
    return seconds


def here(python: str) -> str | None:
    """Return the path of a Python that starts, on the path or where pyenv keeps its own; None if there is none."""
    kept = sorted(Path.home().glob(f".pyenv/versions/*/bin/{python}"))
    for found in (shutil.which(python), *map(str, kept)):
        if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
            return found
    return None


def main() -> None:
    """Print the commands and their seconds, per Python."""
    wheels = [Path(path).resolve() for path in sys.argv[1:]] or sorted(Path("dist").resolve().glob("*.whl"))
    if not wheels:
        print("there is no wheel: `make first-report` builds one")
        return
    wheel = wheels[-1]
    for python in PYTHONS:
        found = here(python)
        if found is None:
            print(f"{python}: not on this machine")
            continue
        seconds = walk(found, wheel)
        print(f"{python}: {sum(seconds.values()) / 60:.1f} minutes")
        for command, taken in seconds.items():
            print(f"  {taken:6.1f} s  {command}")


if __name__ == "__main__":
    main()
