"""Sites that add up: one curator's run, the same bytes after a stop, and an end where somebody is not who began."""

import json
import re
import shutil

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.data.population import Population
from sottovoce.deploy import sums
from sottovoce.deploy.order import Order
from sottovoce.deploy.outbox import Outbox
from sottovoce.deploy.policy import OwnSums, Policy
from sottovoce.experiments.planned import setup
from sottovoce.experiments.runfile import RunFile
from sottovoce.privacy.discrete import GridRelease
from sottovoce.runtime import loop
from sottovoce.runtime.sums.keys import Secrets
from sottovoce.runtime.sums.roster import Roster
from sottovoce.runtime.sums.session import Session
from sottovoce.runtime.transport import Silence
from tests.deploy import cases
from tests.deploy.test_parties import charged, stopping
from tests.methods.known_draws import know

METHODS = {
    **cases.METHODS,
    "DpMixSgd": cases.METHODS["DpMixSgd"].replace('"robust-logistic"', '"robust-logistic"\ngroups = "label"'),
    "DpNewton": """
[task]
name = "logistic"
[method]
name = "DpNewton"
moments = {clip = 1.25}
gradient = {clip = 1.0}
norm = 1.0
""",
    "DpSgda": """
[task]
name = "robust-logistic"
groups = "label"
[method]
name = "DpSgda"
rate_x = 0.5
rate_y = 0.02
sampling = {kind = "poisson", batch = 20}
release_x = {clip = 0.5, noise = 0.5}
release_y = {clip = 2.0, noise = 8.0}
""",
    "DpGrid": """
[task]
name = "tuned-logistic"
[method]
name = "DpGrid"
grid = [[-2.0, 0.5], [0.0, 0.5]]
sampling = "full"
gradient = {clip = 1.0, noise = 1.0}
validation = {clip = 2.0, noise = 1.0}
""",
}
SUMMED = ("DpSgd", "DpNewton", "DpSgda", "LdpDsbo", "DpMixSgd", "DpBilevel", "DpGrid")
DATA = {
    **cases.DATA,
    "DpNewton": cases.DATA["DpMixSgd"],
    "DpSgda": cases.DATA["DpMixSgd"],
    "DpGrid": cases.DATA["LdpDsbo"],
}


def text(method="DpSgd", steps=6, every=2, deadline=120, **how):
    """Return a run file of five sites that add up."""
    head = cases.HEAD.format(
        data=DATA.get(method, ""), noise="exact", steps=steps, every=every, deadline=deadline, absent="pause"
    ).replace("epsilon = 8.0", 'epsilon = 8.0\ntrust = "sum"')
    return head + METHODS[method].replace('[network]\nkind = "ring"\n', "")


def sizes_of(given):
    """Return how many records each site has."""
    made = setup(next(iter(RunFile.parse(given).cases.values())))
    return next(iter(Population.of(made.parts).sizes.values()))


@pytest.mark.parametrize(
    "method", ["DpSgd", *(pytest.param(name, marks=pytest.mark.slow) for name in SUMMED if name != "DpSgd")]
)
def test_five_sites_that_add_up_equal_the_simulated_curator(homes, hall, method, monkeypatch):
    given = text(method)
    know(monkeypatch, sizes_of(given))
    folder = homes(given)
    assert hall(folder, given).run().failures == {}
    ours, theirs = cases.states(folder), cases.one_machine(given)
    apart = cases.furthest(ours, [np.broadcast_to(leaf, one.shape) for leaf, one in zip(theirs, ours)])
    print(f"{method}: relative difference {apart:.1e}")
    assert apart < 1e-5
    assert all(charged(folder, site) == dict.fromkeys(range(6), 1) for site in cases.SITES)
    assert not list(folder.glob("*/runs/*/session.json"))  # the run has its result
    assert not list(folder.glob("*/runs/*/outbox/drawn/*"))


def test_sites_that_were_stopped_say_the_same_bytes_and_pay_once(homes, hall, monkeypatch, caplog):
    """Each time all sites are stopped after some calls; the last time they run to the end."""
    given, heard = text(steps=24, every=4), {}
    folder = homes(given)
    honest, kept, same = Outbox.after, [], []

    def after(self, hearer, place, seconds):
        found = honest(self, hearer, place, seconds)
        if found is not None:
            where = (str(self._said), hearer, found[0])
            same.append(heard.setdefault(where, found[1]) == found[1])
            kept.append(where)
        return found

    monkeypatch.setattr(Outbox, "after", after)
    monkeypatch.setattr(loop, "_SAVE_SECONDS", 0.0)
    for calls in (300, 340, 400, 10**9):
        now = hall(folder, given)
        now.between = stopping(calls, now.parties)
        now.run()
        assert calls < 10**9 or now.failures == {}
    assert all(same)
    assert "came out differently" not in caplog.text
    assert len(kept) > len(set(kept))  # something was asked for again
    assert all(charged(folder, site) == dict.fromkeys(range(24), 1) for site in cases.SITES)
    states = cases.states(folder)
    assert all(np.array_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape)) for leaf in states)  # all have one state


