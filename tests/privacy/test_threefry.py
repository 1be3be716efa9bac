"""Noise as a function of random words, over all of the values that it can take."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from sottovoce.privacy import threefry

ODD = np.arange(1 - 2**24, 2**24, 2, dtype=np.int32)
ENDS = np.r_[0:50, ODD.size // 2 - 25 : ODD.size // 2 + 25, ODD.size - 50 : ODD.size]


def test_every_word_gives_the_noise_of_its_share():
    # One word in 16 million once gave infinite noise, because the compiler moved a sum.
    drawn = np.asarray(jax.jit(threefry.quantile)(ODD))
    assert np.array_equal(drawn, -drawn[::-1])
    assert (np.diff(drawn) > -1e-6).all()
    some = np.union1d(ENDS, np.arange(0, ODD.size, 4999))
    np.testing.assert_allclose(drawn[some], stats.norm.ppf((1 + ODD[some] / 2**24) / 2), atol=1e-6, rtol=1e-6)


def test_laplace_noise_is_that_of_its_share_at_both_ends(monkeypatch):
    words = (ODD[ENDS] >> 1 << 8).astype(np.uint32)
    monkeypatch.setattr(threefry, "words", lambda key, shape, stream=0: jnp.asarray(words))
    drawn = np.asarray(jax.jit(lambda key: threefry.laplace.__wrapped__(key, ()))(jax.random.key(0)))
    np.testing.assert_allclose(drawn, stats.laplace.ppf((1 + ODD[ENDS] / 2**24) / 2), rtol=1e-5, atol=1e-6)
