"""The exchange between parties and server: all stop at the same question, and go on with its answer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.runtime.party_process import BLOCKS, LABEL, METHOD, PROBLEM, RNG

import sottovoce as sv
from sottovoce.accounting.table import table_account
from sottovoce.methods import equations
from sottovoce.papers.bambi.method import Bambi
from sottovoce.privacy.labels import Open
from sottovoce.problems.tasks.vertical import hyper_parameters
from sottovoce.runtime import columns
from sottovoce.runtime.columns import ColumnsPlace, Exchange, record_messages
from sottovoce.runtime.interpreter import walk
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.table_answers import PartyMoment, ServerMoment


def table(active=None):
    return sv.Table(sv.Columns(BLOCKS), sv.Labels(LABEL, 3, seed=0), active)


ACCOUNT = table_account(METHOD, table(), PROBLEM, steps=2, delta=0.0)


def exchange(**options):
    """Two parties with keys of their own, and a server with open labels."""
    *own, shared, server = [jax.random.key(number) for number in range(4)]
    parties = [PartyMoment(None, jnp.asarray(block), key, shared) for block, key in zip(BLOCKS, own)]
    shapes = (3, 3), (4, 2, 3), (2, 3)
    losses = [jax.make_jaxpr(PROBLEM.losses)(jnp.zeros(shape)) for shape in shapes]
    return Exchange(jnp.int32(0), parties, ServerMoment(losses, METHOD.labels, jnp.eye(3)[LABEL], server), **options)


def walks(*programs):
    """What each party does: functions without arguments."""
    made = [jax.make_jaxpr(program)() for program in programs]
    return [walk(closed.jaxpr, closed.consts, [], compiled=False) for closed in made]


def ask(rows, outputs, number=0):
    return equations.ask_p.bind(jnp.asarray(rows), outputs, number=number, level="upper")[0]


def total(values, number=0):
    return equations.total_p.bind(values, number=number)[0]


def features(rows, number=0):
    shapes = (jax.ShapeDtypeStruct((len(rows), 2), jnp.float32),)
    return equations.features_p.bind(jnp.asarray(rows), number=number, shapes=shapes)[0]


def test_totals_are_sums_over_the_parties_and_all_hear_them():
    found = exchange().together(walks(lambda: [total(jnp.asarray([1.0, 2.0]))], lambda: [total(jnp.ones(2) * 10)]))
    assert [np.asarray(one[0]).tolist() for one in found] == [[11.0, 12.0]] * 2


def test_each_party_reads_its_own_columns():
    rows = [4, 1]
    found = exchange().together(walks(*[lambda: [features(rows)]] * 2))
    for one, block in zip(found, BLOCKS):
        np.testing.assert_array_equal(one[0], block[rows])


def test_the_server_answers_with_the_gradient_of_its_mean_loss_at_the_summed_outputs():
    rows, shares = [4, 1, 2], [RNG.normal(size=(3, 3)).astype(np.float32) for _ in range(2)]
    found = exchange().together(walks(*[lambda share=share: [ask(rows, jnp.asarray(share))] for share in shares]))
    scores = shares[0] + shares[1]
    wanted = (np.exp(scores) / np.exp(scores).sum(1, keepdims=True) - np.eye(3)[LABEL[rows]]) / 3
    for one in found:
        np.testing.assert_allclose(one[0], wanted, atol=1e-6)


def test_every_copy_is_answered_as_if_it_were_alone():
    rows, share = [0, 5], jnp.asarray(RNG.normal(size=(4, 2, 3)), jnp.float32)
    (copies, _) = exchange().together(walks(*[lambda: [ask(rows, share)]] * 2))
    (single, _) = exchange().together(walks(*[lambda: [ask(rows, share[2])]] * 2))
    np.testing.assert_allclose(copies[0][2], single[0], atol=1e-6)


def test_keys_are_the_parties_own_and_differ_from_turn_to_turn():
    def party():
        (key,) = equations.key_p.bind(number=0)
        return [jax.random.key_data(key)]

    found = [np.asarray(one[0]).tolist() for one in exchange().together(walks(party, party))]
    inside = [
        np.asarray(one[0]).tolist() for k in (0, 1) for one in exchange()._inside(3, k).together(walks(party, party))
    ]
    assert len({tuple(key) for key in found + inside}) == 6


@pytest.mark.parametrize(
    "other",
    [lambda: [total(jnp.ones(3), number=7)], lambda: [ask([0, 1, 2], jnp.ones((3, 3)))], lambda: [jnp.ones(3)]],
    ids=["another number", "another question", "none at all"],
)
def test_parties_that_stop_at_different_places_are_found(other):
    with pytest.raises(RuntimeError, match="must not depend on the party"):
        exchange().together(walks(lambda: [total(jnp.ones(3))], other))


def test_the_log_has_what_crosses_and_the_active_party_sends_nothing():
    log = []
    exchange(log=log, active=0).together(walks(*[lambda: [total(jnp.ones(2))]] * 2))
    assert [(message.party, message.up, message.what) for message in log] == [
        (1, True, "scalars"),
        (1, False, "scalars"),
    ]


@pytest.mark.slow
def test_batches_listed_some_steps_at_a_time_change_nothing(monkeypatch):
    whole = ColumnsPlace(ACCOUNT, table(), root_key(0))
    after, _ = whole.advance(whole.begin(), 0, 2)
    monkeypatch.setattr(columns, "_ROWS_AT_ONCE", 1)
    pieces = ColumnsPlace(ACCOUNT, table(), root_key(0))
    assert pieces.at_once == 1
    for one, other in zip(after, pieces.advance(pieces.begin(), 0, 2)[0], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def test_a_run_recorded_message_by_message_ends_where_the_compiled_one_does():
    states, log = record_messages(ACCOUNT, table())
    result = sv.run(PROBLEM, table(), METHOD, steps=2)
    for state, x, y in zip(states, result.x, result.y):
        np.testing.assert_allclose(state.x, x, atol=1e-5)
        np.testing.assert_allclose(state.y, y, atol=1e-5)
    assert {message.step for message in log} == {0, 1}


def test_first_states_have_the_shapes_that_the_place_states():
    place = ColumnsPlace(ACCOUNT, table(), root_key(0))
    assert [leaf.shape for leaf in place.shapes] == [leaf.shape for leaf in place.begin()]
    assert len(place.names) == len(place.shapes)


def test_equal_runs_share_one_trace():
    """And so one compiled program: the models of an ensemble are not compiled one by one."""
    first = table_account(METHOD, table(), PROBLEM, steps=2, delta=0.0)
    assert table_account(METHOD, table(), PROBLEM, steps=2, delta=0.0, seed=5).trace is first.trace
    assert table_account(METHOD, table(), dataclasses.replace(PROBLEM), 2, 0.0).trace is not first.trace


def test_a_run_whose_first_variable_is_a_number_goes_on_after_a_stop(tmp_path):
    """The usual task of a table has one coefficient per party, without axes."""
    rng, problem = np.random.default_rng(0), hyper_parameters([2, 2])
    blocks = [rng.normal(size=(40, 2)).astype(np.float32) for _ in range(2)]
    method = Bambi(inner_steps=1, batch=20, rate_x=0.1, rate_y=0.5, labels=Open())
    held = sv.Table(sv.Columns(blocks), sv.Labels(np.arange(40) % 2, classes=2, seed=0))
    whole = sv.run(problem, held, method, steps=4, every=2, out=tmp_path)
    again = sv.run(problem, held, method, steps=4, every=2, out=tmp_path, resume=True)
    np.testing.assert_array_equal(np.asarray(whole.x), np.asarray(again.x))
