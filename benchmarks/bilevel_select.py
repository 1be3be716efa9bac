"""DP-SGD on a9a with a penalty chosen by random stopping, once per seed: a rival of dp-bilevel/a9a with one level.

    python -m benchmarks.bilevel_select --write docs/results/dp-bilevel/measured

Four penalties; one is chosen by a noisy score after a random, secret number of trials (Papernot and Steinke 2022). The
rows and steps are those of the reduced dp-bilevel/a9a; the rate is not searched. Every choice is an experiment of its
own with the whole epsilon: [select] refuses several seeds, because on private rows each would be paid for. Here the
rows are public.
"""

import argparse
import csv
import tempfile
from pathlib import Path

import numpy as np

from sottovoce.experiments.execute import execute
from sottovoce.experiments.runfile import RunFile

TEXT = """
title = "a9a, one curator: DP-SGD with a penalty chosen by random stopping, epsilon 1"

[data]
name = "a9a"
agents = 1
limit = 8000

[task]
name = "logistic"
penalty = 2e-4

[method]
name = "DpSgd"
rate = 1.0
gradient = {clip = 1.0, noise = 1.0}
sampling = "full"

[run]
steps = 100
seeds = [0]
chunk = 8192
metric = "auroc"

[privacy]
epsilon = 1.0
delta = 1e-5

[select]
metric = "auroc"
validation = 0.2

[[variant]]
name = "penalty 1e-5"
task.penalty = 1e-5

[[variant]]
name = "penalty 2e-4"
task.penalty = 2e-4

[[variant]]
name = "penalty 1.5e-3"
task.penalty = 1.5e-3

[[variant]]
name = "penalty 1e-2"
task.penalty = 1e-2
"""


def chosen(seed: int) -> tuple[float, float]:
    """Return the test AUROC of the chosen model, and the epsilon of training, scores and choice."""
    runfile = RunFile.parse(TEXT, [f"run.seeds=[{seed}]", f"data.seed={seed}"])
    with tempfile.TemporaryDirectory() as folder:
        (row,) = execute(runfile, folder).rows
    return float(row.values("auroc")[0, -1]), row.runs[0].privacy.epsilon


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="folder for select.csv")
    folder = parser.parse_args().write
    lines = []
    for seed in range(5):
        auroc, epsilon = chosen(seed)
        lines.append([seed, f"{auroc:.4f}", f"{epsilon:.4g}"])
        print(f"seed {seed}: AUROC {auroc:.4f}, epsilon {epsilon:.4g}", flush=True)
    found = np.array([float(line[1]) for line in lines])
    print(f"AUROC {found.mean():.4f} ({found.min():.4f} to {found.max():.4f})")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "select.csv").open("w", newline="") as file:
            print("# python -m benchmarks.bilevel_select --write docs/results/dp-bilevel/measured", file=file)
            print("# DP-SGD on a9a, a penalty chosen by random stopping, epsilon 1 in all; five seeds.", file=file)
            csv.writer(file, lineterminator="\n").writerows([["seed", "auroc", "epsilon"], *lines])


if __name__ == "__main__":
    main()
