"""Run files of a federation of five, one per method, and the one-machine run beside it."""

from pathlib import Path

import jax
import numpy as np

from sottovoce.experiments.planned import setup
from sottovoce.experiments.runfile import RunFile

SITES = ["north", "south", "east", "west", "mid"]
HEAD = """
title = "trial"
[data]
name = "digits"
agents = 5
limit = 200
{data}
[run]
steps = {steps}
every = {every}
[privacy]
epsilon = 8.0
[deploy]
sites = ["north", "south", "east", "west", "mid"]
noise = "{noise}"
deadline = {deadline}
absent = "{absent}"
"""
METHODS = {
    "DpSgd": """
[task]
name = "softmax"
[network]
kind = "ring"
[method]
name = "DpSgd"
rate = 0.5
sampling = {kind = "poisson", batch = 20}
gradient = {clip = 1.0}
""",
    "DpGradientTracking": """
[task]
name = "softmax"
[network]
kind = "directed"
pull = [[0, 1], [1, 0], [1, 2], [0, 3], [3, 4]]
push = [[1, 0], [0, 1], [2, 0], [3, 1], [4, 3]]
[method]
name = "DpGradientTracking"
scheme = {alpha = 0.5, beta = 0.5, gamma = 0.05}
gradient = {clip = 1.0}
sampling = {kind = "poisson", batch = 20}
""",
    "LdpDsbo": """
[task]
name = "tuned-logistic"
[network]
kind = "ring"
[method]
name = "LdpDsbo"
step_x = 1.0
step_y = 0.5
step_z = 0.5
release_y = {clip = 1.0, noise = 1.0}
release_z = {clip = 1.0, noise = 1.0}
z_radius = 20.0
sampling = "full"
""",
    "DpMixSgd": """
[task]
name = "robust-logistic"
[network]
kind = "ring"
[method]
name = "DpMixSgd"
rate_x = 0.5
rate_y = 0.02
sampling = {kind = "poisson", batch = 20}
release_x = {clip = 0.5, noise = 0.5}
release_y = {clip = 2.0, noise = 8.0}
""",
    "DpBilevel": """
[task]
name = "tuned-logistic"
[network]
kind = "ring"
[method]
name = "DpBilevel"
step_x = 0.5
inner = {steps = 3, rate = 0.5}
release_y = {clip = 1.0, noise = 1.0}
release_penalised = {clip = 1.0, noise = 1.0}
sampling = "full"
""",
}
DATA = {
    "LdpDsbo": "positive = [0, 1, 2, 3, 4]\nupper = 0.5",
    "DpBilevel": "positive = [0, 1, 2, 3, 4]\nupper = 0.5",
    "DpMixSgd": "positive = [0, 1, 2, 3, 4]",
}


def text(method="DpSgd", noise="simulated", steps=20, every=5, deadline=120, absent="pause"):
    """Return a run file."""
    filled = HEAD.format(
        data=DATA.get(method, ""), noise=noise, steps=steps, every=every, deadline=deadline, absent=absent
    )
    return filled + METHODS[method]


def one_machine(given):
    """Return the states of all agents of the same run on one machine: leaves with one row per agent."""
    made = setup(next(iter(RunFile.parse(given).cases.values())))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(made.run(seed=0).agents)]


def states(kits: Path, sites=SITES):
    """Return what the sites have stored of their last states: leaves with one row per site."""
    found = []
    for site in sites:
        (path,) = (kits / site / "runs").glob("*/run/checkpoint.npz")
        with np.load(path) as file:
            found.append([file[f"leaf{number}"][0] for number in range(len(file.files) - 1)])
    return [np.stack(leaves) for leaves in zip(*found)]


def furthest(ours, theirs):
    """Return the largest relative difference between two lists of arrays."""
    return max(float(np.max(np.abs(a - b)) / max(np.max(np.abs(b)), 1e-12)) for a, b in zip(ours, theirs, strict=True))
