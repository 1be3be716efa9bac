"""A party's run, without FLARE: equality, ledger, resuming, going on without somebody."""

import threading
import time
from collections import Counter

import numpy as np
import pytest

from sottovoce.deploy.outbox import Outbox
from sottovoce.deploy.presence import Presence
from sottovoce.privacy import exact_gate
from sottovoce.privacy.ledger import Ledger
from sottovoce.runtime import loop
from sottovoce.runtime.transport import Stopped
from tests.deploy import cases


def charged(folder, site):
    """How often each step is in a site's ledger."""
    entries = Ledger(folder / site / "ledger.jsonl").entries.values()
    return Counter(step for entry in entries for step in range(entry.start, entry.stop))


@pytest.mark.parametrize(
    "method", ["DpSgd", *(pytest.param(name, marks=pytest.mark.slow) for name in cases.METHODS if name != "DpSgd")]
)
def test_five_parties_equal_the_run_on_one_machine(homes, hall, method):
    text = cases.text(method)
    folder = homes(text)
    assert hall(folder, text).run().failures == {}
    apart = cases.furthest(cases.states(folder), cases.one_machine(text))
    print(f"{method}: relative difference {apart:.1e}")
    assert apart < 1e-5
    assert all(charged(folder, site) == Counter(range(20)) for site in cases.SITES)


def stopping(calls, parties):
    """After some calls, stop all parties."""
    left = [calls]

    def between(caller, name, data):
        left[0] -= 1
        if left[0] == 0:
            for party in parties.values():
                party.stop()
        return data

    return between


@pytest.mark.parametrize("noise", ["exact", pytest.param("simulated", marks=pytest.mark.slow)])
def test_a_run_that_was_stopped_says_the_same_bytes_and_pays_once(homes, hall, noise, monkeypatch, caplog):
    """Each time all parties are stopped after some calls; the last time they run to the end."""
    text, heard = cases.text(noise=noise, steps=24, every=4), {}
    folder = homes(text)
    honest, kept, same = Outbox.after, [], []

    def after(self, hearer, place, seconds):
        found = honest(self, hearer, place, seconds)
        if found is not None:
            where = (str(self._said), hearer, found[0])
            same.append(heard.setdefault(where, found[1]) == found[1])  # one place, one message, whoever asks when
            kept.append(where)
        return found

    monkeypatch.setattr(Outbox, "after", after)
    monkeypatch.setattr(loop, "_SAVE_SECONDS", 0.0)
    for calls in (60, 90, 200, 10**9):
        now = hall(folder, text)
        now.between = stopping(calls, now.parties)
        now.run()
        assert calls < 10**9 or now.failures == {}
    assert all(same)
    assert "came out differently" not in caplog.text  # what was computed again is what had been said
    assert len(kept) > len(set(kept))  # something was asked for again
    assert all(charged(folder, site) == Counter(range(24)) for site in cases.SITES)
    assert not list(folder.glob("*/runs/*/outbox/drawn/*"))  # the run has its result
    if noise == "simulated":
        assert cases.furthest(cases.states(folder), cases.one_machine(text)) < 1e-5


def test_a_run_whose_checkpoint_was_lost_draws_nothing_again(homes, hall, monkeypatch):
    """What was said in the rounds before is no longer kept: new draws would be new releases, which nobody has paid."""
    text = cases.text(noise="exact", steps=8, every=2, deadline=20)
    folder, drawn, honest = homes(text), [], exact_gate.release
    monkeypatch.setattr(loop, "_SAVE_SECONDS", 0.0)
    now = hall(folder, text)
    runs = [folder / site / "runs" / "r" for site in cases.SITES]

    def removed(run):
        return (run / "run" / "checkpoint.npz").exists() and not list(run.glob("outbox/drawn/000000000-*"))

    def between(caller, name, data):
        if all(map(removed, runs)):
            for party in now.parties.values():
                party.stop()
        return data

    now.between = between
    now.run()
    for run in runs:
        (run / "run" / "checkpoint.npz").unlink()
    monkeypatch.setattr(exact_gate, "release", lambda *given: drawn.append(given) or honest(*given))
    failures = hall(folder, text).run(together=True).failures
    assert any("put the newest checkpoint back" in str(failure) for failure in failures.values())
    assert drawn == []


def test_a_party_that_is_stopped_before_its_line_is_open_ends(homes, hall):
    """A site may refuse while another one still starts: the stop must not be lost."""
    text = cases.text()
    party = hall(homes(text), text).parties["north"]
    party.stop()
    with pytest.raises(Stopped):
        party.live()
    party.close()


def test_the_others_go_on_without_a_silent_party_and_it_comes_back(homes, hall):
    """North is cut off for a while. All agree in which rounds, averages stay averages, and nothing more is charged."""
    text = cases.text(steps=60, every=5, deadline=1, absent="go on")
    folder = homes(text)
    cut, now = threading.Event(), None

    def between(caller, name, data):
        return None if cut.is_set() and "north" in (caller, name) else data

    def round_of(name):
        party = now.parties[name]
        return None if (cut.is_set() and name == "north") or party.transport is None else party.transport.round

    presence = Presence(round_of)

    def agreed(name, round, silent):
        if cut.is_set() and threading.current_thread().name == "north":
            raise ConnectionError("cut off")
        return presence.away(name, round, silent, threading.current_thread().name)

    now = hall(folder, text, between=between)
    for party in now.parties.values():
        party.agreed = agreed

    def cutting():
        while now.parties["north"].transport is None or now.parties["north"].transport.round < 10:
            time.sleep(0.01)
        cut.set()
        while now.parties["south"].transport.round < 20:  # by rounds: a fast run would be over before a time is
            time.sleep(0.01)
        cut.clear()

    threading.Thread(target=cutting, daemon=True).start()
    assert now.run().failures == {}
    missed = {site: now.parties[site].transport.absences._rounds for site in cases.SITES if now.parties[site].transport}
    assert missed["east"] == missed["west"] == {}  # not its neighbours on the ring
    north, south, mid = (set(missed[site]["north"]) for site in ("north", "south", "mid"))
    assert len(south) > 2
    assert len(south ^ mid) <= 1  # they differ at most in the round in which it left
    assert len(north ^ south) <= 1
    assert all(charged(folder, site) == Counter(range(60)) for site in cases.SITES)
    states = cases.states(folder)
    assert all(np.isfinite(leaf).all() for leaf in states)
    report = (folder / "south" / "runs" / "r" / "report.html").read_text()
    assert "went on without north in round" in report
