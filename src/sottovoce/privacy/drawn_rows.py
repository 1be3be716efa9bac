"""Draw the rows of a batch inside a compiled program, at the cost of the batch.

Example: 64 distinct rows out of 20 000 take 64 random words and a look for repetitions among 64 numbers.

- *A uniform number below m* (`uniform_below`) is the upper half of the 64-bit product ``word * m``. Words whose lower
  half is below ``2**32 mod m`` are drawn again, so every value keeps exactly ``floor(2**32 / m)`` words: no bias.
- *A uniform set of k rows out of n* (`distinct_rows`) is Floyd's algorithm: for i = 0 to k-1, with J = n-k+i, draw t
  uniform in {0, ..., J} and take t, or J if t was taken before. After turn i every set of i+1 rows below J+1 is equally
  likely (Bentley and Floyd, CACM 1987). It is done here without turns. The rows taken before turn i are t_0, ...,
  t_(i-1) (each was taken then or before) and J_l for the repeated turns l < i. So turn i is a repetition if t_i is an
  earlier t_l, or if t_i = J_l for an l < i that is a repetition: a chain of such links is followed to its end.
"""

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.privacy import threefry
from sottovoce.privacy.binomial import TABLE_WORDS, Binomial
from sottovoce.together import largest

Rows = tuple[jax.Array, jax.Array]  # row numbers, and 1 for a record of the batch or 0 for padding
_PAIRS = 512  # up to this many rows, all pairs are compared to find repetitions; beyond it they are sorted


def binomial_rows(
    key: jax.Array, words: jax.Array, n: jax.Array, counts: list[Binomial], agent: jax.Array, usual: int
) -> Rows:
    """Return a binomial number of distinct rows; the last words give the number."""
    size = _drawn_count(words[-TABLE_WORDS:], counts, agent)
    return distinct_rows(key, words[:-TABLE_WORDS], n, size, usual)


def _drawn_count(words: jax.Array, counts: list[Binomial], agent: jax.Array) -> jax.Array:
    """Return the agent's binomial number from 96 random bits."""
    kinds = {count: index for index, count in enumerate(dict.fromkeys(counts))}
    width = max(len(count.thresholds) for count in kinds)
    table = np.zeros((len(kinds), TABLE_WORDS, width), np.uint32)  # zeros are never above U
    for count, index in kinds.items():
        for word in range(TABLE_WORDS):
            shift = 32 * (TABLE_WORDS - 1 - word)
            entries = [(threshold >> shift) & 0xFFFFFFFF for threshold in count.thresholds]
            table[index, word, : len(entries)] = entries
    own = of_agent(table, of_agent(np.array([kinds[count] for count in counts]), agent))
    above, equal = jnp.zeros(width, bool), jnp.ones(width, bool)
    for word in range(TABLE_WORDS):  # from the first digits to the last
        above |= equal & (own[word] > words[word])
        equal &= own[word] == words[word]
    return of_agent(np.array([count.highest for count in counts], np.int32), agent) - jnp.sum(above, dtype=jnp.int32)


def uniform_below(key: jax.Array, words: jax.Array, bounds: jax.Array) -> jax.Array:
    """Return exactly uniform numbers, each below its bound (uint32), from fresh `words` and more of them by `key`.

    `words` may be the first ones of `key` itself: further words come from keys made with larger numbers.
    """

    # 2**32 mod bound is smaller than the bound: only where the lower half is below the bound must it be computed.
    def open_ones(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(state[2] < bounds)

    def again(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        turn, upper, lower = state
        # Tied to the turn, so that XLA computes nothing of this (remainders above all) where no turn is needed.
        turn, own, below = jax.lax.optimization_barrier((turn, key, bounds))
        fresh = threefry.words(threefry.fold(own, turn), below.shape)
        refused = lower < (-below) % below
        settled = jnp.where(lower < below, jnp.uint32(0xFFFFFFFF), lower)
        upper = jnp.where(refused, _upper_half(fresh, below), upper)
        return turn + 1, upper, jnp.where(refused, fresh * below, settled)

    first = jnp.uint32(2**31)  # far above the numbers of words, so that no key equals one of them
    state = (first, _upper_half(words, bounds), words * bounds)
    return jax.lax.while_loop(open_ones, again, state)[1].astype(jnp.int32)


def _upper_half(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the upper 32 bits of the 64-bit product, from products of 16-bit halves."""
    a_low, a_high, b_low, b_high = a & 0xFFFF, a >> 16, b & 0xFFFF, b >> 16
    first = a_high * b_low + (a_low * b_low >> 16)
    second = a_low * b_high + (first & 0xFFFF)
    return a_high * b_high + (first >> 16) + (second >> 16)


def distinct_rows(key: jax.Array, words: jax.Array, n: jax.Array, size: jax.Array, usual: int) -> Rows:
    """Return `size` distinct rows out of n, every set equally likely, padded to the number of words (Floyd).

    Repetitions beyond the `usual` rows are looked for only where some agent has more rows than that: comparing all
    pairs of 146 rows costs three times as much as of 80.
    """
    turns = jnp.arange(words.size, dtype=jnp.int32)
    lasts = n - size + turns  # J in the proof
    drawn = uniform_below(key, words, (lasts + 1).astype(jnp.uint32))
    links = drawn - (n - size)
    links = jnp.where((links >= 0) & (links < turns) & (turns < size), links, turns)

    def follow(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        repeated, links = state
        further = links[links]  # twice as far with each turn; a link to itself is the end
        return repeated | repeated[links], jnp.where(further == links, turns, further)

    def seen(rows: int) -> jax.Array:
        return jnp.pad(_seen_before(drawn[:rows]), (0, words.size - rows))

    if usual < words.size:
        first = jax.lax.cond(largest(size) > usual, lambda: seen(words.size), lambda: seen(usual))
    else:
        first = seen(words.size)
    repeated, _ = jax.lax.while_loop(lambda state: jnp.any(state[1] != turns), follow, (first, links))
    present = turns < size
    return jnp.where(present, jnp.where(repeated, lasts, drawn), 0), mask(present)


def _seen_before(values: jax.Array) -> jax.Array:
    """Return whether each value is equal to an earlier one."""
    turns = jnp.arange(values.shape[0], dtype=jnp.int32)
    if values.shape[0] <= _PAIRS:
        # Value by value: to compare all pairs in one expression would write them to memory first.
        def compare(turn: jax.Array, seen: jax.Array) -> jax.Array:
            return seen | (values == values[turn]) & (turns > turn)

        return jax.lax.fori_loop(0, values.shape[0], compare, jnp.zeros(values.shape, bool))
    ordered, places = jax.lax.sort((values, turns), num_keys=1, is_stable=True)
    same = jnp.concatenate([jnp.zeros(1, bool), ordered[1:] == ordered[:-1]])
    return jnp.zeros(values.shape, bool).at[places].set(same, unique_indices=True)


def of_agent(per_agent: np.ndarray, agent: jax.Array) -> jax.Array:
    """Return an agent's entry of a table that has one per agent."""
    return jnp.asarray(per_agent)[agent]


def mask(present: jax.Array) -> jax.Array:
    """Return 1 for a record of the batch, 0 for padding."""
    return present.astype(jnp.float32)
