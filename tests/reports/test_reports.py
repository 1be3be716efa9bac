"""Tables, pictures and sentences of a comparison that is made up here: no run is needed for them."""

import csv
import io
import json
import re
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import sottovoce as sv
from sottovoce import cli
from sottovoce.cli import app
from sottovoce.commands import terminal
from sottovoce.reports import (
    Comparison,
    Outcome,
    PaperFigure,
    Row,
    exports,
    findings,
    load,
    pictures,
    render,
    write_report,
)
from sottovoce.reports.chart import Line
from sottovoce.reports.words import answers
from sottovoce.runtime.about import About

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
    assert "Diamonds are printed in the paper" in page
    assert page.count('class="mark"') == 1


def test_one_epsilon_makes_no_curve_and_an_old_one_is_removed(compared, tmp_path):
    (tmp_path / "report-tradeoff.svg").write_text("from an earlier report")
    page = write_report(compared, tmp_path / "report.html").read_text()
    assert "Privacy and usefulness" not in page
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "report-curves.svg", "report-history.csv", "report-parties.csv", "report.csv", "report.html", "report.json",
    ]  # fmt: skip


def test_networks_are_drawn_where_they_are_known(compared):
    assert "Who talks to whom" not in render(compared)
    about = About(("north", "south", "east"), {"record": (5, 5, 5)}, network="path of 3", links=((0, 1), (1, 2)))
    known = replace(compared.rows[0], runs=tuple(replace(run, about=about) for run in compared.rows[0].runs))
    page = render(Comparison("known", (known,)))
    assert "path of 3: 3 parties, 2 links" in page
    assert "east hears south" in page
    assert 'marker-end="url(#arrow)"' in page  # nobody answers


@pytest.mark.parametrize(
    ("name", "family"),
    [("epsilon 2", ""), ("tuned, epsilon 0.5", "tuned"), ("tuned, epsilon 2, alone", "tuned, alone"), ("ring", "ring")],
)
def test_rows_of_a_family_differ_in_epsilon(name, family):
    assert row(name).family == family


def test_the_table_of_a_terminal_fits_eighty_columns_and_has_no_colours_in_a_file(tmp_path, monkeypatch):
    rows = (row("tuned, epsilon 0.5, alone", "alone", 0.5), row("untuned, no privacy"))
    page = write_report(Comparison("A title that is long enough", rows), tmp_path / "report.html")
    text = io.StringIO()
    monkeypatch.setattr(terminal, "console", Console(file=text, width=80))
    monkeypatch.setattr(cli, "console", terminal.console)
    monkeypatch.chdir(tmp_path)
    cli._show(Comparison("A title that is long enough", rows), page.relative_to(tmp_path), json=False)
    told = text.getvalue()
    assert re.search(r"^ tuned, epsilon 0.5, alone .* 0.5 ", told, re.MULTILINE)  # one line per row
    assert "at delta 1e-05, per record, replace-one adjacency, sound design" in told
    assert max(map(len, told.splitlines())) <= 80
    assert "\x1b" not in told


def test_findings_speak_of_what_was_compared(compared):
    private, open_ = findings(compared)
    assert private.startswith("At epsilon 3 per party, accuracy: ")
    assert "alone" in private
    assert "pooled" not in private
    assert open_.startswith("Without any guarantee: pooled")
    assert findings(Comparison("one", compared.rows[:1])) == []


@pytest.mark.parametrize("behind", ["tuned", "untuned"])
def test_findings_say_where_the_simpler_model_is_ahead(behind):
    """The demo's tuned model is ahead at epsilon 2, and behind the untuned one at 0.5."""
    figures = {("tuned", 0.5): 0.6, ("untuned", 0.5): 0.7, ("tuned", 2.0): 0.9, ("untuned", 2.0): 0.8}
    if behind == "untuned":
        figures["tuned", 0.5] = 0.75
    rows = [row(f"{name}, epsilon {at}", epsilon=at, accuracy=value, seeds=1) for (name, at), value in figures.items()]
    rows.append(row("tuned, epsilon 2, no noise", "together"))
    told = [line for line in findings(Comparison("demo", tuple(rows))) if "the other way round" in line]
    expected = "At epsilon 0.5 it is the other way round: untuned 0.700; tuned 0.600."
    assert told == ([expected] if behind == "tuned" else [])


@pytest.mark.parametrize(("simple", "seeds", "said"), [(0.9, 1, True), (0.7, 1, False), (0.805, 2, False)])
def test_findings_say_when_a_variant_is_below_a_simpler_one_by_more_than_seeds_differ(simple, seeds, said):
    rows = [row("tuned", epsilon=2.0, seeds=seeds), row("untuned", epsilon=2.0, accuracy=simple, seeds=seeds)]
    told = findings(Comparison("two", tuple(rows)))
    assert ("So at epsilon 2 untuned is better than tuned." in told) == said


