"""One's own table: declarations, values that do not fit, what is read off the rows, and what it costs."""

import datetime
import io
import re
import sys
import warnings

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.accounting.charging import Charging
from sottovoce.data import Column, Declarations, notes, table
from sottovoce.data.frames import as_frame
from sottovoce.data.notes import DeclarationWarning, Note, tell_holder
from sottovoce.privacy import accountant
from sottovoce.privacy.mechanisms import Mechanism

ROWS = {
    "age": [30.0, None, 200.0, 60.0],
    "sex": ["F", "M", None, "X"],
    "seen": [datetime.date(2005, 1, 1), None, datetime.date(1990, 1, 1), datetime.date(2010, 1, 1)],
    "ill": [True, False, True, False],
}
DECLARED = {
    "age": {"range": [0, 120], "missing": "flag"},
    "sex": {"categories": ["F", "M"]},
    "seen": {"range": ["2000-01-01", "2010-01-01"]},
    "ill": {"categories": [False, True]},
}


def written(folder, kind):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({**ROWS, "seen": pandas.to_datetime(ROWS["seen"])})
    path = folder / f"rows.{kind}"
    if kind == "frame":
        return frame
    if kind == "csv":
        frame.to_csv(path, index=False)
    else:
        pytest.importorskip("pyarrow")
        (frame.to_parquet if kind == "parquet" else frame.to_feather)(path)
    return path


@pytest.mark.parametrize("kind", ["frame", "csv", "parquet", "feather"])
def test_every_kind_of_table_is_encoded_alike(tmp_path, kind):
    declared = Declarations(DECLARED)
    np.testing.assert_array_equal(declared.encode(written(tmp_path, kind)), declared.encode(ROWS))


def test_rows_are_encoded_as_declared_and_never_longer_than_the_bound():
    declared = Declarations(DECLARED)
    half = 2 * (datetime.date(2005, 1, 1) - datetime.date(2000, 1, 1)).days / 3653 - 1
    expected = [
        [-0.5, 0, 1, 0, 0, half, 0, 1, 0],
        [0, 1, 0, 1, 0, 0, 1, 0, 0],
        [1, 0, 0, 0, 1, -1, 0, 1, 0],
        [0, 0, 0, 0, 1, 1, 1, 0, 0],
    ]
    np.testing.assert_allclose(declared.encode(ROWS), expected, atol=1e-6)
    rng = np.random.default_rng(0)
    wild = {"age": rng.standard_cauchy(500) * 1e3, "sex": rng.choice(["F", "M", "", "q"], 500)}
    held = Declarations({name: DECLARED[name] for name in wild})
    assert np.linalg.norm(held.encode(wild), axis=1).max() <= held.norm == np.sqrt(2)
    assert Declarations(declared.to_dict()) == declared
    own = Declarations({"race": Column(categories=["cauc", "other"], missing="flag")})  # a category of that name
    assert own.names == ("race=cauc", "race=other", "race=missing")
    assert own.encode({"race": ["cauc", "other", "new", None]}).argmax(axis=1).tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("value", ["", "abc", "1e999", "-inf", "NaN", "9" * 400, "\x00", "2020-13-45", "ü", "'", ";"])
def test_no_value_stops_a_run_or_is_shown(tmp_path, capsys, value):
    path = tmp_path / "a.csv"
    path.write_text(f"age,y,w,who\n{value},{value},{value},{value}\n40,1,2,b\n50,0,1\n60,1,1,b,9,9\n", encoding="utf-8")
    columns = {"age": Column(range=(0, 120)), "y": Column(categories=[0, 1]), "w": Column(range=(0, 4))}
    held = table(path, "y", ["age"], columns=columns, weight="w", unit="who")
    assert len(held) == 4
    assert not np.isfinite(held.records["features"][0]).any()  # no label: the row contributes nothing, and n is public
    assert np.isfinite(held.records["features"][1:]).all()
    assert held.notes
    assert capsys.readouterr() == ("", "")  # a warning has no value of it
    said = repr(held.facts)
    assert "row" not in said
    assert "missing (" not in said


class Terminal(io.StringIO):
    def isatty(self):
        return True


