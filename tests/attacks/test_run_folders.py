"""Folders of runs: what they confirm, who may write them, which run goes on, and what a diverging run leaves."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.privacy.gdp import gdp_epsilon
from sottovoce.privacy.labels import Labels, Memoised
from sottovoce.problems.vertical import cross_entropy
from sottovoce.reports import comparison, write_report
from sottovoce.runtime import checkpoint, loop
from sottovoce.runtime.run_state import keep_for_one_run

RNG = np.random.default_rng(0)
DATA = RNG.normal(size=(50, 3)).astype(np.float32)
PROBLEM = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), x0=jnp.zeros(3))
SGD = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.1), sampling=sv.Full())
BLOCKS = [RNG.normal(size=(60, 2)).astype(np.float32) for _ in range(2)]
LABEL = (BLOCKS[0][:, 0] + BLOCKS[1][:, 0] > 0).astype(int)
BAMBI = sv.methods.Bambi(inner_steps=1, batch=20, rate_x=0.1, rate_y=1.0, labels=Memoised(2.0))


def test_nothing_that_is_stored_confirms_a_guessed_record(tmp_path):
    """Attack a20: the run's name was a digest of its records, so who knew all but one record could test candidates."""
    kept = {}
    for name in ("victim", "guess"):
        sv.run(PROBLEM, [DATA], SGD, steps=1, seed=123, out=tmp_path / name)
        entry = json.loads((tmp_path / name / "ledger.jsonl").read_text().splitlines()[0])
        meta = checkpoint.read_meta(tmp_path / name / "checkpoint.npz")
        kept[name] = {entry["run"], meta["identity"]["records"]}
    assert not kept["victim"] & kept["guess"]  # the right guess looks like a wrong one
    texts = [file.read_bytes() for file in (tmp_path / "victim").iterdir()]
    for digest in kept["guess"]:
        assert not any(digest.encode() in text for text in texts)


def test_two_runs_do_not_share_a_folder(tmp_path):
    """Attack b8: two processes in one folder broke the ledger's chain, or mixed a model with another's statement."""
    with (
        keep_for_one_run(tmp_path / "run"),
        pytest.raises(TimeoutError, match=r"run\.json is in use by another process"),
    ):
        sv.run(PROBLEM, [DATA], SGD, steps=2, out=tmp_path / "run")
    sv.run(PROBLEM, [DATA], SGD, steps=2, out=tmp_path / "run")
    with pytest.raises(ValueError, match="holds a run already"):
        sv.run(PROBLEM, [DATA], SGD, steps=2, out=tmp_path / "run", seed=1)


def test_a_run_that_was_killed_before_its_first_checkpoint_is_not_run_over(tmp_path):
    sv.run(PROBLEM, [DATA], SGD, steps=2, every=1, out=tmp_path)
    for name in ("checkpoint.npz", "model.npz", "result.json"):
        (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=r"holds a run already.*resume=True"):
        sv.run(PROBLEM, [DATA], SGD, steps=2, every=1, out=tmp_path)
    sv.run(PROBLEM, [DATA], SGD, steps=2, every=1, out=tmp_path, resume=True)
    assert len(sv.Ledger(tmp_path / "ledger.jsonl").entries) == 2  # nothing is charged twice


@pytest.mark.slow
def test_a_resumed_run_charges_all_of_itself_to_another_ledger(tmp_path, stopped_at_first_save, monkeypatch):
    """Attack a21: 2.29 of 8.72, and 0 for a finished run whose model was handed out again."""
    monkeypatch.setattr(loop, "_SAVE_SECONDS", -1.0)
    given = {"steps": 20, "every": 2, "out": tmp_path / "run"}
    with stopped_at_first_save():
        sv.run(PROBLEM, [DATA], SGD, **given)
    true = float(gdp_epsilon(np.sqrt(20) * 2 / 50 / 0.1, 1e-5))
    for name in ("resumed", "finished"):
        book = sv.Ledger(tmp_path / f"{name}.jsonl")
        result = sv.run(PROBLEM, [DATA], SGD, **given, resume=True, ledger=book)
        assert float(book.epsilon("0", 1e-5, "replace-one")) >= true * (1 - 1e-9)
    budget = sv.Budget(1.1 * result.privacy.epsilon, 1e-5)
    with pytest.raises(sv.privacy.BudgetExceeded):
        sv.run(PROBLEM, [DATA], SGD, steps=20, seed=9, ledger=book, budget=budget)


def vertical(scale=1.0, penalty=None):
    return sv.Vertical(
        lambda x, a: jnp.tanh(scale * (a @ x)),
        lambda y, e: e @ y,
        cross_entropy,
        [jnp.eye(2)] * 2,
        [jnp.zeros((2, 2))] * 2,
        penalty=penalty,
    )


def table(seed=0):
    return sv.Table(sv.Columns(BLOCKS), Labels(LABEL, classes=2, seed=seed))


@pytest.mark.slow
def test_a_table_is_not_resumed_with_another_embedding(tmp_path, stopped_at_first_save, monkeypatch):
    """Attack c2: the mixture of two runs was accepted, and equalled neither."""
    monkeypatch.setattr(loop, "_SAVE_SECONDS", -1.0)
    given = {"steps": 6, "every": 2, "out": tmp_path}
    with stopped_at_first_save():
        sv.run(vertical(1.0), table(), BAMBI, **given)
    with pytest.raises(ValueError, match=r"checkpoint\.npz belongs to another run: program was"):
        sv.run(vertical(-3.0), table(), BAMBI, **given, resume=True)


@pytest.mark.slow
def test_a_table_that_diverges_gives_no_model():
    """Attack c3: NaN came back as a result with `releasable=True`."""
    steep = dataclasses.replace(BAMBI, rate_y=1e9, inner_steps=3)
    with pytest.raises(FloatingPointError, match="no longer finite after step"):
        sv.run(vertical(penalty=lambda x, y: jnp.sum(y**4)), table(), steep, steps=6)


def test_a_report_shows_names_as_text(tmp_path):
    """Attack b6: a title or a variant's name is no HTML."""
    result = sv.run(PROBLEM, [DATA], SGD, steps=1, out=tmp_path / "a" / "0")
    assert result.privacy.private
    name = "b<img src=x onerror=alert(1)>"
    row = {"name": name, "kind": "together", "metric": None, "runs": ["a/0"]}
    comparison.save_plan(tmp_path, "t<script>alert(1)</script>", "title = 't<script>alert(1)</script>'", [], [row])
    page = write_report(comparison.load(tmp_path), tmp_path / "report.html").read_text()
    assert "<script>alert" not in page
    assert "<img src=x" not in page