def test_a_worst_agent_has_the_lowest_accuracy_and_the_largest_loss():
    assert row("a", accuracy=0.8, seeds=1).worst("accuracy") == pytest.approx(0.7)
    history = {"loss": np.array([1.0]), "loss/agents": np.array([[0.5, 2.0]]), "seconds": np.array([0.0])}
    privacy = sv.account(PRIVATE, sv.Population([5]), steps=1)
    assert Row("a", "together", (Outcome(history, privacy, True),)).worst("loss") == 2.0


def drawn(row, how, releasable=False):
    """The same row with its noise drawn in another way."""
    privacy = replace(row.privacy, drawn=how)
    return replace(row, runs=tuple(replace(run, privacy=privacy, releasable=releasable) for run in row.runs))


@pytest.mark.parametrize(
    ("how", "releasable", "said", "may"),
    [
        ("simulated", False, "A simulation", "Nothing may leave: this is a simulation."),
        ("secret", False, "Not as deployed", "Nothing may leave: the noise was not drawn as deployed."),
        ("exact", True, "Deployed", "The model and every state and message of its run may leave"),
        ("exact", False, "Deployed", "Nothing may leave: the statement covers the messages, and not the model."),
    ],
)
def test_the_first_screen_says_what_may_leave(compared, how, releasable, said, may):
    told = {
        answer.question: answer for answer in answers(Comparison("one", (drawn(compared.rows[0], how, releasable),)))
    }
    assert told["Simulated or deployed"].lines[0].startswith(said)
    assert told["What may leave"].lines[0].startswith(may)
    assert told["What may leave"].tone == ("good" if releasable else "care")


def test_where_labels_alone_are_protected_messages_must_stay(compared):
    """With columns, messages hold numbers computed from single rows' features, which no epsilon covers."""
    deployed = drawn(compared.rows[0], "exact", releasable=True)
    privacy = replace(deployed.privacy, unit="label")
    labels = replace(deployed, runs=tuple(replace(run, privacy=privacy) for run in deployed.runs))
    (told,) = [one for one in answers(Comparison("one", (labels,))) if one.question == "What may leave"]
    assert told.lines[0] == "The model may leave, with the statement attached."
    assert "The messages must stay" in told.lines[1]
    assert told.tone == "care"


def test_the_first_screen_says_that_held_out_figures_have_no_noise(compared):
    """Unless the rows were declared public: that travels with the figures of each run."""
    first = compared.rows[0]
    said = []
    for public in (True, False):
        row = replace(first, runs=tuple(replace(run, public_test=public) for run in first.runs))
        (told,) = [one for one in answers(Comparison("one", (row,))) if one.question == "What may leave"]
        said.append(any("does not cover accuracy" in line for line in told.lines))
    assert said == [False, True]


def test_messages_are_counted_only_where_there_are_some(compared):
    page = render(Comparison("one", compared.rows[:1]))  # a run without facts sends nothing
    assert "<h2>Time</h2>" in page
    assert "sent by all" not in page
    one = compared.rows[0]
    runs = tuple(replace(run, about=About(parties=("a", "b"), sent=(2000, 3000))) for run in one.runs)
    page = render(Comparison("one", (replace(one, runs=runs), compared.rows[1])))
    assert "<h2>Messages and time</h2>" in page
    assert ">5.0<" in page


def test_a_name_is_no_formula_in_a_table(compared):
    """A spreadsheet computes what begins with =, and a party's name is somebody else's text."""
    named = replace(compared.rows[0], name='=HYPERLINK("http://e.vil")')
    first = exports.tables(Comparison("one", (named,)))[".csv"].splitlines()[1]
    assert first.startswith("\"'=HYPERLINK")


def test_budgets_of_all_compared_rows_are_told(compared):
    """The first screen speaks of one row; that it has no budget does not mean that no row has one."""
    first = compared.rows[0]
    bound = About(budget=sv.Budget(2.0, 1e-5), spent=0.5)
    other = replace(first, name="bound", runs=tuple(replace(run, about=bound) for run in first.runs))
    (left,) = [one.lines for one in answers(Comparison("both", (first, other))) if one.question == "Budget left"]
    assert left[0] == "No budget was set."
    assert left[-1] == "bound: Epsilon 1.5 of 2 is left."


