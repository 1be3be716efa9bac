"""The ready-made bilevel tasks: tuned penalties, and many heads on one body."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.problems import tasks
from sottovoce.problems.tasks import Shape

SMALL = Shape((4,), classes=3, agents=2)


def test_penalty_is_the_printed_one() -> None:
    """(1 / (c p)) sum_r sum_s exp(lam_s) w_rs^2."""
    problem = tasks.get("tuned-softmax")(SMALL, bias=False).problem
    rng = np.random.default_rng(0)
    lam, w = rng.normal(size=4), rng.normal(size=(4, 3))
    wanted = sum(np.exp(lam[s]) * w[s, r] ** 2 for s in range(4) for r in range(3)) / 12
    assert float(problem.public_lower(jnp.asarray(lam), {"weights": jnp.asarray(w)})) == pytest.approx(wanted, rel=1e-5)
    assert set(problem.y0) == {"weights"}


def test_groups_share_a_coefficient() -> None:
    halves, listed = (tasks.get("tuned-logistic")(Shape((4,), 2, 1), groups=g).problem for g in (2, [0, 0, 1, 1]))
    y = {"weights": jnp.array([1.0, 2.0, 3.0, 4.0]), "bias": jnp.zeros(())}
    x = jnp.array([0.0, 1.0])
    assert float(halves.public_lower(x, y)) == pytest.approx((5 + np.e * 25) / 8, rel=1e-6)
    assert float(listed.public_lower(x, y)) == float(halves.public_lower(x, y))


def test_records_are_prepared_one_by_one() -> None:
    task = tasks.get("tuned-logistic")(Shape((2,), 2, 1), centre=1.0, norm=2.0, weight=3.0, bias=False)
    y = {"weights": jnp.array([1.0, 0.0])}
    loss = task.problem.lower(task.problem.x0, y, {"features": jnp.array([7.0, 9.0]), "label": 1})
    assert float(loss) == pytest.approx(3 * np.log1p(np.exp(-1.2)), rel=1e-5)  # (6, 8) shrinks to (1.2, 1.6)
    assert task.problem.predict(task.problem.x0, y, np.array([[7.0, 9.0]]))[0] == pytest.approx(1 / (1 + np.exp(-1.2)))


def test_tuning_needs_no_release_for_x() -> None:
    rng = np.random.default_rng(0)
    parts = [{"features": rng.normal(size=(20, 4)).astype(np.float32), "label": np.arange(20) % 3} for _ in range(2)]
    task = tasks.get("tuned-softmax")(SMALL)
    method = sv.methods.LdpDsbo(0.5, 0.5, 0.5, sv.Release(1.0, 0.01), sv.Release(1.0, 0.01), sv.Full())
    result = sv.run(task.problem, parts, method, network=sv.networks.ring(2), steps=5, evaluate=task.metrics(parts[0]))
    assert result.predict(parts[0]["features"]).shape == (20, 3)
    assert {"accuracy", "loss"} <= set(result.history)


def test_heads_answer_for_their_own_classes() -> None:
    meta = tasks.get("meta-heads")(Shape((8, 8, 1), classes=4, agents=1), count=6, ways=2, width=3, blocks=2)
    problem = meta.problem
    rng = np.random.default_rng(0)
    pictures = rng.normal(size=(5, 8, 8, 1)).astype(np.float32)
    heads = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), problem.y0)
    asked = np.random.default_rng(0)  # the tasks' classes are public: drawn from the seed
    classes = np.stack([asked.permutation(4)[:2] for _ in range(6)])
    probability = np.asarray(problem.predict(problem.x0, heads, pictures))
    assert probability.shape == (6, 5, 2)
    for number, label in enumerate([0, 1, 2, 3, 0]):
        wanted = -sum(np.log(probability[q, number, w]) for q, w in zip(*np.where(classes == label))) / 3
        loss = problem.lower(problem.x0, heads, {"features": pictures[number], "label": label})
        assert float(loss) == pytest.approx(wanted, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "shape", "options", "words"),
    [
        ("tuned-softmax", SMALL, {"groups": 9}, "between 1 and 4"),
        ("tuned-softmax", SMALL, {"groups": [0, 2, 2, 2]}, "counted from 0 on"),
        ("tuned-softmax", SMALL, {"penalty": -1.0}, "must be positive"),
        ("tuned-softmax", SMALL, {"norm": 0.0}, "must be positive"),
        ("tuned-softmax", SMALL, {"start": 11.0}, "move one of them"),
        ("meta-heads", SMALL, {}, "needs pictures"),
        ("meta-heads", Shape((8, 8, 1), 4, 1), {"ways": 5}, "between 2 and 4"),
    ],
)
def test_mistakes_say_what_to_do(name, shape, options, words) -> None:
    with pytest.raises(ValueError, match=words):
        tasks.get(name)(shape, **options)
