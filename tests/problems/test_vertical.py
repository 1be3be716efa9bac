"""Tables split by columns: joins, sparse blocks, and that parts add up to the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

from sottovoce.data.columns import Columns, Sparse, align, device_block, dot, gather, split_columns
from sottovoce.problems.tasks.vertical import hyper_parameters, hyper_representation, judged_on, probabilities
from sottovoce.problems.vertical import Vertical, cross_entropy


def test_align_joins_by_id_whatever_the_order() -> None:
    rng = np.random.default_rng(0)
    ids = np.arange(20)
    a, b, label = (
        rng.normal(size=(20, 2)),
        sp.random_array((20, 5), density=0.4, rng=rng).tocsr(),
        rng.integers(3, size=20),
    )
    left, right, held = rng.permutation(20)[:15], rng.permutation(20)[:17], rng.permutation(20)[:18]
    columns, found, report = align([(ids[left], a[left]), (ids[right], b[right])], (ids[held], label[held]))
    common = sorted(set(left) & set(right) & set(held))
    assert columns.ids is not None
    assert columns.ids.tolist() == common
    assert (columns.blocks[0] == a[common]).all()
    assert (columns.blocks[1].toarray() == b.toarray()[common]).all()
    assert (found == label[common]).all()
    assert report.common == len(common)
    assert [count for _, count, _ in report.left_out] == [15 - len(common), 17 - len(common), 18 - len(common)]
    assert str(report).count("left out") == 3


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([([1, 1], np.ones((2, 1)))], "party 0 has 1 ids more than once"),
        ([([1, 2, 3], np.ones((2, 1)))], "one id per row"),
        ([([8, 9], np.ones((2, 1)))], "no record is known to all"),
    ],
)
def test_align_refuses(tables: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        align(tables, ([1, 2], [0, 1]))


@pytest.mark.parametrize("density", [0.0, 0.15, 0.6])
def test_sparse_rows_equal_dense_ones_in_value_and_gradient(density: float) -> None:
    rng = np.random.default_rng(0)
    matrix = sp.random_array((9, 7), density=density, rng=rng, dtype=np.float32).tocsr()
    dense, weights = jnp.asarray(matrix.toarray()), jnp.asarray(rng.normal(size=(7, 2)), jnp.float32)

    @jax.jit
    def both(block: object, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        def total(weights: jax.Array) -> tuple[jax.Array, jax.Array]:
            product = dot(gather(block, rows), weights)
            return jnp.sum(jnp.sin(product)), product

        return jax.grad(total, has_aux=True)(weights)

    block = Sparse.of(matrix, batch=4)
    for _ in range(20):
        rows = jnp.asarray(rng.permutation(9)[:4])
        for one, other in zip(both(block, rows), both(dense, rows)):
            assert one == pytest.approx(np.asarray(other), abs=1e-5)


def test_no_sparse_block_is_densified() -> None:
    matrix = sp.random_array((50, 100_000), density=1e-4, rng=np.random.default_rng(0)).tocsr()
    held = jax.tree.leaves(device_block(matrix, batch=10))
    assert sum(leaf.size for leaf in held) < 3 * matrix.nnz + 100


def test_columns_add_up_to_the_table() -> None:
    table = np.arange(35.0).reshape(5, 7)
    assert (np.concatenate(split_columns(table, 3), axis=1) == table).all()
    blocks = split_columns(sp.csr_array(table), 3)
    assert (sp.hstack(blocks).toarray() == table).all()


def test_one_party_with_all_columns_equals_two_with_half_each_for_a_linear_model() -> None:
    features = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    weights = np.random.default_rng(1).normal(size=(4, 1)).astype(np.float32)
    whole, halves = hyper_parameters([4]), hyper_parameters([2, 2])
    one = whole.scores(whole.x0, [{"weights": weights, "bias": jnp.ones(1)}], [features])
    y = [{"weights": w, "bias": b} for w, b in zip(np.split(weights, 2), ([1.0], [0.0]))]
    y = jax.tree.map(jnp.asarray, y, is_leaf=lambda leaf: isinstance(leaf, list) and not isinstance(leaf[0], dict))
    two = halves.scores(halves.x0, y, split_columns(features, 2))
    assert two == pytest.approx(np.asarray(one), rel=1e-5)


def test_parties_may_have_networks_of_their_own() -> None:
    problem = Vertical(
        embed=[lambda x, a: a @ x, lambda x, a: jnp.tanh(a) * x],
        head=[lambda y, e: e @ y, lambda y, e: e[:, :1] * y],
        losses=cross_entropy,
        x0=[jnp.ones((2, 3)), jnp.ones(())],
        y0=[jnp.ones((3, 4)), jnp.ones(4)],
    )
    blocks = [jnp.ones((5, 2)), jnp.zeros((5, 6))]
    assert problem.scores(problem.x0, problem.y0, blocks) == pytest.approx(6 * np.ones((5, 4)))


def test_predictions_do_not_depend_on_the_batch_they_come_in() -> None:
    problem = hyper_representation([3, 2], classes=4, hidden=(5,))
    rng = np.random.default_rng(0)
    blocks = [rng.normal(size=(11, width)).astype(np.float32) for width in (3, 2)]
    y = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), problem.y0)
    small, large = (probabilities(problem, problem.x0, y, Columns(blocks), batch=batch) for batch in (4, 100))
    assert small == pytest.approx(large, abs=1e-6)
    assert small.sum(axis=1) == pytest.approx(np.ones(11), abs=1e-5)
    label = large.argmax(axis=1)
    label[:3] = (label[:3] + 1) % 4
    assert float(judged_on(problem, blocks, label, batch=4)(problem.x0, y)["accuracy"]) == pytest.approx(8 / 11)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Columns([np.ones((2, 1)), np.ones((3, 1))]), "same records"),
        (lambda: Columns([np.full((2, 1), np.nan)]), "party 0 has features that are not finite"),
        (lambda: Columns([np.ones((2, 1))], upper=np.array([0, 0])), "upper level"),
        (lambda: Columns([np.ones((2, 1))], lower=np.array([2])), "lower level"),
        (lambda: Columns([np.ones((2, 1))]).levels(1.5), "between 0 and 1"),
        (lambda: split_columns(np.ones((2, 2)), 3), "at least one"),
        (lambda: Vertical(len, len, cross_entropy, [1], []), "one of each"),  # type: ignore[arg-type]
        (lambda: Vertical([len], len, cross_entropy, [1, 2], [1, 2]), "one each"),  # type: ignore[list-item]
    ],
)
def test_errors_say_what_to_do(wrong: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()  # type: ignore[operator]
