"""Two runs with one seed that share their noise, which who sees both could subtract: what differs must change the keys.

Each test hands the gate records that contribute nothing, so that a model is noise alone, or undoes the noise as an
attacker would.
"""

import itertools
import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.data import Part
from sottovoce.privacy.labels import Fresh
from sottovoce.runtime import jobs

ZEROS = np.zeros((50, 3), np.float32)
DATA = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)


def quiet(x, r):
    """A loss whose gradient is the record."""
    return jnp.sum(x * r)


def sgd(noise=1.0, rate=1.0):
    return sv.methods.DpSgd(rate=rate, gradient=sv.Release(clip=50.0, noise=noise), sampling=sv.Full())


def drawn(records=ZEROS, method=None, loss=quiet, start=0.0):
    """What a run of one step adds to its start."""
    method = sgd() if method is None else method
    return np.asarray(sv.run(sv.Minimize(loss, jnp.full(3, start)), [records], method, steps=1).x, np.float64) - start


def test_two_scales_of_noise_do_not_cancel():
    """Attack a02: noise 1 and noise 2 on one seed gave the mean exactly, at a stated 0.82."""
    one, two = (drawn(DATA, sgd(scale)) for scale in (1.0, 2.0))
    assert np.abs(2 * one - two + DATA.mean(axis=0)).max() > 0.1


class _Stop(Exception):
    """Carries the keys of a run that is not to be run."""


def keys_of(monkeypatch, maker, run):
    """Return the keys that a run would draw its noise from, without running it."""
    make = getattr(jobs, maker)

    def stop(*given):
        raise _Stop(np.asarray(jax.random.key_data(make(*given))).tobytes())

    with monkeypatch.context() as patch:
        patch.setattr(jobs, maker, stop)
        with pytest.raises(_Stop) as stopped:
            run()
    return stopped.value.args[0]


