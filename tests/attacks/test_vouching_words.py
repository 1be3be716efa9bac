"""Words that vouch: `covered`, cards and statements say no more than what somebody checks."""

import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.methods import Method
from sottovoce.privacy.labels import Memoised
from sottovoce.privacy.sampling import Sampling
from sottovoce.problems.tasks import Shape, get
from sottovoce.problems.tasks.vertical import hyper_parameters, judged_on
from sottovoce.reports.words import protected
from sottovoce.runtime.run import DECLARED, EVALUATED

ROWS = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
MEAN = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(2), predict=lambda x, rows: rows @ x)
MIN_MAX = sv.MinMax(
    lambda x, y, r: jnp.sum(x * r) - 0.5 * jnp.sum(y**2) + jnp.sum(x * y), x0=jnp.zeros(2), y0=jnp.zeros(2)
)


class _Kept(NamedTuple):
    x: Any
    note: Any


@dataclass(frozen=True)
class _KeepsMean(Method):
    """Keeps what `note` makes of the exact mean beside a released x."""

    gradient: sv.Release
    sampling: Sampling
    kind: str = "mean"

    def init(self, problem, agent):
        return _Kept(problem.x0, jax.tree.map(lambda x: self._note(x, x), problem.x0))

    def step(self, problem, state, agent):
        batch = agent.sample(self.sampling)
        step = agent.release(self.gradient, problem.loss, at=state.x, batch=batch)
        raw = agent.mean(self.gradient, problem.loss, at=state.x, batch=batch)
        return _Kept(jax.tree.map(lambda x, g: x - 0.1 * g, state.x, step), self._note(raw, step))

    def _note(self, raw, step):
        kinds = {"mean": lambda: raw, "norm": lambda: jnp.sum(raw**2), "sign": lambda: raw[0] > 0, "none": lambda: step}
        return kinds[self.kind]()


def _printed(kind):
    if kind == "DpMixSgd":
        clipped = sv.Release(10.0, 500.0)
        method = sv.methods.DpMixSgd(1e-6, 1e-6, sv.Full(), clipped, clipped, beta_x=0.1, beta_y=0.1, design="printed")
        return MIN_MAX, method
    return MEAN, _KeepsMean(sv.Release(5.0, 100.0), sv.Full(), kind)


@pytest.mark.parametrize("kind", ["DpMixSgd", "mean", "norm", "sign"])
def test_a_result_with_a_private_leaf_is_not_called_covered(kind, tmp_path):
    """The leaf is no variable of the problem: x and y are released, and the leaf holds an exact mean of the rows."""
    problem, method = _printed(kind)
    result = sv.run(problem, [ROWS], method, steps=1, out=tmp_path / "run")
    assert result.privacy.private
    assert not result.covered
    assert not result.releasable
    assert "for its messages and not for what it ends with" in result.privacy.statement()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["covered"] is False
    for words in (*result.privacy.words(), *protected(result.privacy)):
        assert not re.search(r"sees (.*, and )?the result", words)


def test_what_has_no_private_leaf_is_covered_as_before():
    result = sv.run(MEAN, [ROWS], _printed("none")[1], steps=1)
    assert result.covered
    assert any("sees the result" in words for words in result.privacy.words())


TABLE = sv.data.table(
    {"age": list(range(20, 80)) * 2, "y": [int(age > 50) for age in range(20, 80)] * 2},
    label="y",
    columns={"age": {"range": [0, 120]}, "y": {"categories": [0, 1]}},
)


def _card(folder, **declared):
    """Return the card of a model that may leave, and what was measured on held-out private rows."""
    train, test = TABLE.hold_out(0.2)
    task = get("logistic")(Shape((1,), classes=2, agents=1))
    method = sv.methods.DpSgd(0.5, sv.Release(1.0, 1.0), sv.Full())
    result = sv.run(
        task.problem, train.parts(), method, steps=1, epsilon=1.0, noise="discrete",
        evaluate=task.metrics(test.records), **declared,
    )  # fmt: skip
    sv.save(result, folder / "m.sv", table=train)
    return (folder / "m.md").read_text(), result