def begun(homes, hall, given, monkeypatch):
    """Run all sites until each has a checkpoint, then stop them; return their folder."""
    monkeypatch.setattr(loop, "_SAVE_SECONDS", 0.0)
    folder = homes(given)
    now = hall(folder, given)

    def between(caller, name, data):
        if all((folder / site / "runs" / "r" / "run" / "checkpoint.npz").exists() for site in cases.SITES):
            for party in now.parties.values():
                party.stop()
        return data

    now.between = between
    now.run()
    return folder


@pytest.mark.parametrize("how", ["removed", pytest.param("only the session", marks=pytest.mark.slow)])
def test_a_site_that_lost_its_folder_is_another_one_and_nothing_is_drawn(homes, hall, monkeypatch, how):
    given = text(steps=8, deadline=5).replace("[privacy]", "[privacy]\nbudget = 99.0")  # else that ends it already
    folder, masked = begun(homes, hall, given, monkeypatch), []
    lost = folder / "south" / "runs" / "r"
    shutil.rmtree(lost) if how == "removed" else (lost / "session.json").unlink()
    honest = Session.masked
    monkeypatch.setattr(Session, "masked", lambda *asked: masked.append(asked) or honest(*asked))
    failures = hall(folder, given).run(together=True).failures
    words = "another list of members|would add up in another session" if how == "removed" else "is gone"
    assert any(re.search(words, str(failure)) for failure in failures.values()), failures
    assert masked == []


def test_a_site_that_stays_away_ends_the_run_with_a_remedy(homes, hall, monkeypatch):
    given = text(steps=8, deadline=2)
    folder = homes(given)
    now = hall(folder, given)
    gone = []

    def between(caller, name, data):
        transport = now.parties["west"].transport
        if gone or (transport is not None and transport.round >= 2):
            gone.append(1)
            return None if "west" in (caller, name) else data
        return data

    now.between = between
    now.run(together=True)
    failure = next(failure for failure in now.failures.values() if isinstance(failure, Silence))
    assert "start a new run without it" in str(failure)
    for site in cases.SITES:  # what was begun is charged, once
        assert set(charged(folder, site).values()) == {1}


def test_a_site_keeps_no_secret_that_unmasks_what_it_has_said(tmp_path):
    path = tmp_path / "session.json"
    book = sums._Book(path, "these records")
    card, cards = book.card("north"), [Secrets.fresh(name).card for name in ("south", "mid")]
    _, *begun = json.loads(path.read_text())["own"]
    session = book.session(Roster.of([card, *cards], sv.Sum(1), {"records": [4, 2, 2]}, b"run"))
    grid = GridRelease(clip=65536, scale=65537, step=2.0**-16, denominator=8)
    asked, before = session.question("0 step: release 1", 3, grid, rows=8), session.kept()
    total = session.masked(asked, np.zeros(3, np.int64)).view(np.int64) * 0
    session.settle(asked, total)
    book.keep(session, asked.place, total)
    text = path.read_text()
    assert not [one for one in (*begun, before["noise"], *before["pairs"].values()) if one in text]
    assert path.stat().st_mode & 0o077 == 0
    again = sums._Book(path, "these records")
    assert again.card("north") == card
    assert again.session(session.roster).kept() == session.kept()
    assert again.answered(asked.place).tolist() == [0, 0, 0]
    assert again.answered("0 step: release 2") is None
    with pytest.raises(ValueError, match="records of this site have changed"):
        sums._Book(path, "other records")
    other = Roster.of([card, cards[1]], sv.Sum(0), {"records": [4, 2]}, b"run")
    with pytest.raises(ValueError, match="another list of members"):
        again.require(other)


def test_a_policy_says_whether_and_against_how_many_its_site_adds_up():
    given = {"methods": ["DpSgd"], "epsilon": 8, "delta": 1e-5, "budget": 8, "data": {"name": "digits"}}
    peers = dict.fromkeys(cases.SITES, "aa")
    _, case, deploy = Order(text(), "r").case()

    def asks(**own):
        Policy(**given, peers=peers, **own).require(case, "north", deploy.noise, deploy.sites)

    asks(trust=["local", "sum"])
    with pytest.raises(PermissionError, match="does not agree to trust 'sum': it allows local"):
        asks()
    with pytest.raises(PermissionError, match=r"sums against 1 colluding sites: set privacy.colluding to 2 or more"):
        asks(trust=["sum"], sums=OwnSums(colluding=2))
    with pytest.raises(PermissionError, match=r"set privacy.colluding to 2 or more"):
        asks(trust=["sum"], sums=OwnSums(independent=["south", "east", "west"]))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('noise = "exact"', 'noise = "simulated"', 'set deploy.noise = "exact"'),
        ('absent = "pause"', 'absent = "go on"', "would show what that site adds"),
    ],
)
def test_sums_without_exact_noise_or_without_somebody_are_refused_at_the_door(before, after, words):
    with pytest.raises(ValueError, match=words):
        Order(text().replace(before, after), "r").case()
