"""The label gate: worked values, exact likelihood ratios, and that a label is drawn once."""

import math
import random
from decimal import Decimal, getcontext
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sottovoce.audit import bounds
from sottovoce.privacy import sound
from sottovoce.privacy.accountant import Mechanism
from sottovoce.privacy.label_store import Labels
from sottovoce.privacy.labels import Fresh, LabelGate, LaplaceGate, Memoised, Open, Printed
from sottovoce.privacy.ledger import Budget, BudgetExceeded
from sottovoce.privacy.response import Response, groups

getcontext().prec = 60


def _labels(n: int = 300, classes: int = 3, seed: int | None = 0, **options: object) -> Labels:
    return Labels(np.arange(n) % classes, classes, seed=seed, **options)  # type: ignore[arg-type]


# The mechanism.


@given(st.floats(0.01, 30.0), st.integers(1, 50))
def test_no_two_labels_are_told_apart_by_more_than_e_to_the_epsilon(epsilon: float, k: int) -> None:
    response = Response(epsilon, k)
    chances = {response.truth} | ({response.other} if k > 1 else set())
    worst = max(chances) / min(chances) if k > 1 else Fraction(1)
    assert Decimal(worst.numerator) / Decimal(worst.denominator) <= Decimal(epsilon).exp()
    assert response.truth + (k - 1) * response.other == 1


@pytest.mark.parametrize("epsilon", [5e-324, 1e-17, 1e-15])
@pytest.mark.parametrize("k", [2, 3, 10])
def test_a_lie_is_never_likelier_than_the_truth(epsilon: float, k: int) -> None:
    """The probability of the truth is rounded down: where epsilon is smaller than that, the answer is uniform."""
    response, sides = Response(epsilon, k), []

    class Coins(random.Random):
        def randrange(self, *bounds: int) -> int:  # type: ignore[override]
            sides.append(bounds[0])
            return 0

    assert response.truth >= response.other
    assert response.truth / response.other - 1 <= Fraction(epsilon)
    response.answer(0, Coins())
    assert sides[0] % response.truth.denominator == 0  # so that the coin has exactly this probability


def test_the_ratio_is_reached_so_no_privacy_is_given_away() -> None:
    response = Response(1.0, 10)
    assert math.log(response.truth / response.other) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("truth", [0, 2])
def test_answers_have_the_stated_chances_and_the_test_would_notice_others(truth: int) -> None:
    response, coins, trials = Response(1.0, 4), random.Random(1), 20_000
    counts = np.bincount([response.answer(truth, coins) for _ in range(trials)], minlength=4)

    def p_value(epsilon: float) -> float:
        law = Response(epsilon, 4)
        expected = np.full(4, float(law.other))
        expected[truth] = float(law.truth)
        return stats.chisquare(counts, trials * expected / expected.sum()).pvalue

    assert p_value(1.0) > 1e-4
    assert p_value(2 / 3) < 1e-6
    assert p_value(3 / 2) < 1e-6


def test_worked_values() -> None:
    assert Response(1.0, 10).noise == pytest.approx(0.85336742591, abs=1e-11)
    labels = _labels(classes=10)
    labels.memo(1.0)
    assert float(labels.epsilon()) == 1.0
    for _ in range(4):
        labels.redraw(1.0)
    assert float(labels.epsilon()) == 5.0
    mechanism, times = Fresh(1.0).per_use(classes=2, copies=2)
    labels = _labels(classes=2)
    labels.charge({mechanism: np.full(300, 20 * times)})
    assert float(labels.epsilon()) == pytest.approx(40.0)
    assert float(labels.epsilon(1e-5)) == pytest.approx(33.2471, abs=2e-3)
    assert float(labels.epsilon()) == pytest.approx(float(sound.label_fresh(1.0, uses=20, Q=1)))
    assert Fresh(1.0).published() == 1.0


# Drawn once, kept with the data.


@pytest.mark.parametrize("seed", [None, 0])
def test_the_memo_is_the_same_for_every_run_and_process(tmp_path: Path, seed: int | None) -> None:
    path = tmp_path / "labels.npz"
    first = Labels(np.arange(300) % 3, 3, path=path, seed=seed)
    seen = first.memo(1.0).observed
    again = Labels(np.arange(300) % 3, 3, path=path, seed=seed)
    assert (again.memo(1.0).observed == seen).all()
    assert (again.memo(1.0).likelihood == first.memo(1.0).likelihood).all()
    assert float(again.epsilon()) == 1.0
    again.redraw(1.0)
    assert (again.memo(1.0).observed != seen).any()
    assert float(Labels(np.arange(300) % 3, 3, path=path, seed=seed).epsilon()) == 2.0


