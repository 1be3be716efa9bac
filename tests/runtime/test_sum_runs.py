"""Runs by secure sums, as deployed: they equal the simulated curator, charge first, and stop where they must."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.marks import few
from tests.methods import contract
from tests.methods.known_draws import know

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.data.parties import Parties
from sottovoce.methods import available
from sottovoce.runtime import threads
from sottovoce.runtime.array import ArrayPlace
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out
from sottovoce.runtime.sums import session as masking
from sottovoce.runtime.threads import ThreadPlace
from sottovoce.runtime.transport import Patience, QueueTransport, Silence

EXAMPLES = {
    "DpNewton": "plain",
    "DpSgd": None,
    "DpSgda": None,
    "LdpDsbo": "sound",
    "DpMixSgd": "sound",
    "DpBilevel": None,
    "DpGrid": None,
}
SIZES, STEPS, TRUST = (5, 12, 7, 20, 4), 3, sv.Sum(colluding=1)


def uneven(parts: list[Any]) -> list[Any]:
    """The same records with five parties of unequal sizes."""
    whole = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    ends = np.cumsum(SIZES)
    return [jax.tree.map(lambda leaf, stop=stop, n=n: leaf[stop - n : stop], whole) for stop, n in zip(ends, SIZES)]


def far(a: Any, b: Any) -> float:
    return float(np.max(np.abs(a - b), initial=0) / np.max(np.abs(b), initial=1))


@pytest.mark.parametrize("poisson", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", few(EXAMPLES, ("DpSgd",)))
def test_parties_that_add_up_equal_the_simulated_curator(
    name: str, poisson: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, SIZES)
    monkeypatch.setattr(threads, "common_key", lambda session: root_key(0))
    examples = available[name].examples()
    method = examples[EXAMPLES[name] or next(iter(examples))]
    method = method.map_releases(lambda r: dataclasses.replace(sv.Release(4.0, 0.05), name=r.name))
    method = contract.noisy(method) if poisson else method
    case = contract.case_for(method)
    parts = uneven(case.parts)
    account = account_of(method, parts, STEPS, problem=case.problem, trust=TRUST)
    given = account.trace, case.problem
    paid: list[tuple[int, int]] = []
    summed = ThreadPlace.summed(*given, lay_out(parts), 64, lambda agent, t: paid.append((agent, t)))
    table = ArrayPlace(*given, lay_out(Parties.of(parts).together()), root_key(0), 64)
    ours, theirs = (place.advance(place.begin(), 0, STEPS)[0] for place in (summed, table))
    apart = max(far(a, b) for a, b in zip(ours, theirs, strict=True))
    print(f"{name}: at most {apart:.1e} apart")
    assert apart < 1e-5
    assert sorted(set(paid)) == [(me, t) for me in range(len(SIZES)) for t in range(STEPS)]


WIDTH = 600
FLAT = sv.Minimize(lambda x, r: 0.0 * jnp.sum(x) * jnp.sum(r), jnp.zeros(WIDTH))  # a step is noise alone
HELD = [np.full((n, 2), number, np.float32) for number, n in enumerate((20, 30, 50))]
SGD = sv.methods.DpSgd(1.0, sv.Release(1.0, 0.5), sv.Full())
QUIET = sv.Performance(progress=False)


class Relay:
    """Keep what all parties say; `told(hearer, message)` lists what the hearer gets in place of a message."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, told: Any = lambda hearer, message: [message]) -> None:
        self.said: list[Any] = []
        honest = QueueTransport._put

        def put(transport: QueueTransport, hearer: int, message: Any) -> None:
            self.said.append(message)
            for one in told(hearer, message):
                honest(transport, hearer, one)

        monkeypatch.setattr(QueueTransport, "_put", put)

    def shares(self) -> list[Any]:
        return [one for one in self.said if one.id.tag.endswith("share")]


def summed_run(**how: Any) -> sv.Result:
    return sv.run(
        FLAT,
        HELD,
        SGD,
        **{"steps": 2, "every": 1, "trust": sv.Sum(1), "noise": "discrete", "performance": QUIET, **how},
    )


