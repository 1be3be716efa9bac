"""Run files: what they say, what is wrong with them, how tables are merged and written."""

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.experiments import build, columns
from sottovoce.experiments.runfile import RunFile
from sottovoce.experiments.toml import dump, merge
from sottovoce.laboratory import reproduce


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("[dta]\nname = 'x'", "no table 'dta'; did you mean 'data'"),
        ("privat.epsilon = 3", "no table 'privat'; did you mean 'privacy'"),
        ("run.step = 3", r"no key of \[run\] 'step'; did you mean 'steps'"),
        ("privacy.epsilo = 3", r"no key of \[privacy\] 'epsilo'; did you mean 'epsilon'"),
        ("[compare]\nalne = true", r"no key of \[compare\] 'alne'; did you mean 'alone'"),
        ("[[variant]]\nname = 'a'\nmetod.rate = 1", r"no key of \[\[variant\]\] 'metod'; did you mean 'method'"),
        ("[[variant]]\nname = 'a'\nrun.stps = 1", r"no key of \[run\] 'stps'; did you mean 'steps'"),
        ("[[printed]]\nwhat = 'a'\nvalu = 1", r"printed.*(valu|value)"),
        ("[[variant]]\nname = 'a'\n[[variant]]\nname = 'a'", "two variants are called 'a'"),
        ("run.steps = 'many'", "run.steps is 'many'"),
        ("run.steps = 0", "run.steps is 0: input should be greater than or equal to 1"),
        ("privacy.delta = 1.5", "privacy.delta is 1.5"),
        ("data.by = 'labels'", "data.by is 'labels'"),
        ("run.seeds = []", "run.seeds is \\[\\]"),
        ("not toml at all", "this is not TOML"),
    ],
)
def test_what_is_wrong_is_named(tiny, change, message):
    if "[[" in change or change.startswith(("[", "not")):
        text, sets = tiny + "\n" + change, []
    else:
        text, sets = tiny, [change]
    with pytest.raises(ValueError, match=message):
        RunFile.parse(text, sets)


def test_missing_tables_are_listed():
    with pytest.raises(ValueError, match=r"lacks \[task\], \[method\], \[run\]"):
        RunFile.parse("data.name = 'digits'")


def test_missing_file_is_one_clear_line(tmp_path):
    with pytest.raises(ValueError, match="there is no run file"):
        RunFile.load(tmp_path / "absent.toml")


def test_variants_change_parts_and_keep_the_rest(tiny):
    text = (
        tiny + '[[variant]]\nname = "low"\nprivacy.epsilon = 1.0\n[[variant]]\nname = "star"\nnetwork.kind = "star"\n'
    )
    cases = RunFile.parse(text).cases
    assert list(cases) == ["low", "star"]
    assert (cases["low"].privacy.epsilon, cases["star"].privacy.epsilon) == (1.0, 3.0)
    assert cases["star"].network.kind == "star"
    assert cases["low"].run == cases["star"].run


def test_sets_win_over_variants_and_quick_over_the_file(tiny):
    text = tiny + '[quick]\nrun.steps = 2\n[[variant]]\nname = "long"\nrun.steps = 9\n'
    assert RunFile.parse(text).cases["long"].run.steps == 9
    assert RunFile.parse(text, scale="quick").cases["long"].run.steps == 2
    assert RunFile.parse(text, ["run.steps=3"], scale="quick").cases["long"].run.steps == 3
    assert RunFile.parse(text, ["title=mine"]).title == "mine"


def test_a_wrong_table_in_quick_is_named(tiny):
    with pytest.raises(ValueError, match="no table 'runs'; did you mean 'run'"):
        RunFile.parse(tiny + "[quick]\nruns.steps = 2\n", scale="quick")


def test_the_text_kept_gives_the_same_cases_again(tiny):
    made = RunFile.parse(tiny + "[quick]\nrun.steps = 2\n", ["network.kind=star", "run.seeds=[1, 2]"], scale="quick")
    again = RunFile.parse(made.text)
    assert again.cases == made.cases
    assert again.cases["DpSgd"].network.kind == "star"


def test_a_renamed_table_is_replaced():
    base = {"method": {"name": "A", "rate": 1, "sampling": {"kind": "poisson", "batch": 5}}}
    assert merge(base, {"method": {"name": "B"}}) == {"method": {"name": "B"}}
    assert merge(base, {"method": {"sampling": {"kind": "full"}}})["method"]["sampling"] == {"kind": "full"}
    assert merge(base, {"method": {"name": "A", "rate": 2}})["method"]["sampling"]["batch"] == 5


@pytest.mark.parametrize("line", ["run.steps", "=3"])
def test_a_set_without_key_or_value_is_an_error(tiny, line):
    with pytest.raises(ValueError, match="write key=value"):
        RunFile.parse(tiny, [line])


_plain = st.one_of(st.booleans(), st.integers(-(10**9), 10**9), st.floats(allow_nan=False), st.text(max_size=8))
_values = st.recursive(
    _plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(max_size=5), st.dictionaries(st.text(max_size=5), _values, max_size=4), max_size=3))
def test_written_toml_reads_back(document):
    assert tomllib.loads(dump(document)) == document


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.text(max_size=5),
        st.lists(st.dictionaries(st.text(max_size=5), _values, max_size=3), min_size=1, max_size=3),
        max_size=2,
    )
)
def test_written_lists_of_tables_are_sections_and_read_back(document):
    text = dump(document)
    assert tomllib.loads(text) == document
    assert text.count("[[") >= sum(map(len, document.values()))


@pytest.mark.parametrize("name", reproduce.experiments())
def test_the_method_of_every_shipped_experiment_can_be_built(name):
    for case in RunFile.load(reproduce.find(name)).cases.values():
        if case.columns is None:
            build.method(case.method, calibrated=True)
        else:
            columns._method(case)