def test_the_file_is_bound_to_its_rows_and_holds_no_true_label(tmp_path: Path) -> None:
    path = tmp_path / "labels.npz"
    label = np.arange(300) % 3
    Labels(label, 3, path=path, ids=np.arange(300), seed=0).memo(1.0)
    with np.load(path) as file:
        assert not any(np.array_equal(file[name], label) for name in file.files)
    with pytest.raises(ValueError, match="other rows"):
        Labels(label, 3, path=path, ids=np.arange(300)[::-1])


def test_a_second_epsilon_is_a_second_draw() -> None:
    labels = _labels()
    labels.memo(1.0)
    labels.memo(2.0)
    assert float(labels.epsilon()) == 3.0


def test_a_budget_stops_a_draw_before_it_is_made(tmp_path: Path) -> None:
    kept = {"path": tmp_path / "labels.npz", "budget": Budget(1.5, 0.0)}
    labels = _labels(**kept)
    seen = labels.memo(1.0).observed
    for refused in (lambda: labels.redraw(1.0), lambda: labels.memo(0.6), lambda: labels.accuracy(seen, 0.6)):
        with pytest.raises(BudgetExceeded, match=r"1 is spent already.*Nothing was released"):
            refused()
    assert float(labels.epsilon()) == 1.0
    again = _labels(**kept)  # another process: what was drawn is there, and so is what it cost
    np.testing.assert_array_equal(again.memo(1.0).observed, seen)
    with pytest.raises(BudgetExceeded):
        again.memo(0.6)
    assert _labels(**kept).memo(0.5).observed.min() >= 0


def test_a_second_writer_is_noticed(tmp_path: Path) -> None:
    one, two = (_labels(path=tmp_path / "labels.npz") for _ in range(2))
    one.memo(1.0)
    with pytest.raises(ValueError, match="written to by another process"):
        two.memo(1.0)
    one.redraw(1.0)


def test_an_interrupted_redraw_loses_nothing() -> None:
    labels = _labels()
    seen = labels.memo(1.0).observed.copy()
    with pytest.raises(ValueError, match="rows run from 5 to 1000"):
        labels.redraw(1.0, rows=[5, 1000])
    np.testing.assert_array_equal(labels.memo(1.0).observed, seen)


def test_both_corrections_read_one_memo() -> None:
    labels = _labels()
    Memoised(1.0, "forward").vectors(labels)
    Memoised(1.0, "debiased").vectors(labels)
    assert float(labels.epsilon()) == 1.0


def test_disjoint_rows_cost_the_larger_and_shared_rows_the_sum() -> None:
    labels = _labels(n=10)
    labels.memo(1.0, rows=np.arange(5))
    labels.memo(0.5, rows=np.arange(5, 10))
    assert float(labels.epsilon()) == 1.0
    labels.charge({Mechanism(pure=0.25): np.arange(10) >= 4})
    assert float(labels.epsilon()) == 1.25


def test_a_label_does_not_move_the_coins_of_others() -> None:
    label = np.arange(300) % 3
    other = label.copy()
    other[7] = (label[7] + 1) % 3
    one, two = Labels(label, 3, seed=5).memo(1.0).observed, Labels(other, 3, seed=5).memo(1.0).observed
    assert (np.delete(one, 7) == np.delete(two, 7)).all()


def test_without_a_seed_the_coins_are_secret() -> None:
    assert (_labels(seed=None).memo(1.0).observed != _labels(seed=None).memo(1.0).observed).any()
    assert not _labels(seed=None).simulated


# A prior.


def _information(likelihood: np.ndarray, prior: np.ndarray) -> float:
    """Mutual information of class and answer from the table P(answer | class), in nats."""
    joint = likelihood * prior
    said = joint.sum(axis=1, keepdims=True)
    return float(np.sum(joint * np.log(likelihood / said)))


@given(st.integers(0, 10_000), st.floats(0.1, 6.0))
def test_groups_tell_at_least_as_much_as_single_classes_and_as_is_said(seed: int, epsilon: float) -> None:
    rng = np.random.default_rng(seed)
    prior = rng.dirichlet(np.full(5, 0.3), size=3) * 0.999 + 0.0002
    number, count = groups(prior, epsilon, rng)
    for chances, group, k in zip(prior, number, count):
        response = Response(epsilon, int(k))
        honest = group == np.arange(k)[:, None]
        table = np.where(honest, float(response.truth), float(response.other))
        assert table.sum(axis=0) == pytest.approx(1.0)
        weight = np.bincount(group, chances, minlength=k)
        assert _information(table, chances) == pytest.approx(float(response.information(weight)), abs=1e-9)
        assert _information(table, chances) >= float(Response(epsilon, 5).information(chances)) - 1e-9


