"""Runs that differ in numbers alone, as one array of agents: each is what it would be by itself."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.experiments import planned, search, side_by_side
from sottovoce.experiments.redraw import redrawn
from sottovoce.experiments.runfile import RunFile
from sottovoce.problems import objectives

TEXT = """
[data]
name = "digits"
agents = 3
limit = 90
positive = [0, 1, 2, 3, 4]

[task]
name = "robust-logistic"
scale = 0.1

[network]
kind = "erdos-renyi"
p = 0.7

[method]
name = "DmHsgd"
rate_x = 0.5
rate_y = 0.01
sampling = "full"

[privacy]
enabled = false

[run]
steps = 6
seeds = [0, 1]
redraw = true

[search]
trials = 2
metric = "auroc"

[search.ranges]
"method.rate_x" = [0.1, 2.0]

[[column]]
name = "3 agents"

[[column]]
name = "p = 1"
network.p = 1.0
search.like = "3 agents"

[[variant]]
name = "DM-HSGD"

[[variant]]
name = "SGDA"
method = {name = "Sgda", rate_x = 0.2, rate_y = 0.01, sampling = "full"}
"""


def test_each_variant_is_in_each_column() -> None:
    cases = RunFile.parse(TEXT).cases
    assert list(cases) == ["DM-HSGD, 3 agents", "DM-HSGD, p = 1", "SGDA, 3 agents", "SGDA, p = 1"]
    other = cases["SGDA, p = 1"]
    assert (other.method.name, other.network.options, other.search.like) == ("Sgda", {"p": 1.0}, "SGDA, 3 agents")
    assert not other.search.ranges
    assert cases["SGDA, 3 agents"].search.ranges


def test_a_try_runs_two_columns_and_those_whose_settings_they_take() -> None:
    def column(name: str, like: str = "") -> str:
        taken = f'search.like = "{like}"\n' if like else ""
        return f'[[column]]\nname = "{name}"\ndata.agents = 3\n{taken}\n'

    more = column("first", like="fourth") + column("second") + column("third") + column("fourth")
    text = TEXT[: TEXT.index("[[column]]")] + more + TEXT[TEXT.index("[[variant]]") :]
    assert len(RunFile.parse(text).cases) == 8
    tried = list(RunFile.parse(text, scale="quick").cases)
    assert tried[:3] == ["DM-HSGD, first", "DM-HSGD, second", "DM-HSGD, fourth"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('like = "3 agents"', 'like = "4 agents"', "search.like of DM-HSGD, p = 1: there is no variant"),
        ('[[column]]\nname = "3 agents"', "[[column]]\ndata.agents = 3", "each of both a name"),
        ('name = "p = 1"\nnetwork.p', 'name = "p = 1"\nnetwrk.p', "key of [[column]] 'netwrk'"),
    ],
)
def test_says_what_is_wrong_with_columns(old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        RunFile.parse(TEXT.replace(old, new))
    assert message in str(caught.value)


@pytest.mark.slow
def test_a_run_beside_others_is_the_run_by_itself() -> None:
    case = RunFile.parse(TEXT).cases["DM-HSGD, 3 agents"]
    changed = case.model_copy(update={"method": case.method.model_copy(update={"rate_x": 0.1})})
    setups = [planned.setup(redrawn(case, 0)), planned.setup(redrawn(changed, 1)), planned.setup(redrawn(case, 1))]
    assert setups[0].parts[0].rows.tolist() != setups[2].parts[0].rows.tolist()
    for setup, beside in zip(setups, side_by_side.run_all(setups)):
        alone = setup.run(0)
        np.testing.assert_allclose(beside.x["weights"], alone.x["weights"], atol=1e-6)
        np.testing.assert_allclose(beside.history["auroc/agents"][-1], alone.history["auroc/agents"][-1], atol=1e-6)
        assert beside.about.messages == alone.about.messages
        assert beside.privacy.epsilon == alone.privacy.epsilon


@pytest.mark.slow
def test_numbers_that_agents_cannot_have_of_their_own_are_kept() -> None:
    text = TEXT.replace('sampling = "full"', 'sampling = {kind = "one-pass", batch = 4}')
    case = RunFile.parse(text).cases["DM-HSGD, 3 agents"]
    changed = case.model_copy(update={"method": case.method.model_copy(update={"beta_x": 0.9})})
    setups = [planned.setup(redrawn(one, 0)) for one in (case, changed)]
    for setup, beside in zip(setups, side_by_side.run_all(setups)):
        np.testing.assert_allclose(beside.x["weights"], setup.run(0).x["weights"], atol=1e-6)


@pytest.mark.slow
def test_arrays_with_starts_of_their_own_are_not_taken_for_each_other() -> None:
    text = TEXT.replace('name = "robust-logistic"\nscale = 0.1', 'name = "auc"\nprior = 0.5\nhidden = [3]')
    cases = RunFile.parse(text).cases
    setups = [
        planned.setup(redrawn(cases[f"{name}, 3 agents"], seed)) for name in ("DM-HSGD", "SGDA") for seed in (0, 1)
    ]
    drawn = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(setup.problem.x0)]) for setup in setups[:2]]
    assert not np.array_equal(*drawn)
    for setup, beside in zip(setups, side_by_side.run_all(setups)):
        for one, other in zip(jax.tree.leaves(beside.x), jax.tree.leaves(setup.run(0).x), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)


def test_noise_that_changes_with_the_steps_is_drawn_as_it_is_charged() -> None:
    noise = "{clip = 1.0, noise = {kind = 'decay', value = 0.5, power = -1.0}}"
    text = TEXT.split("[search]", maxsplit=1)[0].replace("enabled = false", "enabled = true")
    text = text.replace('name = "DmHsgd"', f'name = "DpSgda"\nrelease_x = {noise}\nrelease_y = {noise}')
    (case,) = RunFile.parse(text).cases.values()
    setups = [planned.setup(redrawn(case, seed)) for seed in (0, 1)]
    members = [side_by_side._Member(setup, slice(3 * k, 3 * k + 3)) for k, setup in enumerate(setups)]
    merged = side_by_side._merged(members).release_x
    assert [merged.scale(5, agent) for agent in range(6)] == [setups[0].method.release_x.scale(5)] * 6
    start = jax.tree.map(lambda leaf: np.stack([leaf] * 6), objectives.start(setups[0].problem))
    stated = side_by_side._result(members[1], start, 0.0, {}).privacy
    assert stated.drawn == "simulated"
    assert any("do not deploy" in line for line in stated.caveats)


@pytest.mark.slow
def test_a_run_that_diverges_leaves_the_others_alone() -> None:
    case = RunFile.parse(TEXT).cases["DM-HSGD, 3 agents"]
    far = case.model_copy(update={"method": case.method.model_copy(update={"rate_x": 1e38})})
    setups = [planned.setup(redrawn(one, 0)) for one in (case, far)]
    near, gone = side_by_side.run_all(setups)
    assert gone is None
    np.testing.assert_allclose(near.x["weights"], setups[0].run(0).x["weights"], atol=1e-6)


@pytest.mark.slow
def test_files_are_searched_and_run_together(tmp_path) -> None:
    runfile = RunFile.parse(TEXT)
    said: list[str] = []
    (made,) = side_by_side.execute([(runfile, tmp_path)], said.append)
    assert [(row.name, len(row.runs)) for row in made.rows] == [(name, 2) for name in runfile.cases]
    assert made.rows[0].settings == made.rows[1].settings
    assert "method.rate_x" in made.rows[0].settings
    assert "4 trials are built" in said


@pytest.mark.slow
def test_seeds_differ_even_if_they_do_not_fit_into_one_array(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(side_by_side, "_AGENTS", 3)
    method = 'name = "DpSgda"\nrelease_x = {clip = 1.0}\nrelease_y = {clip = 1.0}'
    text = TEXT.split("[search]", maxsplit=1)[0].replace('name = "DmHsgd"', method)
    text = text.replace("redraw = true", "redraw = false").replace("enabled = false", "epsilon = 3.0")
    (made,) = side_by_side.execute([(RunFile.parse(text), tmp_path)])
    first, second = (run.history["auroc/agents"][-1] for run in made.rows[0].runs)
    assert (first != second).any()


def test_a_trial_whose_score_is_not_finite_is_not_chosen(monkeypatch) -> None:
    def results(setups, say):
        found = [float("nan"), 0.5] * len(setups)
        return [SimpleNamespace(history={"auroc": np.array([score])}) for score, _ in zip(found, setups)]

    monkeypatch.setattr(side_by_side, "run_all", results)
    rows = planned.plan(RunFile.parse(TEXT))
    (chosen,) = side_by_side._searched([rows], lambda line: None)
    for row in rows[::2]:
        assert chosen[row.name] == search.settings_of(row.case, row.name)[1]


def test_members_do_not_hear_each_other() -> None:
    pair = sv.networks.side_by_side([sv.networks.ring(3), sv.networks.complete(2)])
    assert pair.edges.max() == 4
    assert not pair.mix.toarray()[:3, 3:].any()
    with pytest.raises(ValueError, match="side_by_side"):
        sv.networks.Network("wrong", 5, {"mix": sv.networks.ring(5).mix}, members=pair.members)
