"""Min-max tasks against the formulas they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.marks import few

from sottovoce import data
from sottovoce.problems import tasks
from sottovoce.problems.tasks.robust import numbered


def some_records(n: int = 60, dim: int = 3, share: float = 0.3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    label = (np.arange(n) < share * n).astype(np.int32)
    return {
        "features": (rng.normal(size=(n, dim)) + label[:, None]).astype(np.float32),
        "label": rng.permutation(label),
    }


def mean_loss(problem, x, y, records) -> jax.Array:
    return jnp.mean(jax.vmap(lambda r: problem.loss(x, y, r))(records)) + problem.public(x, y)


class TestAuc:
    @pytest.mark.parametrize("hidden", few([(), (4,)], [(4,)]))
    def test_saddle_value_is_the_pairwise_square_loss(self, hidden):
        """At the best a, b and alpha it is p (1-p) (E (1 - h_above + h_below)^2 - 1): Ying, Wen and Lyu, Theorem 1."""
        records = some_records()
        prior = float(records["label"].mean())
        problem = tasks.get("auc")(tasks.Shape((3,), 2, 1), prior=prior, hidden=hidden).problem
        model = jax.tree.map(lambda leaf: leaf + 0.3, problem.x0["model"])
        score = np.asarray(problem.predict({**problem.x0, "model": model}, problem.y0, records["features"]))
        above, below = score[records["label"] == 1], score[records["label"] == 0]
        x = {"model": model, "a": jnp.asarray(above.mean()), "b": jnp.asarray(below.mean())}
        alpha = x["b"] - x["a"]
        value = mean_loss(problem, x, alpha, records)
        pairs = np.mean((1 - above[:, None] + below[None, :]) ** 2)
        assert float(value) == pytest.approx(prior * (1 - prior) * (pairs - 1), abs=1e-5)
        slopes = jax.grad(lambda x, y: mean_loss(problem, x, y, records), argnums=(0, 1))(x, alpha)
        np.testing.assert_allclose([slopes[0]["a"], slopes[0]["b"], slopes[1]], 0.0, atol=1e-5)

    def test_needs_a_public_prior(self):
        with pytest.raises(ValueError, match="prior is 1"):
            tasks.get("auc")(tasks.Shape((3,), 2, 1), prior=1.0)
        with pytest.raises(ValueError, match=r"data\.positive"):
            tasks.get("auc")(tasks.Shape((3,), 10, 1), prior=0.5)


class TestRobustLogistic:
    def test_is_the_papers_objective(self):
        records = some_records()
        task = tasks.get("robust-logistic")(tasks.Shape((3,), 2, agents=4), scale=0.5)
        parts = task.prepare(data.split(records, 4, seed=1))
        problem = task.problem
        x = jax.tree.map(lambda leaf: leaf + 0.4, problem.x0)
        y = jnp.asarray([0.1, 0.2, 0.3, 0.4])
        ours = np.mean([mean_loss(problem, x, y, part.gather()) for part in parts])
        losses = []
        for part in parts:
            own = part.gather()
            margin = (2 * own["label"] - 1) * (0.5 * own["features"].sum(axis=1) * 0.4 + 0.4)
            losses.append(np.mean(np.log1p(np.exp(-margin))))
        divergence = 0.5 / 16 * np.sum((4 * np.asarray(y) - 1) ** 2)
        weights, bias = (10 * value**2 / (1 + 10 * value**2) for value in (0.5 * 0.4, 0.4))
        regulariser = 1e-3 * (3 * weights + bias)
        assert float(ours) == pytest.approx(np.dot(y, losses) - divergence + regulariser, rel=1e-5)

    def test_party_column(self):
        parts = numbered(data.split(some_records(), 4, seed=1))
        assert [set(part.gather()["party"].tolist()) for part in parts] == [{0}, {1}, {2}, {3}]
        assert all(part.records is parts[0].records for part in parts)

    @pytest.mark.parametrize("price", [1e6, 0.05, 1e-6])
    def test_the_gradient_of_phi_is_that_of_the_best_weights(self, price):
        """Phi by a fine grid of weights of two parties, and its slope by differences, in NumPy."""
        task = tasks.get("robust-logistic")(tasks.Shape((3,), 2, agents=2), price=price)
        own = [part.gather() for part in task.prepare(data.split(some_records(), 2, seed=1))]
        share = np.linspace(0, 1, 2001)

        def phi(x):
            scores = [part["features"] @ x[:3] + x[3] for part in own]
            first, second = (np.mean(np.log1p(np.exp(s)) - p["label"] * s) for s, p in zip(scores, own))
            best = np.max(share * first + (1 - share) * second - price * (2 * share - 1) ** 2)
            return best + 1e-3 * np.sum(10 * x**2 / (1 + 10 * x**2))

        at = np.array([0.4, 0.3, -0.2, 0.1])
        slopes = [(phi(at + 0.01 * way) - phi(at - 0.01 * way)) / 0.02 for way in np.eye(4)]
        x = {"weights": jnp.asarray(at[:3, None], jnp.float32), "bias": jnp.asarray(at[3:], jnp.float32)}
        records = {name: np.concatenate([part[name] for part in own]) for name in own[0]}
        told = jax.jit(task.metrics(records))(x, task.problem.y0)["gradient of Phi"]
        assert float(told) == pytest.approx(np.linalg.norm(slopes), rel=2e-2)


class TestGroupRobust:
    def test_uniform_weights_are_the_plain_loss(self):
        problem = tasks.get("group-robust")(tasks.Shape((3,), 2, 1)).problem
        record = {"features": jnp.ones(3), "label": 1}
        assert float(problem.loss(problem.x0, problem.y0, record)) == pytest.approx(np.log(2))

    def test_reports_the_worst_class(self):
        task = tasks.get("group-robust")(tasks.Shape((3,), 2, 1))
        records = some_records(share=0.25)
        told = task.metrics(records)(task.problem.x0, task.problem.y0)  # all scores equal: class 0 is guessed
        assert float(told["accuracy"]) == pytest.approx(0.75)
        assert float(told["worst class"]) == 0.0

    def test_says_which_groups_there_are(self):
        with pytest.raises(ValueError, match="'party' or 'label'"):
            tasks.get("group-robust")(tasks.Shape((3,), 2, 1), groups="colour")