def test_equal_classes_are_grouped_at_random_and_in_threes_at_epsilon_one() -> None:
    number, count = groups(np.full((2000, 10), 0.1), 1.0, np.random.default_rng(0))
    assert set(count) == {3}
    together = np.mean(number[:, :1] == number[:, 1:], axis=0)
    assert together == pytest.approx(np.full(9, (4 * 3 + 3 * 2 + 3 * 2) / 90), abs=0.05)


def test_an_attacker_on_groups_measures_epsilon_and_no_more() -> None:
    def scores(label: int) -> np.ndarray:
        memo = Labels(np.full(12_000, label), 10, seed=label).memo(1.0, prior=np.full((12_000, 10), 0.1))
        seen = np.log(memo.likelihood[:, :2].astype(np.float64))
        return np.round(seen[:, 0] - seen[:, 1], 6)

    one, other = scores(0), scores(1)
    event = bounds.choose(one[:2000], other[:2000], 0.0, 0.95)
    lower = bounds.measure(event, one[2000:], other[2000:], 0.0, 0.95)
    assert 0.85 < lower <= 1.0


def test_a_large_epsilon_asks_for_the_class_itself() -> None:
    memo = Labels(np.arange(40) % 4, 4, seed=0).memo(12.0, prior=np.full((40, 4), 0.25))
    assert (memo.observed == np.arange(40) % 4).all()
    assert memo.debiased() == pytest.approx(np.eye(4)[np.arange(40) % 4], abs=1e-4)


def test_two_stages_cost_one_epsilon_and_likelihoods_are_those_of_the_draw() -> None:
    labels, half, rest = _labels(n=4000, classes=4), np.arange(2000), np.arange(2000, 4000)
    labels.memo(1.0, rows=half)
    memo = labels.memo(1.0, rows=rest, prior=np.tile([0.7, 0.2, 0.06, 0.04], (2000, 1)))
    assert float(labels.epsilon()) == 1.0
    assert set(memo.answers[half]) == {4}
    assert set(memo.answers[rest]) == {2}
    response, seen = Response(1.0, 2), memo.likelihood[rest]
    assert (seen[:, 1:] == seen[:, 1:2]).all()  # the likeliest class against all others
    assert np.unique(seen) == pytest.approx([float(response.other), float(response.truth)])
    own = seen[np.arange(2000), np.arange(2000) % 4]
    assert np.mean(own == own.max()) == pytest.approx(float(response.truth), abs=0.05)
    assert (labels.memo(1.0).observed == memo.observed).all()
    with pytest.raises(ValueError, match="forward correction"):
        memo.debiased()


# Weights.


def test_all_gates_give_the_plain_loss_for_known_labels() -> None:
    losses = jnp.asarray([[0.3, 2.0, 0.7]])
    weights = jnp.asarray([[0.0, 1.0, 0.0]])
    for gate in (Open(), Memoised(1.0), Memoised(1.0, "debiased"), Fresh(1.0)):
        assert float(gate.loss(losses, weights)[0]) == pytest.approx(2.0)


