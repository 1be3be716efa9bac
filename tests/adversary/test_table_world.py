"""The search over columns: every label gate, with stages, kept in a file or not, and whoever's rows are read."""

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce import files
from sottovoce.privacy import label_store
from sottovoce.privacy.labels import Open
from sottovoce.runtime import lone_party

from .table_world import BASE, CHANGES, ROWS, SINGLE, UNEVEN, Run, Step, Store, of_runs


def compare(found: Iterable[tuple[Any, tuple[float, float]]]) -> Counter[str]:
    """Count what was compared; AssertionError names the configurations that cost more than is stated."""
    counts, wrong, start = Counter[str](), [], time.perf_counter()
    for world, (true, stated) in found:
        counts["compared" if math.isfinite(stated) else "infinite"] += 1
        counts["sharp"] += true > 0.999 * stated
        if true > stated + getattr(world, "slack", 1e-9):
            wrong.append(f"{world}: the truth is {true:.4g}, and {stated:.4g} is stated")
    print(f"\n{dict(counts)} in {time.perf_counter() - start:.1f} s")
    assert not wrong, "\n".join(wrong)
    return counts


def stores(asked: Iterable[tuple[Step, ...]], **how: Any) -> Iterable[tuple[Store, tuple[float, float]]]:
    for steps in asked:
        world = Store(steps, **how)
        yield world, world.truth()


PRIORS: tuple[Step, ...] = (
    ("memo", 1.0, (0, 1), UNEVEN[:2]),
    ("memo", 3.0, (0, 1), UNEVEN[1:]),
    ("stages", 2.0, (0,)),
    ("memo", 2.0),
)


def test_no_store_states_less_than_its_coins_tell() -> None:
    pairs = [(one,) for one in SINGLE] + list(itertools.pairwise(SINGLE[:9])) + [(SINGLE[3], SINGLE[3])]
    counts = compare(stores(pairs))
    assert counts["compared"] == 19
    assert counts["sharp"] >= 14  # epsilon is not stated too large either
    assert compare(stores([(one,) for one in PRIORS[1:2]], classes=3))["compared"] == 1


def test_no_store_that_is_opened_again_states_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.os, "fsync", lambda _: None)
    asked = [(("memo", 1.0, (0,)), ("redraw", 1.0, (0,)))]
    assert compare(stores(asked, path=tmp_path / "store"))["compared"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, True])
def test_no_store_states_less_after_several_questions(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.os, "fsync", lambda _: None)
    some = [step for step in SINGLE if step[0] != "accuracy"]
    asked = list(itertools.product(some[:: 3 if kept else 1], repeat=2 if kept else 3))
    counts = compare(stores(asked, path=tmp_path / "store" if kept else None))
    assert counts["compared"] == len(asked)
    if not kept:
        assert compare(stores(itertools.permutations(SINGLE, 2)))["compared"] == 90
        assert compare(stores([(one,) for one in (*some, *PRIORS)], classes=3))["compared"] == 13


LABELS = (0, 1, 0, 1, 0, 1, 0, 1)  # two halves that look the same


def runs(
    found: Iterable[tuple[Run, ...]], label: Any = LABELS, **how: Any
) -> Iterable[tuple[Any, tuple[float, float]]]:
    for some in found:
        yield some, of_runs(some, label, **how)


def test_no_runs_of_one_store_cost_more_than_it_states() -> None:
    counts = compare(runs([(BASE, other) for other in ROWS]))
    assert counts["compared"] == len(ROWS)
    assert counts["sharp"] >= len(ROWS) // 2
    assert compare(runs([(replace(BASE, gate=Open()),)]))["infinite"] == 1


@pytest.mark.slow
def test_no_several_runs_of_one_store_cost_more_than_it_states() -> None:
    found = [*itertools.combinations_with_replacement(CHANGES, 2), *itertools.combinations(ROWS, 3)]
    assert compare(runs(found))["compared"] == len(found)
    alike = list(itertools.combinations(CHANGES, 2))
    assert compare(runs(alike, (1,) * 8))["compared"] == len(alike)


def test_a_store_is_a_simulation_exactly_if_a_seed_drew_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every way to begin and to open a store: what a seed drew is never called exact."""
    monkeypatch.setattr(files.os, "fsync", lambda _: None)
    asked, counts = (("memo", 1.0), ("redraw", 1.0), ("charge",), ("accuracy", 1.0)), Counter[str]()
    for number, (step, seeds) in enumerate(itertools.product(asked, itertools.product((None, 0, 1), repeat=2))):
        path, drawn = tmp_path / f"store {number}", set[Any]()
        for seed in seeds:
            try:
                labels = sv.Labels(np.array([0, 1, 1]), 2, path=path, seed=seed, ids=3 * number + np.arange(3))
            except ValueError:
                counts["refused"] += 1
                continue
            if step[0] == "charge":
                labels.charge({label_store.Mechanism(pure=1.0): np.ones(3)})
            elif step[0] == "accuracy":
                labels.accuracy(np.zeros(3, int), 1.0)
            else:
                getattr(labels, step[0])(*step[1:])
            drawn.add(seed)
            counts["opened"] += 1
            assert labels.simulated is any(one is not None for one in drawn)
            assert len(drawn) == 1  # no two seeds, nor a seed and the operating system, in one store
    assert (counts["refused"], counts["opened"]) == (24, 48)


# Faults put back.


def test_it_finds_a_redraw_that_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    charged = label_store.Labels._charged

    def once(self: Any, uses: Any) -> Any:
        costs = charged(self, uses)
        return {mechanism: np.minimum(counts, 1) for mechanism, counts in costs.items()}

    monkeypatch.setattr(label_store.Labels, "_charged", once)
    true, stated = Store((("memo", 1.0), ("redraw", 1.0))).truth()
    assert true > 1.9 * stated


def test_it_finds_groups_that_depend_on_the_label(monkeypatch: pytest.MonkeyPatch) -> None:
    response = label_store.Response
    monkeypatch.setattr(label_store, "Response", lambda epsilon, answers: response(1.1 * epsilon, answers))
    true, stated = Store((("memo", 1.0),)).truth()
    assert true > 1.05 * stated


@pytest.mark.parametrize(
    ("wrong", "other"),
    [("seed", replace(BASE, seed=1)), ("places", replace(BASE, places=(4, 5, 6, 7)))],
)
def test_it_finds_label_noise_whose_key_lacks(wrong: str, other: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    right = lone_party.server_root

    def root(account: Any, holder: int, labels: Any, places: Any, vectors: Any, secret: Any) -> Any:
        if wrong == "seed":
            account = replace(account, seed=0)
        return right(account, holder, labels, places if wrong == "seed" else np.arange(len(places)), vectors, secret)

    assert of_runs((BASE, other), LABELS)[0] < math.inf
    monkeypatch.setattr(lone_party, "server_root", root)
    true, stated = of_runs((BASE, other), LABELS)
    assert math.isinf(true)
    assert stated < 10
