"""Tables, pictures and sentences of a comparison that is made up here: no run is needed for them."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.networks import ring
from sottovoce.reports import Comparison, Outcome, PaperFigure, Row, findings, render, write_report

PRIVATE = sv.methods.DpSgd(rate=1.0, gradient=sv.Release(1.0, 1.0), sampling=sv.Full())


def row(name, kind="together", epsilon=None, accuracy=0.8, seeds=2):
    """A configuration with a short history; without epsilon it has no guarantee."""
    method = PRIVATE if epsilon else PRIVATE.without_privacy()
    if epsilon:
        method = sv.calibrate(method, sv.Population([5]), epsilon=epsilon, steps=1)
    privacy = sv.account(method, sv.Population([5]), steps=1)
    runs = []
    for seed in range(seeds):
        over_time = accuracy + np.array([-0.2, 0.01 * seed])
        agents = over_time[:, None] + np.array([[-0.1, 0.1]])
        history = {"step": np.array([0, 4]), "seconds": np.array([0.0, 1.0]), "accuracy": over_time}
        runs.append(Outcome({**history, "accuracy/agents": agents}, privacy, bool(epsilon)))
    return Row(name, kind, tuple(runs))


@pytest.fixture(scope="module")
def compared():
    rows = (row("DpSgd", epsilon=3.0), row("DpSgd, alone", "alone", 3.0, 0.7), row("pooled, no privacy", "pooled"))
    return Comparison("tiny", rows)


def test_several_epsilons_make_a_curve():
    rows = tuple(row(f"epsilon {epsilon}", epsilon=epsilon) for epsilon in (1.0, 2.0, 4.0))
    page = render(Comparison("several", rows, (PaperFigure(what="x", value=0.5, epsilon=2.0),)))
    assert "epsilon per party" in page
    assert "printed in the paper" in page


def test_one_epsilon_makes_no_curve_and_an_old_one_is_removed(compared, tmp_path):
    (tmp_path / "report-tradeoff.svg").write_text("from an earlier report")
    page = write_report(compared, tmp_path / "report.html").read_text()
    assert page.count("<svg") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report-curves.svg", "report.html"]


def test_networks_are_drawn_where_they_are_given(compared):
    assert "Who talks to whom" not in render(compared)
    page = render(compared, networks=[ring(4)])
    assert "Who talks to whom" in page
    assert "ring of 4" in page


@pytest.mark.parametrize(
    ("name", "family"),
    [("epsilon 2", ""), ("tuned, epsilon 0.5", "tuned"), ("tuned, epsilon 2, alone", "tuned, alone"), ("ring", "ring")],
)
def test_rows_of_a_family_differ_in_epsilon(name, family):
    assert row(name).family == family


def test_findings_speak_of_what_was_compared(compared):
    private, open_ = findings(compared)
    assert private.startswith("At epsilon 3 per party, accuracy: ")
    assert "alone" in private
    assert "pooled" not in private
    assert open_.startswith("Without any guarantee: pooled")
    assert findings(Comparison("one", compared.rows[:1])) == []


def test_a_worst_agent_has_the_lowest_accuracy_and_the_largest_loss():
    assert row("a", accuracy=0.8, seeds=1).worst("accuracy") == pytest.approx(0.7)
    history = {"loss": np.array([1.0]), "loss/agents": np.array([[0.5, 2.0]]), "seconds": np.array([0.0])}
    privacy = sv.account(PRIVATE, sv.Population([5]), steps=1)
    assert Row("a", "together", (Outcome(history, privacy, True),)).worst("loss") == 2.0