def test_a_card_that_may_leave_has_no_figure_of_rows_that_nobody_declared_public(tmp_path):
    card, result = _card(tmp_path)
    assert result.releasable
    assert "may be handed out" in card
    assert not re.search(r"accuracy|auroc|loss:", card)
    assert "Left out" in card
    assert EVALUATED in result.privacy.caveats
    stored = json.loads((tmp_path / "m.statement.json").read_text())
    assert "accuracy" not in json.dumps(stored)


def test_a_declaration_travels_with_the_figures(tmp_path):
    card, result = _card(tmp_path, public_test=True)
    assert re.search(r"- accuracy: \d", card)
    assert "declared public" in card
    assert DECLARED in result.privacy.caveats
    assert EVALUATED not in result.privacy.caveats
    assert json.loads((result.save(tmp_path) / "result.json").read_text())["public_test"] is True


def test_a_run_that_goes_on_does_not_change_the_declaration(tmp_path):
    """Its history has figures of both processes."""
    metrics = {"evaluate": lambda x: {"gap": jnp.sum(x)}}
    method = sv.methods.DpSgd(0.5, sv.Release(1.0, 1.0), sv.Full())
    sv.run(MEAN, [ROWS], method, steps=1, out=tmp_path / "run", **metrics)
    with pytest.raises(ValueError, match="public_test was False and is True"):
        sv.run(MEAN, [ROWS], method, steps=1, out=tmp_path / "run", resume=True, public_test=True, **metrics)


def _columns(evaluate=None):
    rng = np.random.default_rng(0)
    blocks, y = [rng.normal(size=(100, 2)).astype(np.float32) for _ in range(2)], rng.integers(0, 2, 100)
    problem = hyper_parameters([2, 2])
    method = sv.methods.Bambi(inner_steps=1, batch=50, rate_x=0.1, rate_y=0.1, labels=Memoised(0.1))
    table = sv.Table(sv.Columns(blocks), sv.Labels(y, classes=2))
    read = judged_on(problem, blocks, y) if evaluate else None
    return sv.run(problem, table, method, steps=1, evaluate=read)


def test_no_statement_asserts_what_evaluate_reads_of_a_table(tmp_path):
    """It may read the labels of the run, as here: the statement names its figures, and the card leaves them out."""
    result = _columns(evaluate=True)
    assert result.releasable
    assert EVALUATED in result.privacy.caveats
    assert not any("no label of the run is read" in words for words in result.privacy.caveats)
    sv.save(result, tmp_path / "m.sv", features=[np.zeros((1, 2))] * 2)
    card = (tmp_path / "m.md").read_text()
    assert not re.search(r"^- (accuracy|loss):", card, re.MULTILINE)
    assert "As far as labels go" in card
    assert not any("evaluate" in words for words in _columns().privacy.caveats)


def test_a_label_s_card_does_not_hand_out_features(tmp_path):
    """What nothing protects is said where the card says that the model may leave."""
    result = _columns()
    sv.save(result, tmp_path / "m.sv", features=[np.zeros((1, 2))] * 2)
    assert "Nothing protects the features" in (tmp_path / "m.md").read_text().splitlines()[2]


def test_a_model_file_tells_of_no_table_that_its_statement_does_not(tmp_path):
    """Ranges that were read off or bought from another table's rows go into the file: they are named, or refused."""
    _, result = _card(tmp_path)
    rows = {"age": [20.0, 33.0, 47.0] * 30, "y": [0, 1, 1] * 30}
    read = {"columns": {"age": {"range": "public"}, "y": {"categories": [0, 1]}}, "label": "y"}
    sv.save(result, tmp_path / "m.sv", table=sv.data.table(rows, **read))
    assert "read off the rows and declared public: range of age" in (tmp_path / "m.md").read_text()
    assert any("read off the rows" in words for words in sv.load(tmp_path / "m.sv").privacy.caveats)
    bought = {**read, "columns": {**read["columns"], "age": {"range": "private"}}}
    table = sv.data.table(rows, private=sv.NoisyCounts(epsilon=1.0, seed=0), **bought)
    with pytest.raises(ValueError, match="bought with noisy counts, which this statement does not charge"):
        sv.save(result, tmp_path / "n.sv", table=table)
