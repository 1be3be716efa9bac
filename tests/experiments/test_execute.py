"""A tiny experiment from file to report, stopped and resumed, with its comparisons."""

import dataclasses
import json
import math
import sys
from html import escape

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.experiments import execute, planned, rows, search
from sottovoce.experiments.calibrated import written
from sottovoce.experiments.demo import DEMO, demo
from sottovoce.experiments.runfile import RunFile
from sottovoce.files import read_facts, write_facts
from sottovoce.laboratory import reproduce, results
from sottovoce.reports import load, render
from sottovoce.reports.sections import in_words
from sottovoce.runtime.result import RESULT

run = sys.modules["sottovoce.runtime.run"]  # the module: its function has the same name in the package
COMPARED = '[compare]\nalone = true\npooled = true\n[[printed]]\nwhat = "theirs"\nvalue = 0.123\nsource = "Table <2>"\n'


def case(text, *sets):
    return next(iter(RunFile.parse(text, sets).cases.values()))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    from tests.experiments.conftest import TINY

    out = tmp_path_factory.mktemp("experiment") / "out"
    made = execute.execute(RunFile.parse(TINY + COMPARED, ["run.seeds=[0, 1]"]), out)
    return out, made


def test_rows_and_figures(done):
    _, made = done
    assert [(row.name, row.kind) for row in made.rows] == [
        ("DpSgd", "together"),
        ("DpSgd, alone", "alone"),
        ("pooled, no privacy", "pooled"),
    ]
    together, alone, pooled = made.rows
    assert len(together.runs) == 2
    assert 2.99 <= together.privacy.epsilon <= 3.0
    assert together.privacy.epsilon == alone.privacy.epsilon
    assert not pooled.privacy.private
    agents = np.stack([run.history["accuracy/agents"][-1] for run in alone.runs])
    assert alone.final("accuracy")[0] == pytest.approx(agents.mean())
    assert alone.worst("accuracy") == pytest.approx(agents.min(axis=1).mean())
    finals = [run.history["accuracy"][-1] for run in together.runs]
    assert together.final("accuracy") == pytest.approx((np.mean(finals), np.std(finals, ddof=1)))
    assert together.worst("loss") >= together.final("loss")[0] - 1e-6


def test_parties_alone_hear_nobody(tiny):
    """Each is the same as a run of its own records with the network of one."""
    made = planned.setup(case(tiny)).alone()
    together = made.run(seed=3)
    quiet = dataclasses.replace(made, method=made.method.without_privacy())
    states = quiet.run(seed=0).agents.x
    by_itself = sv.run(made.task.problem, [made.parts[1]], quiet.method, steps=4, seed=0)
    np.testing.assert_allclose(states["weights"][1], by_itself.x["weights"], atol=1e-6)
    assert not np.allclose(together.agents.x["weights"][0], together.agents.x["weights"][1])


def test_pooled_is_the_method_on_all_records_without_privacy(tiny):
    made = planned.setup(case(tiny, 'method.sampling={kind="poisson", batch=20}')).pooled()
    assert len(made.parts) == 1
    assert len(made.parts[0]) == 160
    assert made.method.sampling.batch == 40
    assert not made.account.private


def test_a_finished_experiment_is_not_run_over(done, tiny):
    out, made = done
    runfile = RunFile.parse(tiny + COMPARED, ["run.seeds=[0, 1]"])
    with pytest.raises(ValueError, match="holds an experiment already"):
        execute.execute(runfile, out)
    before = (out / "DpSgd" / "0" / "result.json").read_bytes()
    again = execute.execute(runfile, out, resume=True)
    assert again.rows[0].final("accuracy") == made.rows[0].final("accuracy")
    assert json.loads(before)["privacy"] == json.loads((out / "DpSgd" / "0" / "result.json").read_bytes())["privacy"]


def test_stopped_and_resumed_equals_uninterrupted(done, tiny, tmp_path, monkeypatch):
    runfile = RunFile.parse(tiny + COMPARED, ["run.seeds=[0, 1]"])
    calls = []

    def stop_at_second(runs):
        calls.append(len(runs))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return drive_all(runs)

    drive_all = run.drive_all
    with monkeypatch.context() as patch:
        patch.setattr(run, "drive_all", stop_at_second)
        with pytest.raises(KeyboardInterrupt):
            execute.execute(runfile, tmp_path / "out")
    assert calls[0] == 2  # both seeds
    partial = load(tmp_path / "out")
    assert [row.name for row in partial.rows] == ["DpSgd"]  # what is done can be looked at
    resumed = execute.execute(runfile, tmp_path / "out", resume=True)
    for ours, theirs in zip(resumed.rows, done[1].rows, strict=True):
        np.testing.assert_array_equal(ours.values("loss"), theirs.values("loss"))


