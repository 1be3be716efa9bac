"""The protocol of comparisons: equal trials, no look at the test set, seeds that redraw, and nothing repeated."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.data import levels
from sottovoce.data.parts import Levels, Part, ids_of
from sottovoce.experiments import build, columns, execute, planned, search
from sottovoce.experiments.redraw import redrawn, words
from sottovoce.experiments.runfile import RunFile
from sottovoce.experiments.schema import own_settings, with_settings

SEARCH = """
[search]
trials = 3
seeds = [1000]
[search.ranges]
"method.rate" = [0.05, 2.0]
"""
TWO = (
    SEARCH
    + """
[[variant]]
name = "private"
[[variant]]
name = "open"
privacy.enabled = false
"""
)
RANDOM = """
data = {name = "digits", agents = 6}
task = {name = "mlp", hidden = [4]}
network = {kind = "erdos-renyi", p = 0.6}
method = {name = "DpSgd", rate = 0.5, sampling = {kind = "poisson", batch = 20}, gradient = {clip = 1.0}}
run = {steps = 3, seeds = [0, 1], redraw = true}
privacy.enabled = false
"""


def only(text, *sets):
    return next(iter(RunFile.parse(text, sets).cases.values()))


def row(text, name="DpSgd", kind="together"):
    """A row whose setup is not built: for what needs none."""
    return planned.Planned(name, kind, setup=None, case=RunFile.parse(text).cases[name])


@pytest.fixture
def scores(monkeypatch):
    """Replace training by a formula, best at rate 0.3, and count the trials."""
    seen = []

    def scores(row, asked, tried):
        for settings in tried:
            seen.append((row.name, dict(settings)))
            yield -abs(np.log(settings["method.rate"] / 0.3))

    monkeypatch.setattr(search, "scores", scores)
    return seen


# --- the same chance for everybody


def test_every_contender_has_the_same_number_of_trials_and_its_own_draws(tiny):
    cases = RunFile.parse(tiny + TWO).cases
    tried = {name: search.settings_of(case, name) for name, case in cases.items()}
    assert {len(settings) for settings in tried.values()} == {3}
    rates = [settings["method.rate"] for each in tried.values() for settings in each]
    assert rates[0] == rates[3] == 0.5  # the file's own value comes first
    assert len(set(rates)) == 5
    assert all(0.05 <= rate <= 2.0 for rate in rates)
    assert tried == {name: search.settings_of(case, name) for name, case in cases.items()}


@pytest.mark.parametrize("change", ["trials = 4", "seeds = [7]", "validation = 0.4", "metric = 'loss'"])
def test_a_contender_with_another_protocol_is_refused(tiny, change):
    with pytest.raises(ValueError, match=r"\[search\] differs between variants"):
        RunFile.parse(tiny + TWO + f"[variant.search]\n{change}\n")


def test_a_contender_may_have_its_own_ranges_or_none(tiny):
    named = (
        f"{tiny}{TWO}search.ranges = {{}}\n[[variant]]\nname = 'clip'\nsearch.ranges.'method.gradient.clip' = [1, 4]\n"
    )
    cases = RunFile.parse(named).cases
    assert [len(search.settings_of(case, name)) for name, case in cases.items()] == [3, 0, 3]
    clips = [settings["method.gradient.clip"] for settings in search.settings_of(cases["clip"], "clip")]
    assert clips[0] == 1.0
    assert all(isinstance(clip, int) and 1 <= clip <= 4 for clip in clips[1:])  # whole between whole numbers


def test_draws_are_log_uniform():
    rng = np.random.default_rng(0)
    drawn = np.log10([search._draw(rng, [0.01, 100.0]) for _ in range(2000)])
    counts, _ = np.histogram(drawn, bins=4, range=(-2, 2))
    assert counts.sum() == 2000
    assert np.sum((counts - 500) ** 2 / 500) < 16.3  # chi-squared, 3 degrees, one in a thousand


def test_settings_reach_the_case_and_several_keys_share_a_draw(tiny):
    case = only(tiny)
    changed = with_settings(case, {"method.rate, method.gradient.clip": 0.25, "run.steps": 9})
    assert (changed.method.options["rate"], changed.method.options["gradient"]["clip"]) == (0.25, 0.25)
    assert changed.run.steps == 9
    assert with_settings(case, own_settings(case, ["method.rate", "method.gradient.clip"])) == case


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('"privacy.epsilon" = [1.0, 2.0]', "'privacy.epsilon' cannot be searched"),
        ('"data.agents" = [1, 2]', "'data.agents' cannot be searched"),
        ("method.rate = [0.1, 1.0]", "a key with dots stands in quotation marks"),
        ('"method.rate" = [1.0, 0.1]', "0 < low < high"),
        ('"method.rate" = {choices = []}', "choices"),
    ],
)
def test_a_range_that_makes_no_sense_is_named(tiny, line, message):
    with pytest.raises(ValueError, match=message):
        RunFile.parse(f"{tiny}[search]\ntrials = 2\n[search.ranges]\n{line}\n")


def test_a_range_for_what_the_file_does_not_set_is_refused_before_anything_runs(tiny, tmp_path):
    with pytest.raises(ValueError, match=r"'method\.momentum', which this case does not set"):
        execute.execute(RunFile.parse(tiny + SEARCH + '"method.momentum" = [0.1, 0.9]\n'), tmp_path / "out")
    with pytest.raises(ValueError, match=r"search\.metric: there is no metric 'acuracy'; did you mean 'accuracy'"):
        execute.execute(RunFile.parse(tiny + SEARCH, ["search.metric=acuracy"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- what a search may see


def test_reported_seeds_are_refused_in_a_search(tiny):
    with pytest.raises(ValueError, match=r"search\.seeds and run\.seeds share \[3\]"):
        RunFile.parse(tiny + SEARCH, ["search.seeds=[3, 1000]", "run.seeds=[2, 3]"])


def test_a_search_on_private_rows_is_refused():
    text = 'data = {file = "a.csv", label = "y", columns = {a = {range = [0, 1]}}}\nmethod = "auto"\n'
    with pytest.raises(ValueError, match=r"\[search\] is for public data sets .*\[select\]"):
        RunFile.parse(text + "[search]\ntrials = 2\n")
    with pytest.raises(ValueError, match=r"run\.redraw is for public data sets"):
        RunFile.parse(text + "[run]\nredraw = true\n")


@pytest.mark.slow
def test_a_test_set_of_garbage_changes_no_choice(tiny, tmp_path, monkeypatch):
    """Whoever reads test records in a search scores differently when they are replaced."""
    (honest,) = planned.plan(RunFile.parse(tiny + SEARCH))
    first = list(search.scores(honest, honest.case.search, search.settings_of(honest.case, honest.name)))
    load = build._load

    def broken(table):
        parts, test, classes = load(table)
        return parts, {key: np.full_like(leaf, 1) for key, leaf in test.items()}, classes

    monkeypatch.setattr(build, "_load", broken)
    for cached in (build._loaded, search._apart):
        cached.cache_clear()
    (blind,) = planned.plan(RunFile.parse(tiny + SEARCH))
    assert np.all(blind.setup.test["label"] == 1)
    again = list(search.scores(blind, blind.case.search, search.settings_of(blind.case, blind.name)))
    for cached in (build._loaded, search._apart):
        cached.cache_clear()
    assert first == again
    assert len(set(first)) > 1


def test_a_trial_is_scored_on_training_records_that_it_does_not_train_on(tiny):
    case = only(tiny + SEARCH)
    made = search.trial_setup(case, "together", case.search, seed=5)
    parts = build.records(case.data)[0]
    train = {tuple(record) for part in made.parts for record in part.gather()["features"]}
    held = {tuple(record) for record in made.test["features"]}
    assert len(held) == round(0.2 * sum(map(len, parts)))
    assert not train & held
    assert train | held == {tuple(record) for part in parts for record in part.gather()["features"]}


def test_noise_is_calibrated_anew_for_the_smaller_parts_of_a_trial(tiny):
    case = only(tiny + SEARCH)
    trial, reported = search.trial_setup(case, "together", case.search, seed=5), planned.setup(case)
    scales = [float(made.method.gradient.scale(0, 0)) for made in (trial, reported)]
    assert scales[0] == pytest.approx(scales[1] / 0.8, rel=1e-3)  # a mean over fewer records needs more
    assert 2.99 < trial.account.epsilon <= 3.0


@given(st.integers(0, 99), st.sampled_from([0.1, 0.3, 0.5]), st.booleans(), st.booleans())
def test_units_and_levels_are_held_out_whole(seed, share, owned, both):
    unit = np.random.default_rng(seed).integers(0, 12, 60) if owned else None
    records = {"label": np.arange(60)}
    parts = [Part(records, np.arange(0, 40), unit), Part(records, np.arange(40, 60), unit)]
    given = levels(parts, 0.4, seed) if both else parts
    kept, held = search.apart(given, share, seed)
    out = set(held["label"].tolist())
    for before, after in zip(given, kept, strict=True):
        pairs = ((before.upper, after.upper), (before.lower, after.lower)) if both else ((before, after),)
        for all_of_it, rest in pairs:
            gone = np.setdiff1d(all_of_it.rows, rest.rows)
            count = len(np.unique(ids_of(all_of_it)))
            lost = np.unique(ids_of(dataclasses.replace(all_of_it, rows=gone)))
            assert len(lost) == min(max(1, round(share * count)), count - 1)
            assert not np.intersect1d(lost, ids_of(rest)).size
            assert set(gone.tolist()) <= out


def test_levels_with_the_same_records_lose_the_same_ones():
    part = Part({"label": np.arange(20)}, np.arange(20))
    (kept,), held = search.apart([Levels(part, part)], 0.25, 0)
    assert np.array_equal(kept.upper.rows, kept.lower.rows)
    assert sorted([*kept.upper.rows, *held["label"]]) == list(range(20))


@pytest.mark.slow
def test_a_table_by_columns_is_scored_on_rows_that_no_level_reads():
    text = RANDOM.replace('network = {kind = "erdos-renyi", p = 0.6}', "columns.parties = 2").replace(
        "agents = 6", "upper = 0.3"
    )
    text = text.replace('task = {name = "mlp", hidden = [4]}', 'task.name = "vertical-representation"')
    method = 'method = {name = "Bambi", inner_steps = 1, batch = 50, rate_x = 0.1, rate_y = 0.1}'
    case = only("\n".join(method if line.startswith("method") else line for line in text.splitlines()) + SEARCH.replace(
        "method.rate", "method.rate_x"))  # fmt: skip
    whole = columns.records(redrawn(case, 1000))
    made = search.trial_setup(case, "together", case.search, 1000)
    used = np.union1d(made.held.columns.upper, made.held.columns.lower)
    assert len(used) + len(made.held.test["label"]) == len(whole.label)
    left = np.setdiff1d(np.arange(len(whole.label)), used)
    np.testing.assert_array_equal(made.held.test["label"], whole.label[left])
    np.testing.assert_array_equal(made.held.test["blocks"][1], whole.columns.blocks[1][left])


# --- choosing, and going on


def test_the_best_trial_is_chosen_and_one_that_diverged_is_the_worst(tiny, tmp_path, monkeypatch):
    values = iter([None, 0.4, 0.9, None, 0.4, 0.9])
    monkeypatch.setattr(search, "scores", lambda row, asked, tried: (next(values) for _ in tried))
    tried = search.settings_of(only(tiny + SEARCH), "DpSgd")
    best = search.search(row(tiny + SEARCH), tmp_path / "a", lambda number, trial: None)
    assert (best.settings, best.score) == (tried[2], 0.9)
    lowest = search.search(
        row(tiny + SEARCH.replace("[search]", "[search]\nmetric = 'loss'")), tmp_path / "b", lambda *_: None
    )
    assert (lowest.settings, lowest.score) == (tried[1], 0.4)
    monkeypatch.setattr(search, "scores", lambda row, asked, tried: (None for _ in tried))
    with pytest.raises(ValueError, match="every trial of its search diverged"):
        search.search(row(tiny + SEARCH), tmp_path / "c", lambda number, trial: None)


@pytest.mark.slow
def test_a_run_that_diverges_has_no_score(tiny):
    (wild,) = planned.plan(RunFile.parse(tiny + SEARCH, ["task.penalty=1e38", "privacy.enabled=false"]))
    assert list(search.scores(wild, wild.case.search, [{"method.rate": 1e38}])) == [None]


def test_a_stopped_search_goes_on_where_it_was(tiny, tmp_path, scores):
    def stop(number, trial):
        if number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search.search(row(tiny + SEARCH), tmp_path, stop)
    best = search.search(row(tiny + SEARCH), tmp_path, lambda number, trial: None)
    assert len(scores) == 3
    assert search.search(row(tiny + SEARCH), tmp_path, lambda number, trial: None) == best
    assert len(scores) == 3
    other = tiny.replace("steps = 4", "steps = 5")
    search.search(row(other + SEARCH), tmp_path, lambda number, trial: None)  # another case: nothing stored is its own
    assert len(scores) == 6


@pytest.mark.slow
def test_an_experiment_searches_runs_and_repeats_nothing_when_resumed(tiny, tmp_path, monkeypatch):
    runfile = RunFile.parse(tiny + TWO, ["run.seeds=[0, 1]", "run.redraw=true"])
    runs, run = [], execute.Planned.at

    def counted(self, seed, settings):
        runs.append((self.name, seed))
        return run(self, seed, settings)

    monkeypatch.setattr(execute.Planned, "at", counted)
    made = execute.execute(runfile, tmp_path / "out")
    assert len(runs) == 4
    scored = []
    monkeypatch.setattr(search, "_score", lambda *given: scored.append(given))
    again = execute.execute(runfile, tmp_path / "out", resume=True)
    assert scored == []
    for ours, theirs in zip(made.rows, again.rows, strict=True):
        assert ours.settings == theirs.settings
        np.testing.assert_array_equal(ours.values("loss"), theirs.values("loss"))
    tried = {name: search.settings_of(case, name) for name, case in runfile.cases.items()}
    assert all(row.settings in tried[row.name] for row in made.rows)
    splits = [planned.setup(redrawn(runfile.cases["open"], seed)).parts[0].rows for seed in (0, 1)]
    assert not np.array_equal(*splits)


# --- what a seed redraws


def test_each_seed_redraws_split_start_and_graph():
    case = only(RANDOM)
    first, second, again = (planned.setup(redrawn(case, seed)) for seed in (0, 1, 0))
    assert not np.array_equal(first.parts[0].rows, second.parts[0].rows)
    assert np.array_equal(first.parts[0].rows, again.parts[0].rows)
    starts = [
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(made.problem.x0)]) for made in (first, second, again)
    ]
    assert not np.array_equal(starts[0], starts[1])
    assert np.array_equal(starts[0], starts[2])
    graphs = [made.network.matrix("mix").toarray() for made in (first, second, again)]
    assert not np.array_equal(graphs[0], graphs[1])
    assert np.array_equal(graphs[0], graphs[2])
    assert words(case) == "split, what the task draws, graph, batches and noise"


def test_a_generator_redraws_its_records(tiny):
    case = only(tiny, "run.redraw=true")
    made = [build.records(redrawn(case, seed).data) for seed in (0, 1)]
    assert not np.array_equal(made[0][1]["features"], made[1][1]["features"])
    assert words(case) == "data and split, batches and noise"


def test_without_redraw_seeds_share_the_split(tiny):
    case = only(tiny, "run.seeds=[0, 1]")
    assert redrawn(case, 1) == case
    assert words(case) == "batches and noise"


@pytest.mark.parametrize("key", ["data.seed", "task.seed", "network.seed"])
def test_a_seed_that_would_have_no_effect_is_refused(key):
    with pytest.raises(ValueError, match=f"{key} has no effect with run.redraw"):
        redrawn(only(RANDOM, f"{key}=3"), 0)


# --- smaller versions


def test_reduced_never_shrinks_seeds_or_trials(tiny):
    for change in ("run.seeds = [0]", "search.trials = 1"):
        with pytest.raises(ValueError, match=r"\[reduced\] of the file changes"):
            RunFile.parse(f"{tiny}[reduced]\n{change}\n")
        with pytest.raises(ValueError, match=r"\[reduced\] of a variant changes"):
            RunFile.parse(f"{tiny}[[variant]]\nname = 'a'\n[variant.reduced]\n{change}\n")
    with pytest.raises(ValueError, match=r"has no \[reduced\]"):
        RunFile.parse(tiny, scale="reduced")


def test_quick_shrinks_what_reduced_left_and_variants_shrink_by_themselves(tiny):
    text = f"{tiny}[reduced]\nrun.steps = 3\ndata.n = 100\n[quick]\nrun.steps = 2\n"
    text += (
        "[[variant]]\nname = 'a'\n[[variant]]\nname = 'b'\nrun.steps = 8\nreduced.run.steps = 7\nquick.run.steps = 6\n"
    )
    steps = {scale: [case.run.steps for case in RunFile.parse(text, scale=scale).cases.values()]
             for scale in ("full", "reduced", "quick")}  # fmt: skip
    assert steps == {"full": [4, 8], "reduced": [3, 7], "quick": [2, 6]}
    assert RunFile.parse(text, scale="quick").cases["a"].data.options["n"] == 100
    assert RunFile.parse(text, ["run.steps=1"], scale="quick").cases["b"].run.steps == 1
    again = RunFile.parse(RunFile.parse(text, scale="reduced").text)
    assert again.cases == RunFile.parse(text, scale="reduced").cases


def test_what_an_experiment_is_and_takes_is_kept(tiny):
    made = RunFile.parse("about = 'Figure 2.'\ntakes = {full = '9 h', quick = '20 s'}\n" + tiny)
    assert (made.about, made.takes.full, made.takes.reduced, made.takes.quick) == ("Figure 2.", "9 h", "", "20 s")
    with pytest.raises(ValueError, match=r"no key of takes 'qick'; did you mean 'quick'"):
        RunFile.parse("takes = {qick = '20 s'}\n" + tiny)
