"""Sums under masks: totals are right, all that is less than a total is uniform, and no mask comes twice."""

import dataclasses
import hashlib
import hmac
import itertools
import json
import struct

import numpy as np
import pytest
from scipy import stats

import sottovoce as sv
from sottovoce.privacy.discrete import GridRelease
from sottovoce.runtime.sums import session as masking
from sottovoce.runtime.sums.keys import Secrets, Stream, derived
from sottovoce.runtime.sums.roster import Roster, Unequal
from sottovoce.runtime.sums.session import Session, added
from sottovoce.runtime.sums.talk import total
from sottovoce.runtime.threads import on_threads
from sottovoce.runtime.transport import Message, MessageId, Patience, QueueTransport, Silence

NAMES = ("north", "mid", "south", "west")
GRID = GridRelease(clip=65536, scale=65537, step=2.0**-16, denominator=8)
SIZES = {"records": [2, 2, 3, 1]}
RARE = 1e-12  # of a p-value: tests draw from the operating system


def roster_of(own, run=b"run", attempt=0, colluding=1):
    return Roster.of(
        [one.card for one in own], sv.Sum(colluding), {"records": SIZES["records"][: len(own)]}, run, attempt
    )


def members(**how):
    own = [Secrets.fresh(name) for name in NAMES]
    return [Session.begin(one, roster_of(own, **how)) for one in own]


def asked(session, step=0, number=2, size=2048):
    return session.question(f"{step} step: release {number}", size, GRID, rows=8)


def answered(company, question, shares):
    """Return what all say, and go on from the total."""
    said = [member.masked(question, share) for member, share in zip(company, shares, strict=True)]
    for member in company:
        member.settle(question, added(said))
    return said


def shares_of(question, rng):
    """Return small sums with noise: what is masked is far from uniform."""
    return [rng.integers(-5, 6, question.size) * 65536 + rng.integers(-99, 100, question.size) for _ in NAMES]


def uneven(numbers):
    """Return the largest chi-squared statistic of the first, a middle and the last byte of 64-bit numbers."""
    octets = np.asarray(numbers, "<u8").view(np.uint8).reshape(-1, 8)
    counts = np.stack([np.bincount(octets[:, place], minlength=256) for place in (0, 3, 7)])
    return np.max(np.sum((counts - len(octets) / 256) ** 2, axis=1)) / (len(octets) / 256)


UNIFORM = stats.chi2.isf(RARE, 255)


def campaign(size=2048):
    """Yield (what is different, a message per member): steps, questions, an attempt, a run name used again, resumes."""
    rng = np.random.default_rng(0)
    for attempt, again in ((0, 0), (1, 0), (0, 1)):
        company = members(run=b"the same name", attempt=attempt)
        for step, number in itertools.product(range(2), (2, 5)):
            question = asked(company[0], step, number, size)
            if step == 1:  # processes were killed, and go on from what they kept
                company = [member.resumed(json.loads(json.dumps(member.kept()))) for member in company]
            yield (attempt, again, step, number), answered(company, question, shares_of(question, rng))


def test_all_that_is_less_than_a_total_is_uniform():
    seen = dict(campaign())
    subsets = [subset for count in (1, 2, 3) for subset in itertools.combinations(range(4), count)]
    sums = {(when, subset): added([said[k] for k in subset]) for when, said in seen.items() for subset in subsets}
    assert max(map(uneven, sums.values())) < UNIFORM
    for a, b in itertools.combinations(seen, 2):  # by the same members, and by one and another
        for one, other in (((0,), (0,)), ((1, 2, 3), (1, 2, 3)), ((0,), (1,))):
            assert uneven(sums[a, one] - sums[b, other]) < UNIFORM
            assert uneven(sums[a, one] + sums[b, other]) < UNIFORM
    whole = added(next(iter(seen.values())))
    assert uneven(whole) > UNIFORM  # only totals are not


def test_totals_are_what_was_said_minus_the_masks_and_that_is_no_smaller_noise():
    company, rng = members(), np.random.default_rng(1)
    for step in range(3):
        question = asked(company[0], step, size=40)
        shares, kept = shares_of(question, rng), [member.kept() for member in company]
        said = answered(company, question, shares)
        np.testing.assert_array_equal(added(said), np.sum(shares, axis=0))
        for me, one in enumerate(said):
            masks = oracle_masks(me, kept[me], company[me].roster, question)
            np.testing.assert_array_equal((one - masks).view(np.int64), shares[me])
            assert not np.array_equal(one.view(np.int64), shares[me])


