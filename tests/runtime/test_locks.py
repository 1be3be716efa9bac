"""What keeps a run from going wrong unnoticed, in every place: resuming, divergence, metrics, interrupts."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.papers.bambi.method import Bambi
from sottovoce.privacy.labels import Fresh, Memoised
from sottovoce.privacy.ledger import OWNER, BudgetExceeded
from sottovoce.problems.vertical import Vertical, logistic
from sottovoce.runtime import checkpoint
from sottovoce.runtime.array import ArrayPlace
from sottovoce.runtime.columns import ColumnsPlace
from sottovoce.runtime.threads import ThreadPlace

RNG = np.random.default_rng(0)
ROWS = list(RNG.normal(size=(2, 8, 2)).astype(np.float32))
RING = sv.networks.ring(2)
STEPS, EVERY = 4, 2


def square(x, r):
    return 0.5 * jnp.sum((x - r) ** 2)


def steeper(x, r):
    return 0.6 * jnp.sum((x - r) ** 2)


MINIMIZE = sv.Minimize(square, jnp.zeros(2))
SGD = sv.methods.DpSgd(rate=0.2, gradient=sv.Release(1.0, 0.5), sampling=sv.Full())
RUNAWAY = dataclasses.replace(MINIMIZE, x0=jnp.ones(2), public=lambda x: 1e8 * jnp.sum(x**4))

BLOCKS = [RNG.normal(size=(8, 2)).astype(np.float32) for _ in range(2)]
LABEL = np.arange(8) % 2


def embed(x, a):
    return a * x


def other_embed(x, a):
    return jnp.tanh(a * x)


def other_losses(scores):
    return 2 * logistic(scores)


VERTICAL = Vertical(embed, lambda y, e: e @ y, logistic, [jnp.ones(2)] * 2, [jnp.zeros((2, 1))] * 2)
BAMBI = Bambi(inner_steps=2, batch=4, rate_x=0.1, rate_y=0.3, labels=Memoised(1.0))


def variables(x, y=None):
    return {"all": jax.flatten_util.ravel_pytree((x, y))[0]}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A place, a run there, and others that must not pass for it."""

    place: type
    problem: Any
    method: Any
    data: Callable[[], Any]
    changed: tuple[Any, ...]
    runaway: tuple[Any, Any, str]
    options: dict[str, Any]

    def run(self, problem: Any = None, method: Any = None, **more: Any) -> sv.Result:
        options = {"steps": STEPS, "every": EVERY, "evaluate": variables, **self.options, **more}
        return sv.run(problem or self.problem, self.data(), method or self.method, **options)


def table() -> sv.Table:
    return sv.Table(sv.Columns(BLOCKS), sv.Labels(LABEL, 2, seed=0))


