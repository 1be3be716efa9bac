"""Run files and tables of a federation over columns, and the one-machine run beside it."""

import csv
from pathlib import Path

import jax
import numpy as np

from sottovoce.data.join import tokens
from sottovoce.experiments.planned import setup
from sottovoce.experiments.runfile import RunFile
from tests.deploy import cases

HOLDERS = {"north": ["a"], "south": ["b", "colour"], "east": ["c"], "west": ["d"], "mid": ["e"]}
ACTIVE, FEATURES = "south", ["a", "b", "colour", "c", "d", "e"]
TEXT = """
title = "columns"
[data]
file = "table.csv"
label = "y"
id = "who"
test = 0.2
[data.columns]
a = {{range = [-3, 3]}}
b = {{range = [-3, 3]}}
colour = {{categories = ["red", "blue"]}}
c = {{range = [-3, 3]}}
d = {{range = [-3, 3]}}
e = {{range = [-3, 3]}}
y = {{categories = ["no", "yes"]}}
[columns]
active = "south"
[columns.holders]
{holders}
[method]
name = "Bambi"
inner_steps = 2
batch = 32
rate_x = 0.1
rate_y = 0.5
[run]
steps = {steps}
every = {every}
[privacy]
epsilon = 2.0
{deploy}
"""
DEPLOY = """
[deploy]
sites = {sites}
noise = "{noise}"
deadline = {deadline}
"""


def text(noise="simulated", steps=20, every=5, deadline=120, holders=None, deployed=True):
    """Return a run file."""
    holders = holders or HOLDERS
    lines = "\n".join(f"{site} = {own}" for site, own in holders.items()).replace("'", '"')
    sites = str(list(holders)).replace("'", '"')
    deploy = DEPLOY.format(sites=sites, noise=noise, deadline=deadline) if deployed else ""
    return TEXT.format(holders=lines, steps=steps, every=every, deploy=deploy)


def people(count=240, seed=0):
    """Return one line per person; ids are texts, some not ASCII."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        line = {name: round(float(rng.normal()), 3) for name in "abcde"}
        line["colour"] = str(rng.choice(["red", "blue", "green"]))
        line["y"] = "yes" if line["a"] + line["b"] + line["c"] > rng.normal() else "no"
        yield {"who": f"Zoë Müller {number}" if number % 3 else f"patient-{number}", **line}


def write(path: Path, lines, names):
    """Write some columns of some lines."""
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, names, extrasaction="ignore")
        out.writeheader()
        out.writerows(lines)


def spread(kits: Path, holders=None, missing=10, file="table.csv", seed=0):
    """Give each site its own columns of its own people, in an order of its own; return those that all have.

    Tests of one process take seeds of their own: labels that have a store get no second one elsewhere.
    """
    everybody, common = list(people(seed=seed)), None
    for number, (site, own) in enumerate((holders or HOLDERS).items()):
        gone = set(range(number * missing, (number + 1) * missing))
        held = [line for place, line in enumerate(everybody) if place not in gone]
        shuffled = [held[k] for k in np.random.default_rng(number).permutation(len(held))]
        write(kits / site / file, shuffled, ["who", *own, *(["y"] if site == ACTIVE else [])])
        ids = {line["who"] for line in held}
        common = ids if common is None else common & ids
    return [line for line in everybody if line["who"] in common]


def in_order(lines, kits: Path):
    """Return lines in the order of their keyed ids, as a join puts them."""
    key = (kits / ACTIVE / "join.key").read_text().strip().encode()
    keyed = tokens([line["who"] for line in lines], key)
    return [lines[k] for k in sorted(range(len(lines)), key=lambda k: keyed[k].tobytes())]


def one_machine(given, lines, folder: Path):
    """Return the states of all parties of the same run on one machine, on one table with all columns."""
    write(folder / "whole.csv", lines, ["who", *FEATURES, "y"])
    made = setup(next(iter(RunFile.parse(given.replace("table.csv", str(folder / "whole.csv"))).cases.values())))
    return made.run(seed=0)


def state(kits: Path, site):
    """Return what a site has stored of its last state."""
    (path,) = (kits / site / "runs").glob("*/run/checkpoint.npz")
    with np.load(path) as file:
        return [file[f"leaf{number}"] for number in range(len(file.files) - 1)]


def furthest(kits: Path, whole):
    """Return the largest relative difference between the sites' states and those of one machine."""
    sites = list(HOLDERS)[: len(whole.agents)]
    return max(
        cases.furthest(state(kits, site), [np.asarray(leaf) for leaf in jax.tree.leaves(own)])
        for site, own in zip(sites, whole.agents, strict=True)
    )
