"""A compiler that computes wrong sums is refused before anything is released."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.runtime import compiler


@pytest.fixture
def unknown_version(monkeypatch):
    monkeypatch.setattr(compiler, "TESTED", ())
    compiler.require_right_sums.cache_clear()
    yield
    compiler.require_right_sums.cache_clear()


def test_a_compiler_that_adds_wrongly_is_refused_before_work(unknown_version, monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "sums_are_right", lambda: False)
    problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), x0=jnp.zeros(2))
    method = sv.methods.DpSgd(rate=0.2, gradient=sv.Release(clip=5.0, noise=0.1), sampling=sv.Full())
    with pytest.raises(RuntimeError, match="wrong sums"):
        sv.run(problem, [np.ones((4, 2), np.float32)], method, steps=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_version_that_was_not_tested_is_asked_for_a_sum(unknown_version, monkeypatch):
    asked = []
    monkeypatch.setattr(compiler, "sums_are_right", lambda: asked.append(1) or True)
    compiler.require_right_sums()
    compiler.require_right_sums()
    assert asked == [1]


def test_this_version_was_tested():
    assert jax.lib.__version__ in compiler.TESTED


@pytest.mark.slow
def test_softmax_gradients_of_many_rows_are_right_however_often_they_are_compiled():
    """As the compiler of jaxlib 0.10.2 did not get them: one in three programs was wrong."""
    rng = np.random.default_rng(0)
    rows, label = rng.normal(size=(8192, 26)).astype(np.float32) / 10, rng.integers(0, 5, 8192).astype(np.int32)
    model = [
        sv.PrivateLogisticRegression(epsilon=None, delta=1e-5, random_state=0, ledger=sv.Ledger()).fit(rows, label)
        for _ in range(6)
    ]
    assert len({fitted.coef_.tobytes() for fitted in model}) == 1
