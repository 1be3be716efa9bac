"""Mutated run files through the command line: an account, or one sentence with the file's name; never a traceback.

`make soak` tries 500.
"""

import random
import re
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest

from sottovoce.cli import FAULT
from sottovoce.experiments.planned import Planned

from .campaign import cases, command

WHOLE = """title = "t"
[data]
name = "logistic"
n = 200
dim = 3
agents = 4
by = "label"
skew = 0.5
seed = 0
limit = 150
[task]
name = "logistic"
[network]
kind = "ring"
weight = 0.3
[method]
name = "DpSgd"
rate = {value = 1.2, power = 0.95}
sampling = {kind = "poisson", batch = 10}
gradient = {clip = 1.0, noise = 0.5}
[run]
steps = 20
every = 5
seeds = [0, 1]
chunk = 64
metric = "accuracy"
[privacy]
delta = 1e-5
adjacency = "zero-out"
budget = 200.0
[compare]
alone = true
pooled = true
[[variant]]
name = "as it is"
[[variant]]
name = "epsilon 4"
privacy.epsilon = 4.0
[quick]
run.steps = 2
[[printed]]
what = "accuracy"
value = 0.9
"""
TABLE = """[data]
name = "logistic"
n = 100
dim = 4
[task]
name = "vertical-coefficients"
[columns]
parties = 2
stages = 1
models = 1
test = 0.2
log = false
[method]
name = "Bambi"
inner_steps = 1
batch = 10
rate_x = 0.1
rate_y = 0.1
labels = {kind = "memoised", epsilon = 1.0}
[run]
steps = 2
"""
VALUES = re.findall(
    r"\S+",
    """
-1 0 1 1e400 nan inf -inf 1.5 1e-400 -0.0 true false "" "x" [] {} [1,2] {a=1} [[1]] [1,"a"] 2024-01-01 07:32:00
99999999999999999999 9223372036854775807 1000001 "../../etc/passwd" "/tmp" "\\u0000" "\\U0001F40D" "poisson"
"full" {kind="full"} {kind="fixed-size",batch=0} {kind="with-replacement",batch=1e9} {kind="stream",arrivals=-3}
{kind="one-pass",batch=3} {kind="nope"} {value=0,power=1} {value=1,power=nan} {clip=0} {clip=1.0,noise=-1}
{noise=1} {clip=inf,noise=1} {clip=1,noise={value=1,power=400,offset=0}} {clip=1,noise=1e-300}
{clip=[1,2],noise=1} {kind="fresh",scale=0} {kind="open"} "DpSgd.paper" "LdpDsbo" "Bambi" "star" "complete"
"softmax" "digits" "dirichlet" 0x10 1_000 [true] [0.5] [-1] [[0,1],[1,0]]
""",
)
LETTERS = 'xq=[]{}"\\.#\t9é\x00\n-'


def mutated(text: str, rng: random.Random) -> bytes:
    """Return the file with one or two mistakes in it."""
    lines = text.split("\n")
    for _ in range(rng.choice([1, 1, 1, 2])):
        at, how = rng.randrange(len(lines)), rng.random()
        line = lines[at]
        if "=" in line and how < 0.55:
            lines[at] = line.split("=")[0] + "= " + rng.choice(VALUES)
        elif how < 0.65:
            del lines[at]
        elif how < 0.72:
            lines.insert(at, rng.choice(lines))
        elif how < 0.80 and line:
            spot = rng.randrange(len(line))
            lines[at] = line[:spot] + rng.choice(LETTERS) + line[spot + 1 :]
        elif how < 0.88 and line:
            key = line.split("=")[0].strip()
            lines[at] = line.replace(key, key + rng.choice("sx_"), 1)
        elif how < 0.92:
            lines[at] = "deep = " + "[" * rng.choice([5, 50, 5000])
        elif how < 0.95:
            lines[at] = "deep" + ".a" * rng.choice([5, 5000]) + " = 1"
        else:
            name = rng.choice(
                ['".."', '"/etc"', '"a/../../b"', '"."', '"---"', '"é"', f'"{"n" * 300}"', '"\\u0000"', "3"]
            )
            lines += ["[[variant]]", f"name = {name}"]
    whole = "\n".join(lines).encode()
    if rng.random() < 0.04:
        spot = rng.randrange(len(whole))
        whole = whole[:spot] + rng.choice([b"\xff", b"\xc3\x28", b"\xfe\xff"]) + whole[spot:]
    return whole


def test_a_mutated_run_file_is_accounted_for_or_refused_in_a_sentence(tmp_path: Path) -> None:
    rng, seen = random.Random(7), Counter[str]()
    file = tmp_path / "mine.toml"
    for _ in range(cases(500, 10)):
        file.write_bytes(mutated(rng.choice([WHOLE, WHOLE, TABLE]), rng))
        told = command("account", file, *rng.choice([(), (), ("--quick",), ("--set", "run.steps=3"), ("--set", "x=[")]))
        notes, _, fault = f"\n{told.err}".partition("\nerror ")
        said = fault.replace("\n", "")
        assert told.code in (0, 2), (file.read_bytes(), told)
        assert FAULT not in told.err, (file.read_bytes(), told.err)
        if told.code == 2:
            assert all(line.startswith("--set run.steps = 3") for line in notes.split("\n") if line), told.err
            assert str(file) in said, (file.read_bytes(), told.err)
        seen["accepted" if told.code == 0 else "refused"] += 1
    print(f"\nmutated run files: {dict(seen)}")
    assert min(seen["accepted"], seen["refused"]) > 0


def test_no_variant_leaves_the_out_folder(tmp_path: Path) -> None:
    """A variant called ".." wrote beside its out folder (b6_misc)."""
    out = (tmp_path / "out").resolve()
    for name in ("..", ".", "/", "../../x", "a/../../b", "/etc", "é", "\0", "n" * 300, "---", "\n", "", "...x", "a b"):
        row = Planned(name, "together", mock.Mock(), mock.Mock())
        if re.search("[A-Za-z0-9]", name) and len(name) < 200:
            assert (out / row.folder(0)).resolve().parent.parent == out
        else:
            with pytest.raises(ValueError, match="cannot give its folder a name"):
                row.folder(0)