CHANGES = {
    "nothing": {},
    "start": {"start": 1.0},
    "rate": {"method": sgd(rate=2.0)},
    "noise": {"method": sgd(2.0)},
    "loss": {"loss": lambda x, r: 2.0 * quiet(x, r)},
    "one more record": {"records": np.concatenate([ZEROS, ZEROS[:1]])},
    "units of two": {"records": Part(ZEROS, np.arange(50), np.arange(50) // 2)},
    "units of five": {"records": Part(ZEROS, np.arange(50), np.arange(50) // 5)},
}


def test_whatever_a_release_depends_on_changes_its_keys(monkeypatch):
    """The family of attack a02: start, rate, loss, one more record, and how records are grouped."""
    keys = [keys_of(monkeypatch, "agent_keys", lambda change=change: drawn(**change)) for change in CHANGES.values()]
    assert len(set(keys)) == len(keys)
    assert keys[0] == keys_of(monkeypatch, "agent_keys", drawn)  # the same run has the same keys


@pytest.mark.slow
def test_whatever_a_release_depends_on_changes_its_noise():
    """As above, in what is drawn."""
    runs = {name: drawn(**change) for name, change in CHANGES.items()}
    runs["rate"] /= 2.0
    runs["noise"] /= 2.0
    for (name, one), (other_name, other) in itertools.combinations(runs.items(), 2):
        assert np.abs(one - other).max() > 1e-3, (name, other_name)
    np.testing.assert_array_equal(runs["nothing"], drawn())  # the same run is the same bytes


def reversal(factor):
    """The identity with a gradient of its own."""

    @jax.custom_vjp
    def same(x):
        return x

    same.defvjp(lambda x: (x, None), lambda _, g: (g * factor,))
    return same


def test_another_backward_pass_is_another_run():
    """Attack a10: the second run was "the same", cost nothing, and repeated the noise."""
    ledger, models = sv.Ledger(), []
    for factor in (1.0, 2.0):
        f = reversal(factor)
        problem = sv.Minimize(lambda x, r, f=f: 0.5 * jnp.sum((f(x) - r) ** 2), jnp.zeros(3))
        result = sv.run(problem, [DATA], sgd(10.0), steps=1, ledger=ledger)
        models.append(np.asarray(result.x))
    assert len(ledger.entries) == 2
    assert float(ledger.epsilon("0", 1e-5, "replace-one")) > 1.3 * result.privacy.epsilon
    assert np.abs(models[1] - models[0] - DATA.mean(axis=0)).max() > 1.0


class Both(NamedTuple):
    x: Any
    a: Any
    b: Any


@dataclass(frozen=True)
class _Two(sv.methods.Method):
    """Makes two releases, whose names a test chooses."""

    a: sv.Release
    b: sv.Release

    def init(self, problem, agent):
        return Both(problem.x0, problem.x0, problem.x0)

    def step(self, problem, state, agent):
        batch = agent.sample(sv.Full())
        given = {"at": state.x, "batch": batch}
        return Both(
            state.x,
            agent.release(self.a, problem.loss, **given),
            agent.release(self.b, problem.loss, **given),
        )


@pytest.mark.slow
def test_two_names_of_one_step_do_not_share_their_noise():
    """Attack c1: keys were made of crc32, which two names can share."""
    names = "g4555", "zicdoz"
    assert len({zlib.crc32(f"noise/{name}/1".encode()) for name in names}) == 1
    method = _Two(*(sv.Release(1.0, 1.0, name=name) for name in names))
    agents = sv.run(sv.Minimize(quiet, jnp.zeros(3)), [ZEROS], method, steps=1).agents
    assert np.abs(np.asarray(agents.a) - np.asarray(agents.b)).max() > 1e-3


def labels_seen(store, scale=2.0, upper=None, lower=None):
    """Run one step on labels with fresh noise; the head's weights are then a linear function of noisy labels."""
    rows = len(store)
    every = np.arange(rows)
    problem = sv.Vertical(
        lambda x, a: a,
        lambda y, a: a @ y,
        lambda s: jnp.concatenate([jnp.zeros_like(s), -s], axis=-1),  # candidate losses, linear in the score
        [jnp.zeros(())],
        [jnp.zeros((rows, 1))],
    )
    columns = sv.Columns(
        [np.eye(rows, dtype=np.float32)],
        upper=every if upper is None else upper,
        lower=every if lower is None else lower,
    )
    batch = rows if lower is None else len(lower)
    method = sv.methods.Bambi(inner_steps=1, batch=batch, rate_x=1e-9, rate_y=1.0, labels=Fresh(scale))
    result = sv.run(problem, sv.Table(columns, store), method, steps=1, delta=1e-5)
    return np.asarray(result.y[0], np.float64).ravel() * batch, result.privacy.epsilon


@pytest.mark.slow
def test_two_scales_of_label_noise_do_not_cancel():
    """Attack a22: Fresh(2) and Fresh(4) on one store with the default seed gave all labels."""
    truth = np.random.default_rng(0).integers(0, 2, 12)
    store = sv.Labels(truth, classes=2)
    (one, first), (two, second) = labels_seen(store, 2.0), labels_seen(store, 4.0)
    assert second > first  # both are charged
    guess = 2 * one - two
    assert np.abs(guess - truth).max() > 0.5
    assert np.abs(guess).max() > 1.01


@pytest.mark.slow
def test_other_batches_of_labels_meet_other_noise():
    """The family of attack a22: with the rows dealt out otherwise, known labels would have told the noise of others."""
    truth = np.random.default_rng(0).integers(0, 2, 12)
    store, halves = sv.Labels(truth, classes=2), (np.arange(6), np.arange(6, 12))
    noise = []
    for upper, lower in (halves, halves[::-1]):
        seen, _ = labels_seen(store, 2.0, upper, lower)
        noise.append((seen - truth)[lower])
    # In the order of the batch the noise was the same number by number; the order is made from the public seed.
    assert not np.allclose(np.sort(np.abs(noise[0])), np.sort(np.abs(noise[1])), atol=1e-4)


def test_scales_and_batches_of_labels_change_the_keys(monkeypatch):
    """Attack a22 and its family, without running."""
    store, halves = sv.Labels(np.arange(12) % 2, classes=2), (np.arange(6), np.arange(6, 12))
    given = [(2.0,), (4.0,), (2.0, *halves), (2.0, *halves[::-1])]
    keys = [keys_of(monkeypatch, "table_roots", lambda one=one: labels_seen(store, *one)) for one in given]
    assert len({one[-8:] for one in keys}) == len(given)  # the last key is the server's, of the label noise


def test_noisy_counts_of_one_seed_share_no_noise_between_tables_or_scales():
    def noise(counts, epsilon=0.5, questions=1):
        bought = sv.NoisyCounts(epsilon, seed=0)
        return (bought.noised(counts, questions, (0, 0)) - counts) / bought.scale(questions)

    none = np.zeros(400, int)
    one_more = np.eye(1, 400, dtype=int)[0]
    np.testing.assert_array_equal(noise(none), noise(none))  # same seed, same table, same noise
    for other in (noise(one_more), noise(none, epsilon=0.25), noise(none, questions=2)):
        assert abs(np.corrcoef(noise(none), other)[0, 1]) < 0.2