def test_variants_that_share_the_pooled_run_run_it_once(tiny):
    variants = "".join(f'[[variant]]\nname = "epsilon {e}"\nprivacy.epsilon = {e}\n' for e in (1, 2))
    rows = planned.plan(RunFile.parse(tiny + COMPARED + variants))
    assert [row.kind for row in rows] == ["together", "alone", "pooled", "together", "alone"]


def test_names_that_would_share_a_folder_are_refused(tiny):
    variants = '[[variant]]\nname = "a b"\n[[variant]]\nname = "a-b"\n'
    with pytest.raises(ValueError, match="would share a folder"):
        planned.plan(RunFile.parse(tiny + variants))


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["data.upper=0.3"], "data.upper makes two levels, but the task 'logistic' has one"),
        (["data.agents=70", "data.n=200", "compare.alone=true"], "compare.alone needs the metrics of each party"),
        (["method.gradient.clip=-1"], "clip is -1"),
        (['run.metric="acuracy"'], "no metric 'acuracy'; did you mean 'accuracy'"),
        (['method.sampling={kind="poisson", batch=5000}'], "a batch of 5000"),
    ],
)
def test_impossible_combinations_stop_before_anything_runs(tiny, tmp_path, sets, message):
    with pytest.raises(ValueError, match=message):
        execute.execute(RunFile.parse(tiny, sets), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_non_private_twin(tiny):
    made = planned.setup(case(tiny, "privacy.enabled=false"))
    assert not made.account.private


def test_a_budget_below_the_cost_refuses(tiny):
    with pytest.raises(ValueError, match="budget"):
        planned.setup(case(tiny, "privacy.budget=1.0")).run(0)


def test_parties_alone_have_no_links_over_any_matrix():
    network = sv.networks.isolated(3)
    assert len(network.edges) == 0
    assert network.matrix("pull").nnz == network.matrix("push").nnz == 0
    with pytest.raises(ValueError, match="declared to have none"):
        sv.networks.Network("no", 2, sv.networks.ring(2).matrices, alone=True)


@pytest.mark.parametrize("noise", ["", ", noise = {value = 2.0, power = 0.5}"])
def test_the_calibrated_file_reaches_the_same_epsilon(tiny, noise):
    text = tiny.replace("gradient = {clip = 1.0}", f"gradient = {{clip = 1.0{noise}}}")
    made = planned.setup(case(text))
    again = planned.setup(case(written("calibrated", {"DpSgd": made})))
    assert again.case.privacy.epsilon is None
    assert again.account.epsilon == pytest.approx(made.account.epsilon, rel=1e-6)


def test_the_report_stands_alone_and_has_the_figures(done):
    out, made = done
    page = execute.report(out).read_text()
    assert (out / "report-curves.svg").read_text().startswith("<svg xmlns=")
    for row in made.rows:
        assert f"{row.final('accuracy')[0]:#.4g} ±" in page
        assert row.name in page
    assert escape(made.rows[0].privacy.statement()) in page
    assert in_words(made.rows[0].privacy.events[0]) in page
    assert "Table &lt;2&gt;" in page
    assert "0.123" in page
    assert "Nothing may leave: this is a simulation, and “pooled, no privacy” has no guarantee." in page
    assert "clip = 1.0" in page
    assert "Data: logistic, synthetic: made by this package from the seed 0" in page
    for title in ("During training", "The parties", "Who talks to whom", "Messages and time", "What is guaranteed"):
        assert f"<h2>{title}</h2>" in page
    assert "<h2>Privacy and usefulness</h2>" not in page  # one epsilon makes no curve
    assert page.count("http-equiv") == page.count("default-src 'none'") == 1
    for outside in ("src=", "<link", "@import", "url(http"):
        assert outside not in page


def test_one_run_by_itself_can_be_reported(done, tmp_path):
    out, _ = done
    made = load(out / "DpSgd" / "0")
    assert made.rows[0].name == "0"
    assert "<svg" in render(made)
    with pytest.raises(ValueError, match="holds no finished run"):
        load(tmp_path)


def test_packaged_experiments_all_parse():
    assert DEMO.is_file()
    for name in reproduce.experiments():
        cases = RunFile.load(reproduce.find(name), scale="quick").cases
        for case_name, case in cases.items():
            assert len(search.settings_of(case, case_name)) in (0, case.search.trials if case.search else 0), name
        folders = {planned.Planned(case, "together", setup=None, case=None).folder(0).lower() for case in cases}
        assert len(folders) == len(cases), name


def test_demo_in_miniature(tmp_path, monkeypatch):
    head, first, *_ = DEMO.read_text().split("[[variant]]")
    (tmp_path / "demo.toml").write_text(f"{head}[[variant]]{first}")
    monkeypatch.setattr("sottovoce.experiments.demo.DEMO", tmp_path / "demo.toml")
    small = ["data.count=300", "run.steps=2", "run.every=2", "data.agents=2"]
    made = demo(tmp_path / "demo", small)
    assert {row.kind for row in made.rows} == {"together"}
    assert (tmp_path / "demo" / "report.html").is_file()

    def begins_anew(runfile, out, **_):
        assert not list(out.glob("**/checkpoint.npz"))
        raise InterruptedError

    monkeypatch.setattr("sottovoce.experiments.demo.execute", begins_anew)
    with pytest.raises(InterruptedError):
        demo(tmp_path / "demo", small)


@pytest.mark.slow
def test_training_metrics_are_of_some_records_of_every_party(tiny):
    made = planned.setup(case(tiny, "run.train=30"))
    some = rows._some(made.parts, 30)
    share = -(-30 // len(made.parts))
    expected = np.concatenate([part.gather()["label"][[0, -1]] for part in made.parts])
    assert len(some["label"]) == share * len(made.parts)
    np.testing.assert_array_equal(some["label"].reshape(-1, share)[:, [0, -1]].ravel(), expected)
    history = made.run(0).history
    untrained = made.task.metrics(some)(made.task.problem.x0)
    for name, value in untrained.items():
        assert history[f"train {name}"][0] == pytest.approx(float(value), rel=1e-5)


def test_a_run_that_diverges_is_left_out_and_said(tiny, tmp_path):
    explosive = "method.rate = 1e38\ntask.penalty = 1e38\nprivacy.enabled = false"
    wild = f'{tiny}[[variant]]\nname = "wild"\n{explosive}\n[[variant]]\nname = "tame"\n'
    said = []
    made = execute.execute(RunFile.parse(wild), tmp_path / "out", say=said.append)
    assert [row.name for row in made.rows] == ["tame"]
    assert any(line.startswith("left out: ") for line in said)


def test_a_run_whose_state_is_not_finite_at_the_end_is_left_out(tiny, tmp_path):
    two = f'{tiny}[[variant]]\nname = "wild"\n[[variant]]\nname = "tame"\n'
    execute.execute(RunFile.parse(two), tmp_path / "out")
    (path,) = (tmp_path / "out" / "wild").glob("*/result.json")  # as a private state, which nobody looks at, leaves it
    stored = read_facts(path, *RESULT, "")
    stored["history"]["consensus"][-1] = math.nan
    write_facts(path, *RESULT, stored)
    assert [row.name for row in load(tmp_path / "out").rows] == ["tame"]
    results.write(tmp_path, "tiny", "a command", RunFile.parse(two), tmp_path / "out")
    wild, tame = (tmp_path / "tiny.csv").read_text().splitlines()[-2:]
    assert wild.startswith("wild,together,0,,")
    assert not tame.startswith("tame,together,0,,")


def test_a_refused_resume_leaves_the_plan_as_it_was(tiny, tmp_path):
    execute.execute(RunFile.parse(tiny), tmp_path / "out")
    before = (tmp_path / "out" / "run.toml").read_bytes()
    with pytest.raises(ValueError):
        execute.execute(RunFile.parse(tiny, ["method.rate=0.123"]), tmp_path / "out", resume=True)
    assert (tmp_path / "out" / "run.toml").read_bytes() == before


def test_a_budget_too_small_is_told_before_any_row_runs(tiny, tmp_path):
    with pytest.raises(ValueError, match=r"privacy\.budget is 1, but a run would spend 3"):
        execute.execute(RunFile.parse(tiny, ["privacy.budget=1.0"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_calibrated_run_traces_a_step_at_most_twice(tiny, monkeypatch):
    step, calls = sv.methods.DpSgd.step, []
    monkeypatch.setattr(sv.methods.DpSgd, "step", lambda self, *given: calls.append(self) or step(self, *given))
    (case,) = RunFile.parse(tiny, ["run.steps=7"]).cases.values()
    made = planned.setup(case)
    assert made.account.epsilon <= case.privacy.epsilon
    made.run(seed=0)
    assert 1 <= len(calls) <= 2
