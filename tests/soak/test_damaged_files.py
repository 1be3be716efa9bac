"""Damaged, foreign, swapped and old files: each is refused in a sentence with its name and a remedy, or reads the same.

`make soak` tries 5 000.
"""

import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce import files
from sottovoce.cli import FAULT
from sottovoce.privacy import ledger as ledgers
from sottovoce.privacy.labels import Labels
from sottovoce.reports import comparison
from sottovoce.runtime import checkpoint, generations, peers
from sottovoce.runtime.result import RESULT, Model
from sottovoce.runtime.run_state import RunFolder, RunState

from .campaign import cases, command, damaged

TRIALS = cases(5000, 270)
REMEDY = re.compile(r"[Rr]estore|choose|give|use the version|run (the experiment )?again|Run into|undo|continue")
LABELS = np.arange(60) % 3
PROBLEM = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(6), predict=lambda x, rows: rows @ x)
METHOD = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.1), sampling=sv.Full())
DATA = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
TOGETHER = {  # files that vouch for each other
    "ledger.jsonl": ["ledger.jsonl", "ledger.jsonl.head"],
    "ledger.jsonl.head": ["ledger.jsonl", "ledger.jsonl.head"],
    "labels.npz": ["labels.npz", "labels.npz.head"],
    "labels.npz.head": ["labels.npz", "labels.npz.head"],
    "checkpoint.npz": ["checkpoint.npz", "run.json"],
    "run.json": ["checkpoint.npz", "run.json"],
    "comparison.json": ["comparison.json", "run.toml", "result.json"],
    "result.json": ["result.json"],
    "model.npz": ["model.npz"],
}


def made(folder: Path) -> Path:
    """Make one of every file."""
    result = sv.run(PROBLEM, [DATA], METHOD, steps=6, every=2, out=folder, evaluate=lambda x: {"loss": jnp.sum(x**2)})
    assert result.privacy.private
    labels = Labels(LABELS, 3, seed=0, path=folder / "labels.npz", ids=[f"{folder} {row}" for row in range(60)])
    labels.memo(1.0)
    labels.redraw(0.5)
    row = {"name": "a", "kind": "together", "metric": None, "runs": ["."]}
    comparison.save_plan(folder, "title", "title = 'x'", [], [row])
    return folder


def readers(home: Path) -> dict[str, Callable[[Path], Any]]:
    """Return what reads each file, as plain values that can be compared."""
    meta, leaves = checkpoint.read(home / "checkpoint.npz", "checkpoint")
    ids = [f"{home} {row}" for row in range(60)]

    secret = RunFolder.open(home, resume=True).secret
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    place: Any = SimpleNamespace(shapes=shapes, holds=None, restored=list)

    def resumed(folder: Path) -> Any:
        found = RunFolder.open(folder, resume=True)
        records = meta["identity"]["records"] if found.secret == secret else "as another secret seals them"
        identity = {**meta["identity"], "records": records}
        step = generations.latest(folder, peers.current())
        state = RunState.restore(folder, step or 0, identity, place, peers.current())
        return found.name, found.secret, [np.asarray(leaf).tobytes() for leaf in state.leaves], repr(state.history)

    def model(folder: Path) -> Any:
        found = Model.load(folder / "model.npz", PROBLEM)
        return np.asarray(found.x).tobytes(), found.privacy.to_dict()

    def ledger(folder: Path) -> Any:
        return repr(ledgers.Ledger(folder / "ledger.jsonl").entries)

    def labels(folder: Path) -> Any:
        found = Labels(LABELS, 3, seed=0, path=folder / "labels.npz", ids=ids)
        drawn = [(e, m.observed.tobytes(), m.likelihood.tobytes()) for e, m in sorted(found._memos.items())]
        return drawn, float(found.epsilon()), sorted(found._runs)

    def report(folder: Path) -> Any:
        shown = comparison.load(folder)
        (row,) = shown.rows
        history = {name: values.tolist() for name, values in row.runs[0].history.items()}
        return row.privacy.to_dict(), history, row.runs[0].releasable

    def plan(folder: Path) -> Any:
        return comparison.load(folder).title, report(folder)

    return {
        "checkpoint.npz": resumed,
        "run.json": resumed,
        "model.npz": model,
        "ledger.jsonl": ledger,
        "ledger.jsonl.head": ledger,
        "labels.npz": labels,
        "labels.npz.head": labels,
        "result.json": report,
        "comparison.json": plan,
    }


def old(name: str, data: bytes) -> bytes:
    """Return a whole file of an earlier version."""
    if name == "ledger.jsonl":
        return data.replace(f'"version": {ledgers.VERSION}'.encode(), b'"version": 1')
    facts = json.loads(data)
    facts["version"] -= 1
    if "check" in facts:
        del facts["check"]
        facts["check"] = files._check(facts)
    return json.dumps(facts).encode()