OTHER_LOSS = (dataclasses.replace(MINIMIZE, loss=steeper),)
DIVERGES = (RUNAWAY, SGD, r"\w+")
KINDS = {
    "array": Kind(ArrayPlace, MINIMIZE, SGD, lambda: ROWS, OTHER_LOSS, DIVERGES, {"network": RING}),
    "discrete": Kind(
        ThreadPlace, MINIMIZE, SGD, lambda: ROWS, OTHER_LOSS, DIVERGES, {"network": RING, "noise": "discrete"}
    ),
    "columns": Kind(
        ColumnsPlace,
        VERTICAL,
        BAMBI,
        table,
        (dataclasses.replace(VERTICAL, embed=other_embed), dataclasses.replace(VERTICAL, losses=other_losses)),
        (dataclasses.replace(VERTICAL, penalty=lambda x, y: 1e8 * jnp.sum(y**4)), BAMBI, r"party \d: (x|y)"),
        {},
    ),
}
SIMULATED = ("array", "columns")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(params=SIMULATED)
def simulated(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def spent(folder: Path, agent: int) -> list[tuple[int, int, int]]:
    """What an agent's own ledger says was drawn: first step, last step and attempt."""
    entries = sv.Ledger(folder / f"ledger-{agent}.jsonl").entries.values()
    return sorted((entry.attempt, entry.start, entry.stop) for entry in entries)


def stopping(place: type, at: int, patch: pytest.MonkeyPatch, after: bool = False) -> None:
    """Let the stretch from step `at` be interrupted, before it runs or after."""
    honest = place.advance

    def advance(self: Any, state: Any, first: int, count: int) -> Any:
        done = honest(self, state, first, count) if first != at or after else None
        if first == at:
            raise KeyboardInterrupt
        return done

    patch.setattr(place, "advance", advance)


def test_a_finished_run_is_not_taken_for_another_loss_or_embedding(kind, tmp_path):
    kind.run(out=tmp_path)
    for other in kind.changed:
        with pytest.raises(ValueError, match="belongs to another run: program was"):
            kind.run(other, out=tmp_path, resume=True)
    kind.run(out=tmp_path, resume=True)


def test_other_records_are_another_run(kind, tmp_path):
    kind.run(out=tmp_path)
    other = [np.array(part) for part in (BLOCKS if kind.place is ColumnsPlace else ROWS)]
    other[1][3, 1] += 1
    changed = sv.Table(sv.Columns(other), sv.Labels(LABEL, 2, seed=0)) if kind.place is ColumnsPlace else other
    with pytest.raises(ValueError, match=r"belongs to another run: (records|columns) was"):
        dataclasses.replace(kind, data=lambda: changed).run(out=tmp_path, resume=True)


def test_a_simulation_is_not_continued_as_deployed_nor_the_other_way_round(tmp_path):
    for one, other in (("array", "discrete"), ("discrete", "array")):
        KINDS[one].run(out=tmp_path / one)
        with pytest.raises(ValueError, match="belongs to another run"):
            KINDS[other].run(out=tmp_path / one, resume=True)


def test_a_run_that_diverges_names_the_step_and_the_variable(kind, tmp_path):
    problem, method, name = kind.runaway
    with pytest.raises(FloatingPointError, match=rf"{name}.* is no longer finite after step \d+.* of step \d+"):
        kind.run(problem, method, evaluate=None, steps=20, every=10, out=tmp_path)


def test_bad_metrics_are_found_before_anything_is_charged_or_made(kind, tmp_path):
    data = kind.data()
    fixed = dataclasses.replace(kind, data=lambda: data)
    for wrong, message in ((dict, "evaluate could not be called"), (lambda *given: 1.0, "named numbers")):
        with pytest.raises(ValueError, match=message):
            fixed.run(evaluate=wrong, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    if kind.place is ColumnsPlace:
        assert float(data.labels.epsilon()) == 0.0


def test_metrics_are_taken_before_the_first_step_too(kind):
    history = kind.run().history
    assert history["step"].tolist() == [0, 2, 4]
    start = variables(kind.problem.x0, getattr(kind.problem, "y0", None))["all"]
    np.testing.assert_array_equal(history["all"][0], start)


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("after", [False, True])
def test_an_interrupted_simulation_goes_on_to_the_same_bytes(simulated, at, after, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stopping(simulated.place, at, patch, after)
        with pytest.raises(KeyboardInterrupt):
            simulated.run(out=tmp_path)
    assert checkpoint.read_meta(tmp_path / "checkpoint.npz")["step"] == at
    resumed, whole = simulated.run(out=tmp_path, resume=True), simulated.run()
    np.testing.assert_array_equal(resumed.history["all"], whole.history["all"])
    for a, b in zip(jax.tree.leaves(resumed.agents), jax.tree.leaves(whole.agents), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_interrupt_while_a_checkpoint_is_written_loses_nothing(simulated, tmp_path, stopped_at_first_save):
    with stopped_at_first_save():
        simulated.run(out=tmp_path)
    resumed, whole = simulated.run(out=tmp_path, resume=True), simulated.run()
    np.testing.assert_array_equal(resumed.history["all"], whole.history["all"])


def test_a_run_that_stopped_before_its_first_state_starts_again(kind, tmp_path, monkeypatch):
    def begin(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kind.place, "begin", begin)
        with pytest.raises(KeyboardInterrupt):
            kind.run(out=tmp_path)
    assert kind.run(out=tmp_path, resume=True).history["step"].tolist() == [0, 2, 4]


def each_step(attempt: int, start: int, stop: int) -> list[tuple[int, int, int]]:
    return [(attempt, t, t + 1) for t in range(start, stop)]


@pytest.mark.parametrize(
    ("at", "after", "wanted"),
    [
        (0, False, each_step(0, 0, 1) + each_step(1, 0, 4)),  # `init` was charged with step 0
        (0, True, each_step(0, 0, 2) + each_step(1, 0, 4)),
        (2, False, each_step(0, 0, 2) + each_step(1, 2, 4)),
        (2, True, each_step(0, 0, 4) + each_step(1, 2, 4)),
    ],
)
def test_what_is_drawn_again_as_deployed_is_charged_again(at, after, wanted, tmp_path, monkeypatch):
    kind = KINDS["discrete"]
    with monkeypatch.context() as patch:
        stopping(kind.place, at, patch, after)
        with pytest.raises(KeyboardInterrupt):
            kind.run(out=tmp_path)
    stored = checkpoint.read_meta(tmp_path / "checkpoint.npz")["history"]["all"]
    result = kind.run(out=tmp_path, resume=True)
    np.testing.assert_allclose(result.history["all"][: len(stored)], stored)  # what was stored is not drawn again
    assert [spent(tmp_path, agent) for agent in range(2)] == [wanted, wanted]
    kind.run(out=tmp_path, resume=True)  # a finished run is read, not drawn
    assert spent(tmp_path, 0) == wanted


def test_a_deployed_run_that_starts_again_is_held_to_its_budget(tmp_path, monkeypatch):
    """Killed before its first checkpoint, it has nothing to go on from: all of it is a second attempt."""
    kind = KINDS["discrete"]
    once = sv.account(SGD, sv.Population([8, 8]), steps=STEPS, network=RING).epsilon
    budget = sv.Budget(1.2 * once, 1e-5)
    with monkeypatch.context() as patch:
        stopping(kind.place, 2, patch)
        patch.setattr(checkpoint, "save", lambda *given: None)
        with pytest.raises(KeyboardInterrupt):
            kind.run(out=tmp_path, budget=budget)
    before = [spent(tmp_path, agent) for agent in range(2)]
    with pytest.raises(BudgetExceeded, match="Nothing was released"):
        kind.run(out=tmp_path, budget=budget, resume=True)
    assert [spent(tmp_path, agent) for agent in range(2)] == before
    kind.run(out=tmp_path, budget=sv.Budget(2 * once, 1e-5), resume=True)
    ledger = sv.Ledger(tmp_path / "ledger-0.jsonl")
    assert once < float(ledger.epsilon(OWNER, 1e-5, "replace-one")) < 2 * once


def test_a_single_pass_that_is_drawn_again_is_paid_for_again(tmp_path, monkeypatch):
    """A record is in one batch of a pass: if that batch is drawn twice, the record is in two."""
    kind = dataclasses.replace(KINDS["discrete"], method=dataclasses.replace(SGD, sampling=sv.OnePass(2)))
    with monkeypatch.context() as patch:
        stopping(kind.place, 2, patch, after=True)
        with pytest.raises(KeyboardInterrupt):
            kind.run(out=tmp_path)
    once = kind.run().privacy
    with pytest.raises(BudgetExceeded):
        kind.run(out=tmp_path, resume=True, budget=sv.Budget(1.1 * once.epsilon, 1e-5))
    kind.run(out=tmp_path, resume=True)
    twice = float(sv.Ledger(tmp_path / "ledger-0.jsonl").epsilon(OWNER, 1e-5, once.adjacency))
    assert twice > 1.2 * once.epsilon


@pytest.mark.slow
def test_a_resumed_table_pays_once_for_the_noise_that_it_draws_again(tmp_path, monkeypatch):
    """The store knows the run by a keyed name of its noise; other noise in the same folder is paid for."""

    def kind(scale, path=tmp_path / "labels.npz"):
        fresh = dataclasses.replace(BAMBI, labels=Fresh(scale))
        labels = sv.Labels(LABEL, 2, seed=0, path=path)
        return dataclasses.replace(
            KINDS["columns"], method=fresh, data=lambda: sv.Table(sv.Columns(BLOCKS), labels)
        ), labels

    first, labels = kind(0.1)
    with monkeypatch.context() as patch:
        stopping(first.place, 2, patch)
        with pytest.raises(KeyboardInterrupt):
            first.run(out=tmp_path / "run")
    once = float(labels.epsilon())
    del first, labels
    again, labels = kind(0.1)  # as another process reads it
    assert again.run(out=tmp_path / "run", resume=True).privacy.epsilon == pytest.approx(once)
    (tmp_path / "run" / "checkpoint.npz").unlink()
    (tmp_path / "run" / "result.json").unlink()
    del again, labels
    other, _ = kind(0.2)
    assert other.run(out=tmp_path / "run", resume=True).privacy.epsilon == pytest.approx(1.5 * once)
    assert other.run(out=tmp_path / "second").privacy.epsilon == pytest.approx(2 * once)  # another folder, paid again
