"""Tables split by columns: joins, sparse blocks, and that parts add up to the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

from sottovoce.data.columns import Columns, Sparse, align, device_block, dot, gather, split_columns


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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Columns([np.ones((2, 1)), np.ones((3, 1))]), "same records"),
        (lambda: Columns([np.full((2, 1), np.nan)]), "party 0 has features that are not finite"),
        (lambda: Columns([np.ones((2, 1))], upper=np.array([0, 0])), "upper level"),
        (lambda: Columns([np.ones((2, 1))], lower=np.array([2])), "lower level"),
        (lambda: Columns([np.ones((2, 1))]).levels(1.5), "between 0 and 1"),
        (lambda: split_columns(np.ones((2, 2)), 3), "at least one"),
    ],
)
def test_errors_say_what_to_do(wrong: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()  # type: ignore[operator]