def oracle_masks(me, kept, roster, question):
    """Return a member's masks by Python's own hmac, and by ChaCha20 written out."""
    facts = [roster.digest.hex(), kept["history"], *question.facts]
    text = json.dumps(facts, separators=(",", ":")).encode()
    found = np.zeros(question.size, np.uint64)
    for other, secret in kept["pairs"].items():
        head = hmac.digest(bytes(32), bytes.fromhex(secret), "sha256")
        info = b"sottovoce sums 1: mask " + hashlib.sha256(text).digest()
        key = hmac.digest(head, info + b"\x01", "sha256")
        blocks = [chacha_block(key, counter) for counter in range(-(-question.size // 8))]
        mask = np.frombuffer(b"".join(blocks), "<u8")[: question.size]
        found = found + mask if int(other) > me else found - mask
    return found


def chacha_block(key, counter):
    """RFC 8439, with a 64-bit counter and no nonce."""
    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *struct.unpack("<8I", key), counter, 0, 0, 0]
    state = list(start)
    turns = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    turns += [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for a, b, c, d in turns * 10:
        for x, y, z, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[x] = (state[x] + state[y]) & 0xFFFFFFFF
            state[z] ^= state[x]
            state[z] = ((state[z] << by) | (state[z] >> (32 - by))) & 0xFFFFFFFF
    return struct.pack("<16I", *((one + two) & 0xFFFFFFFF for one, two in zip(state, start)))


def repeats(seen):
    """Return how many blocks of 16 bytes of the members' messages came before, at any offset of 8 bytes."""
    blocks = set()
    total = 0
    for said in seen:
        for one in said:
            found = list(zip(one[:-1].tolist(), one[1:].tolist()))
            blocks.update(found)
            total += len(found)
    return total - len(blocks)


def masks_alone(size=64):
    """Yield the members' messages about zeros: what is said are the masks."""
    for attempt in range(2):
        company = members(attempt=attempt)
        for step, number in itertools.product(range(4), (2, 5)):
            question = asked(company[0], step, number, size)
            yield answered(company, question, [np.zeros(size, np.int64)] * 4)


def test_no_block_of_a_mask_comes_twice():
    assert repeats(masks_alone()) == 0


def test_masks_that_overlap_are_found(monkeypatch):
    """Faults put back: a key that forgets the question, alone and with a counter that starts at the round's number."""
    whole, masked, step = masking.stream, Session.masked, 0

    def noting_the_step(session, question, share):
        nonlocal step
        step = int(question.place.split()[0])
        return masked(session, question, share)

    monkeypatch.setattr(Session, "masked", noting_the_step)
    monkeypatch.setattr(masking, "derived", lambda secret, purpose, facts: secret)
    assert repeats(masks_alone()) > 0
    monkeypatch.setattr(masking, "stream", lambda key, size: whole(key, 64 * step + size)[64 * step :])
    overlapping = list(masks_alone())[:8:2]  # one question of each step
    assert repeats(overlapping) > 0
    difference = overlapping[0][1][8:] - overlapping[1][1][:-8]  # of consecutive messages of one member
    assert not difference.any()  # no mask is left


@pytest.mark.parametrize(
    "change",
    [
        lambda roster: dataclasses.replace(roster, trust=sv.Sum(2)),
        lambda roster: dataclasses.replace(roster, sizes=(("records", (2, 2, 2, 2)),)),
        lambda roster: dataclasses.replace(roster, run=b"another file"),
        lambda roster: dataclasses.replace(roster, attempt=1),
        lambda roster: dataclasses.replace(roster, cards=roster.cards[::-1]),
        lambda roster: dataclasses.replace(
            roster, cards=(*roster.cards[:3], dataclasses.replace(roster.cards[3], nonce=bytes(32)))
        ),
    ],
    ids=["colluding", "sizes", "run", "attempt", "order", "a nonce"],
)
def test_every_fact_of_a_roster_changes_all_masks_and_all_draws(change):
    own = [Secrets.fresh(name) for name in NAMES]
    roster = roster_of(own)
    pairs, noise = {other: own[0].shared(own[other].card) for other in (1, 2, 3)}, bytes(32)
    one, other = Session(0, roster, noise, pairs), Session(0, change(roster), noise, pairs)
    places = [asked(session) for session in (one, other)]
    zeros = np.zeros(2048, np.int64)
    difference = one.masked(places[0], zeros) - other.masked(places[1], zeros)
    assert uneven(difference) < UNIFORM
    assert one.source("0 step: sample 1").randbytes(8) != other.source("0 step: sample 1").randbytes(8)


@pytest.mark.parametrize("field", ["place", "size", "step", "clip", "scale", "denominator", "rows", "history"])
def test_every_fact_of_a_question_changes_all_masks(field):
    company, zeros = members(), np.zeros(2048, np.int64)
    session, question = company[0], asked(company[0])
    before = session.masked(question, zeros)
    if field == "history":  # a total that differs
        kept = [session.kept() for _ in range(2)]
        sessions = [session.resumed(one) for one in kept]
        for number, one in enumerate(sessions):
            one._pairs, one.history = session._pairs, hashlib.sha256(bytes([number])).digest()
        before, after = (one.masked(question, zeros) for one in sessions)
    elif field == "size":
        after = session.masked(dataclasses.replace(question, size=2049), np.zeros(2049, np.int64))[:2048]
    elif field in ("place", "rows"):
        changed = "0 step: release 2, loop 1 turn 0" if field == "place" else 9
        after = session.masked(dataclasses.replace(question, **{field: changed}), zeros)
    else:
        changed = {"step": 2.0**-15, "clip": 65535, "scale": 65538, "denominator": 9}[field]
        grid = dataclasses.replace(GRID, **{field: changed})
        after = session.masked(dataclasses.replace(question, grid=grid), zeros)
    assert uneven(after - before) < UNIFORM


def test_a_question_that_is_asked_again_gets_the_same_bytes_and_never_others():
    company = members()
    question, share = asked(company[0], size=4), np.arange(4)
    kept = company[0].kept()
    noise, said = company[0].source(question.place).randbytes(100), company[0].masked(question, share)
    again = company[0].resumed(kept)  # a folder that was put back
    assert again.source(question.place).randbytes(100) == noise
    np.testing.assert_array_equal(again.masked(question, share), said)
    for session in (company[0], again):
        with pytest.raises(RuntimeError, match="answered twice with different numbers"):
            session.masked(question, share + 1)


def test_secrets_of_a_total_are_gone_after_it():
    company = members()
    question, before = asked(company[0], size=4), company[0].kept()
    answered(company, question, [np.arange(4)] * 4)
    after = company[0].kept()
    assert all(before["pairs"][other] != after["pairs"][other] for other in before["pairs"])
    assert before["noise"] != after["noise"]
    assert company[0].kept() == {  # and follow from it, at both ends of a pair
        **after, "pairs": {**after["pairs"], "1": company[1].kept()["pairs"]["0"]}
    }  # fmt: skip


@pytest.mark.parametrize("seed", [None, 0])
def test_draws_of_a_stream_are_those_of_a_generator(seed):
    """Uniform bits of every length, and floats below 1: the samplers ask for bytes and for bits."""
    source = Stream(derived(bytes(32), "test", [seed]))
    assert uneven(np.frombuffer(source.randbytes(1 << 15), np.uint64)) < UNIFORM
    few = np.bincount([source.getrandbits(3) for _ in range(4000)], minlength=8)
    assert stats.chisquare(few).pvalue > RARE
    assert stats.kstest([source.random() for _ in range(2000)], "uniform").pvalue > RARE


# Sessions over a transport.


class Two(QueueTransport):
    """An adder that tells its last member another total."""

    def _put(self, hearer, message):
        if message.id.tag == "release 2 total" and message.id.round == 0 and hearer == 3:
            message = dataclasses.replace(message, values=(np.asarray(message.values[0]) + 1,))
        super()._put(hearer, message)


class Wild(QueueTransport):
    """A relay that repeats every message and holds back each member's first one until its second."""

    held = None

    def _put(self, hearer, message):
        if message.id.sender == 3 and message.id.round == 0 and self.held is None:
            self.held = message
            return
        if message.id.sender == 3 and self.held is not None and message.id.tag.startswith("other"):
            super()._put(hearer, message)
            super()._put(hearer, self.held)
        super()._put(hearer, message)
        super()._put(hearer, message)


class Dropping(QueueTransport):
    """A relay that drops a member's second share."""

    def _put(self, hearer, message):
        if (message.id.sender, message.id.round) != (2, 1):
            super()._put(hearer, message)


def life(session, transport):
    """Ask two questions."""
    found = []
    for step in range(2):
        if session.me == 3 and isinstance(transport, Wild) and step == 0:
            transport.send(0, message_of(session, "other"))
        question = asked(session, step)
        masked = session.masked(question, np.full(2048, session.me + step))
        found.append(
            int(total(session, question, masked, transport, MessageId("run", step, session.me, "release 2"))[0])
        )
    return found


def message_of(session, tag):
    return Message(MessageId("run", 0, session.me, tag), (np.zeros(1),), "public")


def test_a_relay_that_repeats_and_reorders_changes_nothing():
    assert on_threads(members(), [Wild()] * 4, life) == [[6, 10]] * 4


def test_an_adder_that_tells_two_totals_is_found_at_the_next_question():
    with pytest.raises(Unequal, match="west has seen other totals than north"):
        on_threads(members(), [Two()] * 4, life)


def test_without_honest_digests_two_totals_are_found_by_masks_that_do_not_cancel():
    company = members()
    question = asked(company[0])
    said = [member.masked(question, np.zeros(2048, np.int64)) for member in company]
    for member in company:
        member.settle(question, added(said) + (member.me == 3))
    question = asked(company[0], 1)
    said = [member.masked(question, np.zeros(2048, np.int64)) for member in company]
    with pytest.raises(Unequal, match="do not add up"):
        company[0].settle(question, added(said))


@pytest.mark.parametrize("number", [-(2**63), 2**63 - 1])
def test_no_total_is_too_large_to_be_looked_at(number):
    """The size of -2^63 is -2^63 in 64 bits."""
    session = members()[0]
    with pytest.raises(Unequal, match="do not add up"):
        session.settle(asked(session, size=1), np.array([number]))


def test_a_message_that_is_dropped_ends_the_session_and_unmasks_nobody():
    between, said = Dropping(Patience(0.2)), []
    put = between._put

    def noted(hearer, message):
        said.append(message)
        put(hearer, message)

    between._put = noted
    with pytest.raises(Silence, match="in round 1, and it did not come"):
        on_threads(members(), [between] * 4, life)
    last = [one for one in said if one.id.round == 1]
    assert {one.id.tag for one in last} == {"release 2 share"}  # no total of fewer is ever told
    for one in last:
        assert uneven(np.asarray(one.values[0])) < UNIFORM


# Rosters.


def test_members_that_were_told_two_rosters_do_not_begin():
    own = [Secrets.fresh(name) for name in NAMES]
    rosters = [roster_of(own)] * 3 + [roster_of([own[0], own[1], own[3]])]
    for me, roster in enumerate(rosters):
        told = {NAMES[other]: rosters[other].digest for other in range(4)}
        with pytest.raises(Unequal, match="would add up in another session"):
            roster.confirm(told) if me < 3 else rosters[3].confirm({**told, "west": roster.digest})
    with pytest.raises(Unequal, match="mid did not say whom it adds up with"):
        rosters[0].confirm({"north": rosters[0].digest})
    rosters[0].confirm(dict.fromkeys(NAMES, rosters[0].digest))


def test_a_member_that_lost_its_folder_is_in_another_session():
    own = [Secrets.fresh(name) for name in NAMES]
    again = [*own[:3], Secrets.fresh("west")]
    with pytest.raises(Unequal, match="west would add up in another session"):
        roster_of(own).confirm({name: roster_of(own if name != "west" else again).digest for name in NAMES})


def test_fewer_than_two_honest_members_are_no_sum():
    own = [Secrets.fresh(name) for name in NAMES]
    with pytest.raises(ValueError, match="needs at least 5 parties"):
        roster_of(own, colluding=3)
    with pytest.raises(Unequal, match="the same name"):
        roster_of([own[0], own[1], own[1]])
    with pytest.raises(Unequal, match="is no member"):
        Session.begin(own[3], roster_of(own[:3]))


def test_a_relay_that_swaps_a_card_learns_no_total_and_gives_none():
    """Cards come over authenticated lines; were one swapped, masks would not cancel."""
    own, stranger = [Secrets.fresh(name) for name in NAMES], Secrets.fresh("west")
    honest = roster_of(own)
    fooled = roster_of([*own[:3], stranger])
    company = [Session.begin(own[0], fooled), *(Session.begin(one, honest) for one in own[1:])]
    said = [member.masked(asked(member), np.zeros(2048, np.int64)) for member in company]
    assert uneven(added(said)) < UNIFORM


# What is asked.


def test_a_total_that_may_overflow_is_refused_before_it_is_masked():
    (session, *_) = members()
    session.question("x", 1, GRID, rows=2**43)
    with pytest.raises(ValueError, match="may overflow 64 bits"):
        session.question("x", 1, GRID, rows=2**44)


def test_laplace_shares_and_fine_shares_are_refused():
    (session, *_) = members()
    with pytest.raises(ValueError, match="do not add up to it"):
        session.question("x", 1, dataclasses.replace(GRID, mechanism="laplace"), rows=8)
    with pytest.raises(ValueError, match="below 8"):
        session.question("x", 1, dataclasses.replace(GRID, scale=12), rows=8)


def test_the_shares_make_up_what_is_charged_without_the_colluding_ones():
    question = asked(members()[0])
    assert 3 * question.share**2 >= GRID.scale**2 > 3 * (question.share - 1) ** 2