@pytest.mark.filterwarnings("ignore:.*has not moved|.*delta is|.*differs")
def test_parties_draw_the_noise_that_is_stated_and_each_pays_before_it_speaks(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken: list[tuple[int, bool]] = []
    out = tmp_path / "run"

    def told(hearer: int, message: Any) -> Any:
        who, t = message.id.sender, message.id.round
        paid = sv.Ledger(out / f"ledger-{who}.jsonl").entries.values()
        spoken.append((who, any(entry.start <= t < entry.stop for entry in paid)))
        return [message]

    relay = Relay(monkeypatch, told)
    result = summed_run(out=out)
    assert {who for who, _ in spoken} == {0, 1, 2}
    assert all(paid for _, paid in spoken)
    drawn = float(np.std(result.x)) / 0.5 / math.sqrt(2)  # over two steps
    assert abs(drawn / math.sqrt(3 / 2) - 1) < 0.13  # 4.5 standard errors; what is charged would be 0.18 away
    assert result.releasable
    assert "of which each party draws a share of scale" in result.privacy.events[0]
    assert result.privacy.epsilon == sv.account(SGD, sv.Population([100]), steps=2).epsilon
    every = [np.asarray(one.values[0]) for one in relay.shares()]
    assert len(every) == 4  # of two members in two steps; the adder keeps its own
    assert all(np.max(np.abs(share.view(np.int64))) > 2**60 for share in every)  # masked: a share is below 2^40


@pytest.mark.filterwarnings("ignore:.*has not moved|.*delta is|.*differs")
def test_a_resumed_run_is_another_session_and_another_attempt(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    relay, out, seen = Relay(monkeypatch), tmp_path / "run", []
    honest = masking.Session.begin

    def begin(own: Any, roster: Any) -> Any:
        seen.append(roster)
        return honest(own, roster)

    monkeypatch.setattr(masking.Session, "begin", begin)
    measure = ThreadPlace.measure

    def stopping(place: Any, state: Any, step: int, evaluate: Any) -> Any:
        if step == 3 and len(seen) == 3:
            raise KeyboardInterrupt
        return measure(place, state, step, evaluate)

    monkeypatch.setattr(ThreadPlace, "measure", stopping)
    with pytest.raises(KeyboardInterrupt):
        summed_run(out=out, steps=4)
    first = [bytes(one.values[0]) for one in relay.shares()]
    summed_run(out=out, steps=4, resume=True)
    assert [roster.attempt for roster in seen] == [0] * 3 + [1] * 3
    assert len({card.nonce for roster in seen for card in roster.cards}) == 6
    every = [np.asarray(one.values[0]) for one in relay.shares()]
    blocks = [bytes(block) for share in every for block in share.reshape(-1, 8)]
    assert len(first) == 6
    assert len(every) == 6 + 4  # the step that was not stored is drawn anew
    assert len(set(blocks)) == len(blocks)


@pytest.mark.filterwarnings("ignore:.*has not moved|.*delta is|.*differs")
def test_a_relay_that_tells_two_totals_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(hearer: int, message: Any) -> Any:
        if message.id.tag.endswith("total") and hearer == 2 and message.id.round == 0:
            return [dataclasses.replace(message, values=(np.asarray(message.values[0]) + 1,))]
        return [message]

    Relay(monkeypatch, told)
    with pytest.raises(ValueError, match="has seen other totals"):
        summed_run()


@pytest.mark.filterwarnings("ignore:.*has not moved|.*delta is|.*differs")
def test_what_shares_cannot_serve_is_refused_before_anything_is_charged(tmp_path: Any) -> None:
    quiet = sv.methods.DpSgd(1.0, sv.Release(1.0, 1e-6), sv.Full())
    with pytest.raises(ValueError, match="release 'gradient': a share of the noise has scale 6"):
        sv.run(FLAT, HELD, quiet, steps=1, trust=sv.Sum(1), noise="discrete", out=tmp_path / "run", performance=QUIET)
    assert not list((tmp_path / "run").glob("ledger*"))


@pytest.mark.filterwarnings("ignore:.*has not moved|.*delta is|.*differs")
def test_messages_that_come_twice_or_late_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    before: list[tuple[int, Any]] = []

    def told(hearer: int, message: Any) -> list[Any]:
        old = [one for to, one in before if to == hearer and one.id.sender == message.id.sender]
        before.append((hearer, message))
        return [*old, message, message]

    relay, seen = Relay(monkeypatch, told), []
    settle = masking.Session.settle

    def settled(self: Any, question: Any, total: np.ndarray) -> None:
        settle(self, question, total)
        seen.append((question.place, self.history))

    monkeypatch.setattr(masking.Session, "settle", settled)
    summed_run(steps=3)
    assert len(seen) == 3 * 3  # a total per party and step, and no other
    assert len(set(seen)) == 3  # all parties go on from the same
    assert len(relay.shares()) == 2 * 3


def test_a_party_that_stays_away_ends_the_run_after_the_charged_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(hearer: int, message: Any) -> list[Any]:
        return [] if message.id.sender == 2 and message.id.round == 1 else [message]

    relay, paid = Relay(monkeypatch, told), []
    account = account_of(SGD, HELD, 3, problem=FLAT, trust=sv.Sum(1))
    place = ThreadPlace.summed(account.trace, FLAT, lay_out(HELD), 64, lambda agent, t: paid.append((agent, t)))
    place.connect = lambda parties: [QueueTransport(Patience(1.0))] * parties
    with pytest.raises(Silence, match=r"stays away, and a sum without it .* start a new run"):
        place.advance(place.begin(), 0, 3)
    assert {step for _, step in paid} == {0, 1}  # no third step is charged, or said
    assert max(message.id.round for message in relay.said) == 1
    assert not [one for one in relay.said if one.id.round == 1 and one.id.tag.endswith("total")]
