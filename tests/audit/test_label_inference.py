"""A passive party against each label gate: exact where the paper's noise fails, within e^epsilon where ours holds."""

import math

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.table import table_account
from sottovoce.laboratory.bambi.label_inference import demonstrate, infer, measured
from sottovoce.papers.bambi.method import Bambi
from sottovoce.privacy.labels import Labels, Open
from sottovoce.problems.tasks.vertical import hyper_parameters
from sottovoce.runtime.columns import record_messages


@pytest.mark.slow
def test_printed_noise_reveals_every_label_and_a_memo_keeps_its_promise() -> None:
    rows, classes = 1200, 10
    (_, open_share, _), (_, printed_share, printed), (_, fresh_share, fresh), (_, share, memo), _ = demonstrate(rows)
    assert open_share == 1.0
    assert printed_share > 0.99
    assert not printed.passed
    assert printed.claimed == 1.0
    assert fresh.passed
    assert fresh_share > share  # fresh noise averages out over uses, which is what it is charged for
    assert memo.passed
    assert memo.claimed == 1.0
    allowed = math.e / (math.e + classes - 1)
    assert share == pytest.approx(allowed, abs=4 * math.sqrt(allowed / rows))


@pytest.mark.slow
def test_norms_and_signs_tell_two_classes_apart() -> None:
    rng = np.random.default_rng(0)
    label = (rng.random(400) < 0.15).astype(int)
    columns = sv.Columns([rng.normal(size=(400, 2)), rng.normal(size=(400, 2))])
    table = sv.Table(columns, Labels(label, 2))
    method = Bambi(inner_steps=30, batch=400, rate_x=0.1, rate_y=2.0, labels=Open())
    _, log = record_messages(table_account(method, table, hyper_parameters([2, 2]), steps=1, delta=0.0), table)
    last = [message for message in log if message.level == "upper"]
    assert (infer(last, party=0, labels=400, classes=2) == label).all()
    by_norm = infer(last, party=0, labels=400, classes=2, way="norm")
    assert (by_norm[label == 1] == 1).all()
    assert (by_norm == label).mean() > 0.6  # cut at the median: every rare label is found, some common ones with it


def test_a_bound_from_guesses_is_one_from_a_binomial() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(4, size=20_000)
    kept = rng.random(20_000) < math.e / (math.e + 3)
    guesses = np.where(kept, truth, (truth + rng.integers(1, 4, size=20_000)) % 4)
    found = measured(guesses, truth, classes=4, claimed=1.0, what="response")
    assert found.passed
    assert found.lower == pytest.approx(1.0, abs=0.06)
    assert not measured(guesses, truth, classes=4, claimed=0.9, what="response").passed


def test_unknown_ways_are_refused() -> None:
    with pytest.raises(ValueError, match="choose one of direction"):
        infer([], party=0, labels=3, classes=2, way="luck")  # type: ignore[arg-type]