WRONG = {  # what a column holds, how it is declared, and words of the remedy
    "text in numbers": (["63 years", "7 years"] * 50, {"range": [0, 120]}, "can be read: numbers are written as"),
    "commas in numbers": (["63,000", "7,500"] * 50, {"range": [0, 99_000]}, "without a unit or a comma"),
    "another unit": ([1.83, 1.6] * 50, {"range": [100, 220]}, "is its range right"),
    "most out of range": ([40] * 80 + [20] * 20, {"range": [18, 30]}, "most of its values are outside of the range"),
    "names for codes": ([0, 1] * 50, {"categories": ["no", "yes"]}, '{0 = "no", 1 = "yes"}'),
    "some other words": (
        ["F", "M"] * 40 + ["female"] * 20,
        {"categories": ["F", "M"]},
        "many of its values are not",
    ),
    "dates in another order": (["31.12.2020"] * 100, {"range": ["2000-01-01", "2021-01-01"]}, "dates as 2020-12-31"),
    "nothing there": ([None] * 100, {"range": [0, 1]}, "none of its values is there"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_declaration_is_heard_where_there_is_no_terminal_and_without_counts(case):
    values, declared, words = WRONG[case]
    with pytest.warns(DeclarationWarning) as heard:
        table({"a": values, "y": [0, 1] * 50}, "y", columns={"a": declared, "y": {"categories": [0, 1]}})
    (said,) = [str(one.message) for one in heard]
    assert words in said
    assert "column 'a'" in said
    assert not re.search(r"\b(100|80|20|50) of|row", said.partition("(for the holder")[0])  # logs and notebooks travel
    assert heard[0].filename == __file__


@pytest.mark.parametrize(("labels", "absent"), [([0] * 100, "1"), ([0, 1] * 50, None)])
def test_a_class_that_no_row_has_is_heard(labels, absent):
    columns = {"a": {"range": [0, 9]}, "y": {"categories": {0: "no", 1: "yes"}}}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table({"a": list(range(10)) * 10, "y": labels}, "y", columns=columns)
    assert [f"no row has the class {absent}: " in str(one.message) for one in caught] == [True] * (absent is not None)


def test_the_scaler_and_predictions_warn_too(monkeypatch):
    scaler = sv.DeclaredScaler({"age": {"range": (0, 120)}})
    with pytest.warns(DeclarationWarning, match="column 'age': none of its values can be read"):
        scaler.fit_transform({"age": ["63 years", "x"]})
    with pytest.warns(DeclarationWarning, match="cuts many values of 1 of 2 columns"):
        sv.DeclaredScaler().fit_transform([[0.5, 40.0], [0.1, 60.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sv.DeclaredScaler().fit_transform([[0.5, 0.4], [0.1, 1.0]])


def test_a_terminal_shows_counts_and_rows_and_the_switch_and_a_site_show_nothing(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    note = Note("a.csv, column 'age': 1 of 3 values do not fit (row 1)", "none fits")
    tell_holder([note])
    assert "row 1" in screen.getvalue()
    monkeypatch.setenv("SOTTOVOCE_NOTES", "off")
    told = len(screen.getvalue())
    tell_holder([note])
    monkeypatch.delenv("SOTTOVOCE_NOTES")
    monkeypatch.setattr(notes, "_at_a_site", False)
    notes.be_silent()  # as a site of a federation does when it starts: its logs travel
    tell_holder([note])
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tell_holder([note])
    assert len(screen.getvalue()) == told


def test_columns_that_are_often_missing_or_rarely_out_of_range_are_no_fault():
    rng = np.random.default_rng(0)
    age = np.where(rng.uniform(size=1000) < 0.6, np.nan, 40.0)
    age[:50] = 200.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        held = table({"age": age, "y": np.arange(1000) % 2}, "y",
                     columns={"age": {"range": [0, 120]}, "y": {"categories": [0, 1]}})  # fmt: skip
    assert len(held.notes) == 2
    assert not any(note.hopeless for note in held.notes)


def numbers(rows, parties=3, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "lab": np.concatenate([rng.uniform(3.1, 11.0, rows - 3), [1e6, -1e6, 5e5]]),
        "kind": np.array(["a", "b"] * (rows // 2 - 30) + [f"secret {number}" for number in range(60)]),
        "y": np.arange(rows) % 4 == 0,
        "who": np.arange(rows) % parties,
    }


PRIVATE = {"lab": Column(range="private"), "kind": Column(categories="private"), "y": Column(categories=[False, True])}


def test_bought_ranges_lists_and_shares_are_right_and_hide_single_rows():
    held = table(numbers(3000), "y", columns=PRIVATE, party="who", private=sv.NoisyCounts(1.5, seed=1), share="private")
    assert held.columns["lab"].range == (3.0, 12.0)  # ends are 2^k and 1.5 2^k; three outliers are not shown
    assert held.columns["kind"].names == ("a", "b")  # each secret has one row
    assert held.share == pytest.approx(0.25, abs=0.02)
    assert sum("bought" in word for word in held.facts.words) == 3


def test_what_was_bought_is_charged_with_the_run():
    counter = sv.NoisyCounts(0.6, seed=0)
    parts = table(numbers(3000), "y", columns=PRIVATE, party="who", private=counter).parts()
    (bought,) = parts[0].facts.bought
    assert (bought.gaussian, bought.delta) == counter.cost(questions=2, lists=1)
    quiet = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(clip=1.0, noise=1e6), sampling=sv.Full())
    how = {"steps": 2, "network": sv.networks.ring(3), "adjacency": "zero-out"}
    alone = sv.account(quiet, parts, delta=1e-5, **how).epsilon
    assert alone == pytest.approx(0.6, rel=0.01)  # the run's own releases cost next to nothing
    assert sv.account(quiet, parts, delta=1e-5, **{**how, "adjacency": "replace-one"}).epsilon > 1.8 * alone
    with pytest.raises(sv.privacy.BudgetExceeded):
        sv.run(
            sv.Minimize(lambda x, r: (x - r["label"]) ** 2, 0.0), parts, quiet, budget=sv.Budget(0.5, 1e-5, "zero-out"),
            delta=1e-5, **how,
        )  # fmt: skip


def test_what_is_bought_is_charged_before_it_is_drawn_and_once(tmp_path, monkeypatch):
    ledger, path = sv.Ledger(tmp_path / "ledger.jsonl"), tmp_path / "bought.json"

    named = {**numbers(3000), "who": np.array(["north", "south", "west"])[np.arange(3000) % 3]}

    def bought(epsilon=0.6, rows=named, **how):
        private = sv.NoisyCounts(epsilon, **{"path": path, "ledger": ledger, **how})
        return table(rows, "y", columns=PRIVATE, party="who", private=private, share="private")

    drawn = sv.NoisyCounts.noised

    def noised(self, *asked):
        assert len(sv.Ledger(ledger.path).entries) == 1  # on disk already
        return drawn(self, *asked)

    monkeypatch.setattr(sv.NoisyCounts, "noised", noised)
    first = bought()
    monkeypatch.setattr(sv.NoisyCounts, "noised", lambda *_: pytest.fail("drawn again"))
    again = bought(rows={name: held[:300] for name, held in named.items()})  # no row is looked at
    assert (again.columns, again.share, again.facts.bought) == (first.columns, first.share, first.facts.bought)
    (entry,), (priced,) = ledger.entries.values(), again.facts.bought
    assert entry.groups[0].spent == ((Mechanism(gaussian=priced.gaussian), 1),)
    assert entry.groups[0].overflow == priced.delta > 0
    paid = {name: float(ledger.epsilon(name, 1e-5, "zero-out")) for name in ("north", "west")}
    assert all(0.59 < epsilon <= 0.6 for epsilon in paid.values())
    # Two runs with this ledger: what was bought is in it once. With another ledger, each run charges it.
    quiet = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(clip=1.0, noise=1e6), sampling=sv.Full())
    known, apart = account_of(quiet, again.parts(), steps=2, network=sv.networks.ring(3)), sv.Ledger()
    twice = accountant.epsilon([(Mechanism(gaussian=again.facts.bought[0].gaussian), 2)], 1e-5, "zero-out")
    assert 0.85 < twice < 0.9
    for kept, epsilon in ((ledger, 0.6), (ledger, 0.6), (apart, 0.6), (apart, twice)):
        Charging(kept, f"run {len(kept.entries)}", known).charge(0, 2)
        assert kept.epsilon("south", 1e-5, "zero-out") == pytest.approx(epsilon, rel=0.01)
    for change, words in (({"epsilon": 0.5}, "other epsilon"), ({"seed": 3}, "other seed")):
        with pytest.raises(ValueError, match=words):
            bought(**change)
    with pytest.raises(sv.privacy.BudgetExceeded):
        bought(path=None, budget=sv.Budget(0.8, 1e-5, "zero-out"))
    own = [sv.Ledger() for _ in range(3)]
    monkeypatch.setattr(sv.NoisyCounts, "noised", drawn)
    assert bought(path=None, ledger=own).facts.bought[0].name in {entry.run for entry in own[2].entries.values()}


def test_a_bought_list_leaves_room_for_a_large_epsilon():
    (bought,) = table(numbers(3000), "y", columns=PRIVATE, private=sv.NoisyCounts(0.6, seed=0)).facts.bought
    spent = ((Mechanism(gaussian=bought.gaussian), 1), (Mechanism(gaussian=1.8), 1))
    assert 6 < accountant.epsilon(spent, 1e-5, "zero-out", overflow=bought.delta) < 9


def test_a_simulated_purchase_is_not_deployed():
    parts = table(numbers(300), "y", columns=PRIVATE, private=sv.NoisyCounts(0.6, seed=0)).parts()
    method = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(clip=1.0, noise=1.0), sampling=sv.Full())
    with pytest.raises(ValueError, match="leave seed out"):
        sv.run(sv.Minimize(lambda x, r: (x - r["label"]) ** 2, 0.0), parts, method, steps=1, noise="discrete")


def test_a_unit_is_counted_once():
    many = {"lab": np.r_[np.full(4000, 5e5), np.linspace(2.0, 2.9, 1000)], "y": np.arange(5000) % 2,
            "who": np.r_[np.zeros(4000, int), np.arange(1, 1001)]}  # fmt: skip
    columns = {"lab": Column(range="private"), "y": Column(categories=[0, 1])}
    assert table(many, "y", columns=columns, private=sv.NoisyCounts(1.0, seed=0)).columns["lab"].range[1] > 4e5
    held = table(many, "y", columns=columns, private=sv.NoisyCounts(1.0, seed=0), unit="who")
    assert held.columns["lab"].range == (2.0, 3.0)
    assert sv.Population.of(held.parts()).unit == "who"


def test_parties_keep_their_names_and_rows_without_one_are_kept_together():
    rows = {"a": np.arange(6.0), "y": [0, 1] * 3, "clinic": ["n", "s", "n", None, "s", ""]}
    columns = {"a": Column(range=(0, 9)), "y": Column(categories=[0, 1])}
    parts = table(rows, "y", columns=columns, party="clinic").parts()
    assert {part.name: part.rows.tolist() for part in parts} == {"n": [0, 2], "s": [1, 4], "other": [3, 5]}
    closed = table(rows, "y", columns={**columns, "clinic": Column(categories=["s"])}, party="clinic").parts()
    assert {part.name: len(part) for part in closed} == {"s": 2, "other": 4}


def test_held_out_rows_do_not_depend_on_values_and_units_stay_whole():
    rng = np.random.default_rng(0)
    columns = {"a": Column(range=(0, 1)), "y": Column(categories=[0, 1])}
    who = np.arange(100) // 4

    def tested(values):
        held = table({"a": values, "y": rng.integers(0, 2, 100), "who": who}, "y", columns=columns, unit="who")
        train, test = held.hold_out(0.2, seed=3)
        assert not set(train.unit) & set(test.unit)
        return test.unit.tolist()

    assert tested(rng.uniform(size=100)) == tested(np.zeros(100))


def test_weights_are_scaled_to_their_bound_and_labels_to_their_range():
    rows = {"a": [1, 2, 3], "pay": [0, 50, 200], "w": [5, 10, 99]}
    columns = {"a": Column(range=(0, 9)), "pay": Column(range=(0, 100)), "w": Column(range=(0, 10))}
    held = table(rows, "pay", columns=columns, weight="w")
    assert held.records["label"].tolist() == [-1, 0, 1]
    assert held.records["weight"].tolist() == [0.5, 1, 1]
    assert held.classes == ()


@pytest.mark.parametrize("kind", ["csv", "texts", "pandas"])
def test_weekday_and_hour_of_dates_are_columns_of_their_own(tmp_path, kind):
    when = ["2024-02-29T13:45", "2024-03-02 00:00", "2024-03-03", "soon"]  # Thursday, Saturday, Sunday
    rows = {"came": when, "hour of day": [1, 2, 3, 4]}
    if kind == "pandas":
        pandas = pytest.importorskip("pandas")
        rows = pandas.DataFrame({**rows, "came": pandas.to_datetime(when, errors="coerce", format="mixed")})
    elif kind == "csv":
        (tmp_path / "t.csv").write_text("came,hour of day\n" + "\n".join(f"{a},{b + 1}" for b, a in enumerate(when)))
        rows = tmp_path / "t.csv"
    declared = Declarations({
        "weekday of came": {"categories": ["Thursday", "Saturday", "Sunday"]}, "hour of came": {"range": (0, 23)},
        "hour of day": {"range": (0, 4)}, "came": {"range": ("2024-02-29", "2024-03-04")},
    })  # fmt: skip
    read = declared.read(rows)
    assert read["weekday of came"].values.tolist()[:3] == [0, 1, 2]
    assert read["weekday of came"].values[3] in (-1, 3)  # missing, or no weekday
    np.testing.assert_array_equal(read["hour of came"].values[:2], [13, 0])
    assert np.isnan(read["hour of came"].values[3])
    assert read["hour of day"].values.tolist() == [1, 2, 3, 4]  # a column of this name is itself
    np.testing.assert_array_equal(declared.encode(rows)[:3, -1], [-1, 0, 0.5])
    with pytest.raises(ValueError, match="there is no column 'hour of gone'"):
        Declarations({"hour of gone": {"range": (0, 23)}}).read(rows)


def test_a_header_is_all_that_is_read_of_a_text_file_that_is_not_public(tmp_path):
    from sottovoce.experiments.template import template

    texts = []
    for rows in ("1,2,x\n", "a,,\n" * 50 + "3,4\n"):
        (tmp_path / "t.csv").write_text("age,sick,city\n" + rows)
        texts.append(template(tmp_path / "t.csv", "sick"))
    assert texts[0] == texts[1]
    assert as_frame(tmp_path / "t.csv").names == ("age", "sick", "city")
    (tmp_path / "p.csv").write_text("age,sick,pat_id\n" + "".join(f"{20 + k},{k % 2},{k}\n" for k in range(40)))
    sample = template(tmp_path / "p.csv", "sick", sample=True)
    assert "age = {range = [20, 59]}" in sample
    assert "# pat_id: looks like an id, left out" in sample


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_a_spreadsheets_file_is_read_whatever_its_encoding_and_decimal_comma(tmp_path, encoding):
    from sottovoce.experiments.template import template

    lines = ["Größe [m];Ort;seit;krank", *(f"1,{k};Zürich;2001-02-{k:02};ja, oft" for k in range(10, 22))]
    (tmp_path / "t.csv").write_bytes("\r\n".join(lines).encode(encoding))
    columns = {"Größe [m]": {"range": [1, 2]}, "Ort": {"categories": ["Bern", "Zürich"]}}
    held = table(tmp_path / "t.csv", "krank", columns={**columns, "krank": {"categories": ["nein", "ja, oft"]}})
    np.testing.assert_allclose(held.records["features"][:, 0], np.arange(10, 22) / 50 - 1, rtol=1e-5)
    assert held.records["features"][:, 2].all()
    assert held.records["label"].all()
    sample = template(tmp_path / "t.csv", "krank", sample=True)
    for line in ('"Größe [m]" = {range = [1.1, 1.21]}', "seit = {range = [2001-02-10, 2001-02-21]}", '["ja, oft"]'):
        assert line in sample


def test_a_byte_that_is_no_text_changes_its_own_value_only(tmp_path):
    (tmp_path / "t.csv").write_bytes("a,y\né,0\n".encode() + b"\xe9,0\n" + "é,1\n".encode())
    assert as_frame(tmp_path / "t.csv")["a"].tolist() == ["é"] * 3


@pytest.mark.parametrize(
    ("bytes_", "said"),
    [
        ("age;y\n1;0\n".encode("utf-16-le"), "t.csv is no text in UTF-8"),
        (b"sep=;\nage;y\n1;0\n", "t.csv: its first line is a hint for spreadsheets"),
        (b'age,y\n1,0\n"2,1\n3,0\n', r"never closed.*the last row that ends is row 1"),
        (b"age,y,age\n1,0,1\n", "t.csv has 2 columns called 'age': rename them"),
    ],
)
def test_a_file_whose_rows_cannot_be_told_is_refused(tmp_path, bytes_, said):
    (tmp_path / "t.csv").write_bytes(bytes_)
    with pytest.raises(ValueError, match=said):
        table(tmp_path / "t.csv", "y", columns={"age": {"range": [0, 9]}, "y": {"categories": [0, 1]}})
