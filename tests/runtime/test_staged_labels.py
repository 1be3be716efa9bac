"""Labels drawn in stages: every label once, at one epsilon, and asked what tells most."""

from dataclasses import replace

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.papers.bambi.method import Bambi
from sottovoce.privacy.labels import Memoised, Open
from sottovoce.problems.tasks.vertical import hyper_representation, probabilities
from sottovoce.runtime.staged_labels import run_in_stages

ROWS, CLASSES = 120, 3
METHOD = Bambi(inner_steps=3, batch=10, rate_x=0.3, rate_y=1.0, labels=Memoised(2.0), directions=2)
PROBLEMS = [hyper_representation([2, 2, 2], CLASSES, hidden=(4,), seed=seed) for seed in range(2)]


def made():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(ROWS, 6)).astype(np.float32)
    label = (features[:, :CLASSES] + 0.3 * rng.normal(size=(ROWS, CLASSES))).argmax(axis=1)
    return sv.Table(
        sv.Columns(np.array_split(features, 3, axis=1)).levels(upper=0.4), sv.Labels(label, CLASSES, seed=0)
    )


@pytest.mark.slow
def test_stages_draw_every_label_once_and_ask_what_tells_most():
    table = made()
    found = run_in_stages(PROBLEMS, table, METHOD, steps=20, stages=2)
    labels, columns = table.labels, table.columns
    assert found.privacy.epsilon == float(labels.epsilon()) == 2.0
    memo = labels.memo(2.0)
    assert (memo.observed >= 0).all()
    assert np.sum(memo.answers == CLASSES) >= 60  # the first stage knows nothing yet
    assert np.sum(memo.answers < CLASSES) > 10  # the second asks about groups of classes
    each = [probabilities(p, r.x, r.y or (), columns) for p, r in zip(PROBLEMS, found.members)]
    assert found.probabilities(columns) == pytest.approx((each[0] + each[1]) / 2)
    assert np.mean(found.probabilities(columns).argmax(axis=1) == labels._label) > 0.5
    assert [len(stage) for stage in found.stages] == [2, 2]


@pytest.mark.slow
def test_each_model_has_a_folder_of_its_own(tmp_path):
    run_in_stages(PROBLEMS[0], made(), METHOD, steps=1, stages=2, out=tmp_path)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["stage-1-model-1", "stage-2-model-1"]
    assert all((folder / "result.json").exists() for folder in tmp_path.iterdir())


@pytest.mark.slow
def test_one_stage_is_an_ordinary_run_on_all_labels():
    table = made()
    found = run_in_stages(PROBLEMS[0], table, METHOD, steps=1, stages=1)
    assert found.privacy.epsilon == 2.0
    assert (table.labels.memo(2.0).observed >= 0).all()


def test_stages_need_memoised_labels_and_at_least_one_part():
    with pytest.raises(ValueError, match="forward correction"):
        run_in_stages(PROBLEMS[0], made(), replace(METHOD, labels=Open()), steps=1)
    with pytest.raises(ValueError, match="forward correction"):
        run_in_stages(PROBLEMS[0], made(), replace(METHOD, labels=Memoised(1.0, "debiased")), steps=1)
    with pytest.raises(ValueError, match="stages is 0"):
        run_in_stages(PROBLEMS[0], made(), METHOD, steps=1, stages=0)
