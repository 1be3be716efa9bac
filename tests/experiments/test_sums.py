"""Secure sums, from run files, from estimators, by `auto` and in an audit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import sottovoce as sv
from sottovoce.cli import app
from sottovoce.data.synthetic import logistic
from sottovoce.experiments.planned import of_kind, setup
from sottovoce.experiments.schema import Case, checked
from sottovoce.problems.tasks import Shape, get

FILE = """
method = {name = "DpSgd", rate = 0.5, gradient = {clip = 1.0}, sampling = "full"}
[data]
name = "digits"
agents = 5
limit = 200
[task]
name = "softmax"
[run]
steps = 3
[privacy]
epsilon = 1.0
trust = "sum"
"""
TABLES: dict[str, Any] = {
    "data": {"name": "digits", "agents": 5, "limit": 200},
    "task": {"name": "softmax"},
    "method": {"name": "DpSgd", "rate": 0.5, "gradient": {"clip": 1.0}, "sampling": "full"},
    "run": {"steps": 3},
    "privacy": {"epsilon": 1.0, "trust": "sum"},
}


def built(**changed: Any) -> Any:
    tables = {name: {**TABLES.get(name, {}), **changed.get(name, {})} for name in {*TABLES, *changed}}
    return setup(checked(Case, tables, ""))


@pytest.mark.filterwarnings("ignore:.*delta is")
def test_a_run_file_runs_by_sums() -> None:
    made = built()
    assert made.trust == sv.Sum(1)
    assert made.graph is None
    assert made.account.against is not None
    assert 0.998 < made.account.epsilon <= 1.0
    result = made.run(0)
    assert result.privacy.against == made.account.against
    assert result.about is not None
    assert result.about.network == "secure sums over 5 parties"
    assert result.about.sizes["record"] == (40,) * 5
    assert len(result.about.sent) == 5
    size = 8 * 65 * 10  # one release of 64 weights and a bias for each of ten classes
    assert result.about.sent == (4 * 3 * size, *(3 * (size + 32),) * 4)
    assert result.about.messages == (4 * 3, 3, 3, 3, 3)
    alone = of_kind(made, "alone")
    assert alone.account.against is None
    assert 0.998 < alone.account.epsilon <= 1.0
    assert of_kind(made, "pooled").account.epsilon == np.inf


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"privacy": {"trust": "local", "colluding": 1}}, 'set privacy.trust = "sum"'),
        ({"network": {"kind": "ring"}}, r"leave \[network\] out"),
        ({"data": {"agents": 2}}, "at least 3 parties"),
        ({"task": {"name": "group-robust", "groups": "party"}, "method": {"name": "auto"}}, "weighs parties"),
        ({"select": {"trials": 2}, "data": {"agents": 1}}, "totals of every trial"),
        ({"method": {"sampling": {"kind": "fixed-size", "batch": 9}}}, "do not make up one"),
        ({"method": {"gradient": {"clip": 1.0, "mechanism": "laplace"}}}, "do not add up"),
    ],
)
def test_a_run_file_that_sums_cannot_serve_is_refused(changed: dict[str, Any], words: str) -> None:
    if "auto" in str(changed):
        changed["method"] = {"name": "auto"}
        with pytest.raises(ValueError, match=words):
            setup(checked(Case, {**TABLES, **changed, "run": {}}, ""))
        return
    with pytest.raises(ValueError, match=words):
        built(**changed)


@pytest.mark.slow
def test_check_says_what_sums_would_gain_and_whom_they_protect_from(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(FILE)
    told = CliRunner().invoke(app, ["check", str(file)], env={"COLUMNS": "500"}).output
    assert "secure sums over 5 parties, of which any 1 may collude" in told
    assert "2 find 1.18, 3 find 1.47, 4 find 2.16" in told
    assert "by sums" not in told
    local = CliRunner().invoke(app, ["check", str(file), "--set", "privacy.trust=local"], env={"COLUMNS": "500"}).output
    assert 'privacy.trust = "sum" would need 2 times less noise' in local


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    held = logistic(1200, 3)
    return held["features"], held["label"], np.array(["north", "mid", "south", "east"])[np.arange(1200) % 4]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:these rows were fitted")
def test_an_estimator_fits_by_sums() -> None:
    X, y, party = rows()
    settings: dict[str, Any] = {"epsilon": 1.0, "random_state": 0, "classes": [0, 1]}
    model = sv.PrivateLogisticRegression(**settings, trust="sum", colluding=2).fit(X, y, parties=party)
    against = model.privacy_.against
    assert against is not None
    assert (against.colluding, against.parties) == (2, 4)
    assert model.privacy_.parties == ("east", "mid", "north", "south")
    assert model.score(X, y) > 0.8
    with pytest.raises(ValueError, match="weighs parties"):
        sv.PrivateLogisticRegression(**settings, trust="sum", objective="worst-party").fit(X, y, parties=party)
    with pytest.raises(ValueError, match="trust"):
        sv.PrivateLogisticRegression(**settings, trust="curator").fit(X, y, parties=party)
    with pytest.raises(ValueError, match="at least 3 parties"):
        sv.PrivateLogisticRegression(**settings, trust="sum").fit(X, y)
    with pytest.raises(ValueError, match="totals of a secure sum"):
        sv.select({"one": lambda mu: model}, lambda model, mu: 1.0, epsilon=1.0, trials=9.0, seed=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:these rows were fitted")
def test_parties_tune_together_only_by_sums() -> None:
    X, y, party = rows()
    settings: dict[str, Any] = {"epsilon": 4.0, "random_state": 0, "steps": 2, "inner_steps": 3, "classes": [0, 1]}
    model = sv.TunedLogisticRegression(**settings, trust="sum").fit(X, y, parties=party)
    assert model.privacy_.against is not None
    assert 3.9 < model.privacy_.epsilon <= 4.0
    with pytest.raises(ValueError, match="give trust='sum'"):
        sv.TunedLogisticRegression(**settings).fit(X, y, parties=party)


def test_auto_chooses_for_a_sum_what_it_chooses_for_one_table() -> None:
    task = get("logistic")(Shape((10,), classes=2, agents=5)).problem
    given: dict[str, Any] = {"epsilon": 1.0, "norm": 1.0}
    clinics = sv.Population([30_000, 15_000, 9_000, 4_000, 2_000])
    summed, table = sv.auto(task, clinics, trust=sv.Sum(0), **given), sv.auto(task, sv.Population([60_000]), **given)
    assert summed.settings["trust"] == sv.Sum(0)
    assert summed.settings["network"] is None
    assert (summed.steps, summed.method.rate, summed.method.reach) == (
        table.steps,
        table.method.rate,
        table.method.reach,
    )
    charged = [float(one.releases()[1].scale(0, 0)) for one in (summed.method, table.method)]
    assert np.isclose(*charged, rtol=1e-3)
    loud = sv.auto(task, clinics, trust=sv.Sum(3), **given)
    assert loud.spread is not None
    assert summed.spread is not None
    assert np.isclose(loud.spread / summed.spread, np.sqrt(5 / 2), rtol=0.1)  # it expects the noise that is drawn
    assert "share one noise" in str(summed)
    with pytest.raises(ValueError, match="leave network out"):
        sv.auto(task, clinics, trust=sv.Sum(1), network=sv.networks.ring(5), **given)


@pytest.mark.slow
def test_an_audit_by_colluding_parties_nearly_reaches_the_account() -> None:
    method = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(clip=1.0, noise=0.2 / 3), sampling=sv.Full())
    run: dict[str, Any] = {"steps": 3, "delta": 1e-2, "trust": sv.Sum(1)}
    found = sv.audit(method, sv.Population([10, 10, 10]), **run, trials=4000, agent=1)
    assert found.passed
    assert found.ratio > 0.5
    with pytest.raises(ValueError, match="simulates them"):
        sv.audit(method, sv.Population([10, 10, 10]), **run, runtime="threads")