def outcome(read: Callable[[Path], Any], folder: Path, name: str, good: Any) -> str:
    """Return how it went, in a word; fail if it went wrong."""
    try:
        found, said = read(folder), None
    except ValueError as error:
        found, said = None, str(error)
    if said is None:
        assert found == good, f"{name} is silently different"
        return "the same"
    assert str(folder) in said, (name, said)
    assert REMEDY.search(said), (name, said)
    assert "\n" not in said, (name, said)
    return "refused"


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return made(tmp_path_factory.mktemp("one") / "run"), made(tmp_path_factory.mktemp("two") / "run")


def test_a_damaged_file_is_refused_in_one_sentence_or_reads_the_same(homes: tuple[Path, Path], tmp_path: Path) -> None:
    home, other = homes
    rng, seen, read = random.Random(5), Counter[str](), readers(home)
    good = {name: reader(home) for name, reader in read.items()}
    contents = {name: (home / name).read_bytes() for name in {*TOGETHER, "run.toml"}}
    shutil.rmtree(home)  # as if moved: a copy of label files beside the store they come from is refused as such
    for number in range(TRIALS):
        name = list(TOGETHER)[number % len(TOGETHER)]
        folder = tmp_path / str(number)
        folder.mkdir()
        for beside in TOGETHER[name]:
            (folder / beside).write_bytes(contents[beside])
        how = rng.choice(["damaged"] * 7 + ["foreign", "another run's", "old", "a folder"])
        if how == "another run's" and name in ("result.json", "model.npz", "comparison.json"):
            how = "damaged"  # these stand for themselves
        if how == "old" and name.endswith(".npz"):
            how = "damaged"  # the next test
        bad = damaged(contents[name], rng)
        if how == "foreign":
            bad = contents[rng.choice([one for one in contents if one != name])]
        elif how == "another run's":
            bad = (other / name).read_bytes()
        elif how == "old":
            bad = old(name, contents[name])
        (folder / name).unlink()
        if how == "a folder":
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(bad)
        seen[f"{how}: {outcome(read[name], folder, name, good[name])}"] += 1
        shutil.rmtree(folder)
    print(f"\n{TRIALS} files, none silently wrong: {dict(sorted(seen.items()))}")
    assert seen["damaged: refused"] > TRIALS // 3
    assert not seen["another run's: the same"]
    home.mkdir()
    for name, content in contents.items():
        (home / name).write_bytes(content)


def test_a_checkpoint_of_an_old_version_is_refused(homes: tuple[Path, Path], tmp_path: Path) -> None:
    with mock.patch.object(checkpoint, "VERSION", 0):
        checkpoint.save(tmp_path / "checkpoint.npz", [jnp.ones(2)], {})
    with pytest.raises(ValueError, match=r"checkpoint\.npz has version 0.*use the version"):
        checkpoint.load(tmp_path / "checkpoint.npz", [jnp.ones(2)])


def test_the_command_line_has_a_sentence_for_every_damaged_file(homes: tuple[Path, Path], tmp_path: Path) -> None:
    home, rng, seen = homes[1], random.Random(6), Counter[str]()
    asked = {
        "result.json": lambda folder: ("report", folder),
        "comparison.json": lambda folder: ("report", folder),
        "run.toml": lambda folder: ("report", folder),
        "ledger.jsonl": lambda folder: ("ledger", "show", folder / "ledger.jsonl"),
        "ledger.jsonl.head": lambda folder: ("ledger", "show", folder / "ledger.jsonl"),
    }
    for number in range(cases(300, 10)):
        name = list(asked)[number % len(asked)]
        folder = tmp_path / str(number)
        folder.mkdir()
        for beside in (*TOGETHER.get(name, []), "result.json", "run.toml"):
            shutil.copy(home / beside, folder / beside)
        (folder / name).write_bytes(damaged((home / name).read_bytes(), rng))
        told = command(*asked[name](folder))
        assert told.code in (0, 2), told
        assert FAULT not in told.err, told.err
        if told.code == 2:
            assert str(folder) in told.err.replace("\n", ""), told.err
        seen[f"exit code {told.code}"] += 1
    print(f"\nthe command line on damaged files: {dict(seen)}")


def test_a_result_without_a_statement_is_refused(tmp_path: Path) -> None:
    files.write_facts(tmp_path / "result.json", *RESULT, {"history": {"step": [0]}, "releasable": False})
    told = command("report", tmp_path)
    assert told.code == 2
    assert "result.json holds no privacy statement" in told.err
    (tmp_path / "result.json").write_text('{"history": {}}')
    assert "result.json is damaged, or is not the result of a run" in command("report", tmp_path).err.replace("\n", " ")