def test_forward_loss_is_the_mixture_likelihood() -> None:
    scores, likelihood = jnp.asarray([0.2, -1.0, 0.5]), jnp.asarray([0.5, 0.25, 0.25])
    expected = -math.log(float(jax.nn.softmax(scores) @ likelihood))
    assert float(Memoised(1.0).loss(-jax.nn.log_softmax(scores), likelihood)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("shared", [False, True])
def test_fresh_weights_are_unbiased_with_the_stated_noise(classes: int, shared: bool) -> None:
    vectors = jnp.tile(jnp.eye(classes)[1], (6000, 1))
    drawn = np.asarray(Fresh(0.5, shared).weights(vectors, (2,), jax.random.key(0)))
    assert drawn.shape == (2, 6000, classes)
    assert drawn.mean(axis=(0, 1)) == pytest.approx(np.eye(classes)[1], abs=0.05)
    assert (drawn - np.asarray(vectors)).std(axis=(0, 1)) == pytest.approx(0.5 * math.sqrt(2), rel=0.05)
    assert (drawn[0] == drawn[1]).all() == shared


def test_what_a_use_costs() -> None:
    assert Fresh(2.0).per_use(2, copies=3) == (Mechanism(laplace=(0.25,)), 3)
    assert Fresh(2.0).per_use(10, copies=3) == (Mechanism(laplace=(0.25,)), 6)
    assert Fresh(2.0, shared=True).per_use(10, copies=3)[1] == 2
    assert Printed(2.0).per_use(2, copies=3) == Fresh(2.0).per_use(2, copies=3)
    assert Printed(2.0).per_use(3, copies=1)[0].pure == math.inf
    assert Memoised(1.0).per_use(3, copies=4) is None


def test_gates_are_abstract_or_final() -> None:
    """No gate inherits a charge that was meant for another gate's noise."""
    for base in (LabelGate, LaplaceGate):
        with pytest.raises(TypeError, match="abstract"):
            base(1.0)  # type: ignore[abstract, call-arg]
    for gate in (Open, Memoised, Fresh, Printed):
        assert {"weights", "per_use"} <= vars(gate).keys()
        assert gate.__subclasses__() == []


def test_printed_multi_class_noise_has_one_direction() -> None:
    vectors = jnp.tile(jnp.eye(4)[2], (50, 1))
    noise = np.asarray(Printed(1.0).weights(vectors, (), jax.random.key(0)) - vectors)
    assert np.ptp(noise, axis=1) == pytest.approx(0.0, abs=1e-5)
    assert np.abs(noise).max() > 0.5


def test_accuracy_on_true_labels_is_noised_and_charged() -> None:
    labels = _labels(n=3000)
    figure = labels.accuracy(np.arange(3000) % 3, epsilon=0.5)
    assert figure != 1.0
    assert figure == pytest.approx(1.0, abs=0.02)
    assert float(labels.epsilon()) == 0.5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Labels([0, 3], 3), "recode"),
        (lambda: Labels([0.5, 1.0], 2), "whole numbers"),
        (lambda: Labels([0, 0], 1), "at least 2"),
        (lambda: Memoised(0.0), "positive"),
        (lambda: Memoised(1.0, "none"), "forward"),  # type: ignore[arg-type]
        (lambda: Fresh(-1.0), "positive"),
        (lambda: _labels().memo(1.0, prior=np.ones((2, 3))), "prior has shape"),
        (lambda: _labels().charge({Mechanism(): np.ones(3)}), "one number"),
        (lambda: _labels().accuracy(np.zeros(300), epsilon=0.0), "public test"),
    ],
)
def test_errors_say_what_to_do(wrong: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()  # type: ignore[operator]


# Charged, then drawn: never the other way round.


def _killed(*_: object) -> int:
    raise SystemExit("killed")


@pytest.mark.parametrize("seed", [0, None])
def test_a_kill_between_the_charge_and_the_draw_leaves_labels_that_are_paid_for(seed, tmp_path, monkeypatch):
    """The draw is paid for on the disk, so it is made once more, and charged no more; with coins of the system too."""
    given = {"classes": 2, "path": tmp_path / "labels", "seed": seed, "budget": Budget(1.0, 0.0)}
    store = Labels([0, 1, 1, 0], **given)
    with monkeypatch.context() as patch:
        patch.setattr(Response, "answer", _killed)
        with pytest.raises(SystemExit):
            store.memo(1.0, [0, 1, 2])
    again = Labels([0, 1, 1, 0], **given)
    assert float(store.epsilon()) == float(again.epsilon()) == 1.0
    assert (again.memo(1.0).observed >= 0).all()
    assert float(again.epsilon()) == 1.0


def test_a_kill_while_the_charge_is_written_leaves_nothing_drawn(tmp_path, monkeypatch):
    store = Labels([0, 1], classes=2, path=tmp_path / "labels", seed=0)
    drawn = []
    monkeypatch.setattr(Response, "answer", lambda *_: drawn.append(1) or 0)
    with monkeypatch.context() as patch:
        patch.setattr("sottovoce.privacy.label_file.write", _killed)
        with pytest.raises(SystemExit):
            store.memo(1.0)
    assert not drawn
    assert float(store.epsilon()) == 0.0


def test_two_draws_that_were_paid_for_together_share_no_coins():
    one, other = np.arange(200), np.arange(200, 400)
    store = Labels(np.zeros(400, int), classes=2, seed=0)
    store.pay(1.0, one)
    store.pay(1.0, other)
    store.memo(1.0, one)
    seen = store.memo(1.0, other).observed
    assert 0 < np.mean(seen[one] != seen[other]) < 1


@pytest.mark.parametrize("gate", [Memoised(1.0), Fresh(1.0), Printed(1.0), Open()], ids=lambda gate: gate.kind)
def test_a_gate_charges_before_it_draws(gate, monkeypatch):
    """What a run draws finds itself paid for: nothing is charged by drawing, and the name of the noise comes first."""
    store, order = Labels([0, 1, 1], classes=2, seed=0), []
    monkeypatch.setattr(store, "_coins", lambda *_: order.append("draw") or random.Random(0))
    gate.charge(store, np.arange(3), lambda: [(1, np.ones(3, int))], lambda: order.append("name"))
    spent = float(store.epsilon())
    assert spent == (np.inf if gate.kind == "open" else 1.0)
    assert "draw" not in order
    gate.vectors(store)
    assert float(store.epsilon()) == spent
