"""Bound the privacy of binomial noise on rounded numbers, and draw such noise.

A vector is divided by a step, rounded at random to whole numbers with the right mean, and to each of them the number of
heads among `coins` fair coins is added. Example: with 2^24 coins the noise has a standard deviation of 2048 steps.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

_TAIL = 0.1  # the share of delta that pays for noise outside of the window
_ORDERS = (*np.arange(1.1, 11, 0.1), *range(11, 64), *(2**k for k in range(6, 20)))
_FARTHEST = 10.0  # standard deviations that a drawn number may lie from the mean


def binomial_epsilon(coins: int, moved: float, dimension: int, releases: int, delta: float) -> float:
    """Return epsilon of `releases` rounded vectors with binomial noise, each moved by at most `moved` steps in L2.

    Proof. Let P be the law of the heads Z among N coins, and V = -log P.

    1. V(z+1) - 2 V(z) + V(z-1) = log(1 + 1/z) + log(1 + 1/(N-z)), which grows with the distance from N/2. Let kappa be
       its value at distance w + k + 1.
    2. For a shift of k let L(z) = V(z-k) - V(z), which is antisymmetric about (N+k)/2, and let f(z) be L at z cut to
       (N+k)/2 -+ (w + k/2). One coin moves f by at most k kappa. By McDiarmid's lemma log E exp((a-1)(f - E f)) is at
       most (a-1)^2 N k^2 kappa^2 / 8. Z and N - Z have one law, so E f = E (f(Z) - f(Z+k)) / 2, at most k^2 kappa / 2.
       Together: at most c k^2, with c = (a-1) kappa / 2 + (a-1)^2 N kappa^2 / 8.
    3. Use the same random rounding on both sides. A coordinate that is moved by r steps is then moved by floor(r) or by
       one more, the latter with probability r - floor(r). If b = c (2 moved + 1) is at most 1, then exp(b) - 1 is at
       most b (1 + b), and the logarithm of the mean over the rounding is at most (1 + b) c (r^2 + min(r, 1/4)).
    4. These bounds add up over coordinates and releases, also adaptive ones. All Z lie within w of N/2, except with
       probability delta / 10 (Hoeffding's lemma). With x the ratio of the two laws, (x - e^epsilon)+ is at most x^a
       times e^(-(a-1) epsilon) (1 - 1/a)^(a-1) / a: the mean of this spends the rest of delta.

    >>> round(binomial_epsilon(coins=2**30, moved=2**15 / 4, dimension=10, releases=1, delta=1e-5), 3)
    2.181
    >>> binomial_epsilon(coins=2**30, moved=0.1, dimension=1, releases=1, delta=0.1)
    0.0
    """
    if releases == 0 or moved == 0:
        return 0.0
    if delta == 0 or not 0 < moved < math.inf:
        return math.inf
    w = math.sqrt(coins * math.log(2 * releases * dimension / (_TAIL * delta)) / 2)
    far = w + math.ceil(moved) + 2
    if not far < coins / 2 - 1:
        return math.inf
    kappa = math.log1p(1 / (coins / 2 - far)) + math.log1p(1 / (coins / 2 + far))
    squares = moved**2 + min(dimension / 4, math.sqrt(dimension) * moved)
    best = math.inf
    for order in _ORDERS:
        c = (order - 1) * kappa / 2 + (order - 1) ** 2 * coins * kappa**2 / 8
        b = c * (2 * moved + 1)
        if b <= 1:
            moment = releases * (1 + b) * c * squares
            spent = moment - math.log((1 - _TAIL) * delta) - math.log(order)
            best = min(best, spent / (order - 1) + math.log1p(-1 / order))
    return float(max(best, 0.0))  # with a large delta the bound may fall below 0, which is no epsilon


def heads(key: jax.Array, coins: int, shape: tuple[int, ...]) -> jax.Array:
    """Draw how many of `coins` fair coins show heads, less their mean: a table is compared with 32 random bits.

    >>> drawn = heads(jax.random.key(0), 2**20, (10_000,))
    >>> bool(abs(drawn.mean()) < 20), bool(abs(drawn.std() / 512 - 1) < 0.03)
    (True, True)
    """
    from scipy.stats import binom  # slow to load, and only this noise needs it

    reach = math.ceil(_FARTHEST * math.sqrt(coins) / 2)
    lowest = max(coins // 2 - reach, 0)
    values = np.arange(lowest, min(coins // 2 + reach, coins))
    cuts = np.minimum(np.floor(binom.cdf(values, coins, 0.5) * 2.0**32), 2**32 - 1).astype(np.uint32)
    bits = jax.random.bits(key, shape, np.uint32)
    return jnp.searchsorted(jnp.asarray(cuts), bits, side="right").astype(jnp.float32) + (lowest - coins / 2)


def rounded(key: jax.Array, value: jax.Array, step: jax.Array | float) -> jax.Array:
    """Round to whole multiples of a step, up or down at random, so that the mean is the value.

    >>> drawn = rounded(jax.random.key(0), jnp.full(4000, 0.3), 0.4)
    >>> sorted(set(np.round(drawn, 1).tolist())), bool(abs(drawn.mean() - 0.3) < 0.02)
    ([0.0, 0.4...], True)
    """
    return jnp.floor(value / step + jax.random.uniform(key, jnp.shape(value))) * step