def test_pictures_that_would_show_rounding_or_one_line_over_another_are_left_out(compared):
    """Parties that train alone are apart by design; those that train together may agree up to rounding."""
    steps = np.arange(8)

    def told(name, kind, apart, each):
        run = compared.rows[0].runs[0]
        history = {"step": steps, "seconds": steps * 1.0, "accuracy": each.mean(axis=1), "accuracy/agents": each,
                   "consensus": np.full(8, apart)}  # fmt: skip
        about = About(parties=("a", "b"))
        return replace(compared.rows[0], name=name, kind=kind, runs=(replace(run, history=history, about=about),))

    same, differ = np.tile(np.linspace(0.5, 0.8, 8)[:, None], 2), np.random.default_rng(0).uniform(size=(8, 2))
    made = Comparison("both", (told("together", "together", 1e-12, same), told("alone", "alone", 1.0, differ)))
    assert not any("distance between the parties" in panel for panel in pictures.curves(made))
    assert pictures.parties(made) is None
    assert "All parties have the same accuracy" in render(made)


def test_a_line_that_starts_near_the_rest_is_drawn_whole(compared):
    near = pictures.focused("loss", [Line("a", "0", np.arange(9.0), np.array([0.7, *np.linspace(0.6, 0.4, 8)]))])
    far = pictures.focused("loss", [Line("a", "0", np.arange(9.0), np.array([9.0, *np.linspace(0.6, 0.4, 8)]))])
    assert near.high > 0.7
    assert far.high < 0.7


def test_what_an_epsilon_means_is_what_a_gaussian_test_finds(compared):
    """At 1 false alarm in 100 a test of one Gaussian release of multiplier z finds Phi(Phi^-1(.01) + 1/z)."""
    from scipy.stats import norm

    private = compared.rows[0].privacy
    ((mechanism, count),) = private.spent  # replace-one moves a contribution by two clips
    power = norm.cdf(norm.ppf(0.01) + 2 * np.sqrt(count * mechanism.gaussian))
    (said,) = re.findall(r"at most ([\d.]+) in 100 of those who did; guessing", " ".join(
        line for answer in answers(compared) for line in answer.lines))  # fmt: skip
    assert 100 * power <= float(said) <= 100 * power * 1.1


def test_json_has_the_headings_of_the_standard_and_no_number_that_json_lacks(compared, tmp_path):
    write_report(compared, tmp_path / "report.html")
    told = json.loads((tmp_path / "report.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    private, bare = told["rows"]["DpSgd"], told["rows"]["pooled, no privacy"]
    assert [name for name in private if name[0].isdigit()] == [
        "2. The Differential Privacy Guarantee",
        "3. Differentially Private Algorithms",
        "4. Deploying Differential Privacy",
    ]
    guarantee = "2. The Differential Privacy Guarantee"
    assert private[guarantee]["2.2. The Privacy Parameter ε"]["epsilon"] == compared.rows[0].privacy.epsilon
    assert bare[guarantee]["2.2. The Privacy Parameter ε"]["epsilon"] == "infinite"
    assert private["3. Differentially Private Algorithms"]["3.2. Utility and Accuracy"]["accuracy"][
        "mean"
    ] == pytest.approx(0.805)
    with open(tmp_path / "report.csv") as file:
        first = next(csv.DictReader(file))
    assert (first["row"], float(first["accuracy"])) == ("DpSgd", pytest.approx(0.805))


def test_facts_of_a_run_are_counted_stored_and_compared(tmp_path):
    """Three parties on a ring say 3 floats to 2 neighbours in each of 5 steps: 120 bytes each."""
    problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(3))
    parts = [sv.data.Part(np.ones((9, 3), np.float32), np.arange(9), name=name) for name in ("a", "b", "c")]
    given = {"network": sv.networks.ring(3), "steps": 5, "budget": sv.Budget(50.0, 1e-5, "replace-one")}
    for folder in ("one", "two"):
        result = sv.run(problem, parts, PRIVATE, **given, out=tmp_path / folder)
    assert result.about.sent == result.about.received == (120, 120, 120)
    assert result.about.sizes == {"record": (9, 9, 9)}
    assert result.about.spent == pytest.approx(result.privacy.epsilon)
    made = load(tmp_path / "one", tmp_path / "two")
    assert [row.name for row in made.rows] == ["one: one", "two: two"]
    assert replace(made.rows[1].about, date="") == replace(result.about, date="")
    left = next(answer for answer in answers(made) if answer.question == "Budget left").lines[0]
    assert 0 <= 50.0 - result.about.spent - float(left.split()[1]) < 0.01
    with pytest.raises(ValueError, match="given twice"):
        load(tmp_path / "one", tmp_path / "one")
    both = ["report", str(tmp_path / "one"), str(tmp_path / "two")]
    shown = CliRunner().invoke(app, [*both, "--out", str(tmp_path / "both.html")], catch_exceptions=False)
    assert "two: two" in shown.output
    assert "Comparison of one, two" in (tmp_path / "both.html").read_text()
    with pytest.raises(ValueError, match="give --out"):
        CliRunner().invoke(app, both, catch_exceptions=False)
