"""Events for dp-accounting: its accountants find the epsilon that is stated here."""

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import sottovoce as sv
from sottovoce.privacy import accountant
from sottovoce.privacy.events import dp_event
from sottovoce.privacy.mechanisms import Mechanism, SubsetAmplification
from sottovoce.privacy.report import PrivacyReport

RELATION = {
    "zero-out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    "replace-one": dp_accounting.NeighboringRelation.REPLACE_ONE,
}


@pytest.mark.parametrize(
    ("sampling", "adjacency"),
    [
        (sv.Full(), "replace-one"),
        (sv.Poisson(20), "zero-out"),
        pytest.param(sv.Full(), "zero-out", marks=pytest.mark.slow),
        pytest.param(sv.Poisson(20), "replace-one", marks=pytest.mark.slow),
    ],
)
def test_the_library_finds_the_same_epsilon_from_the_event(sampling, adjacency, tmp_path):
    method = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(clip=1.0, noise=0.1), sampling=sampling)
    report = sv.account(method, sv.Population([100, 80]), steps=30, network=sv.networks.ring(2), adjacency=adjacency)
    stored = PrivacyReport.from_dict(report.to_dict(), tmp_path)
    assert stored == report
    theirs = PLDAccountant(RELATION[adjacency]).compose(stored.dp_event)
    assert theirs.get_epsilon(report.delta) == pytest.approx(report.epsilon, rel=0.01)


def test_what_no_event_describes_is_said():
    method = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(clip=1.0, noise=0.1), sampling=sv.Full())
    bare = sv.account(method.without_privacy(), sv.Population([10]), steps=3)
    assert bare.dp_event == dp_accounting.NonPrivateDpEvent()


@pytest.mark.parametrize("adjacency", RELATION)
@pytest.mark.parametrize("spent", [Mechanism(pure=0.3), Mechanism(gaussian=0.01, pure=0.2)])
def test_the_library_never_finds_less_for_purely_private_releases(spent, adjacency):
    stated = accountant.epsilon([(spent, 10)], 1e-5, adjacency)
    try:
        found = PLDAccountant(RELATION[adjacency]).compose(dp_event(((spent, 10),))).get_epsilon(1e-5)
    except dp_accounting.UnsupportedEventError:
        return  # it says so
    assert found >= 0.99 * float(stated)


@pytest.mark.parametrize(("adjacency", "looser"), [("zero-out", 4.5), ("replace-one", 2.0)])
def test_batches_of_fixed_size_are_not_cheaper_elsewhere(adjacency, looser):
    """One accountant of the library takes them. It does not double a sensitivity, so the event must hold it doubled."""
    method = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.05), sampling=sv.FixedSize(50))
    report = sv.account(method, sv.Population([1000]), steps=20, adjacency=adjacency)
    found = []
    for relation in dp_accounting.NeighboringRelation:
        for library in (RdpAccountant, PLDAccountant):
            try:
                found.append(library(neighboring_relation=relation).compose(report.dp_event).get_epsilon(report.delta))
            except (dp_accounting.UnsupportedEventError, ValueError):
                continue  # it says so
    assert found
    assert all(report.epsilon <= theirs < looser * report.epsilon for theirs in found)


@pytest.mark.parametrize(("batch", "noise", "steps"), [(1, 0.5, 3), (999, 2.0, 2), (500, 5.0, 100), (10, 8.0, 5000)])
def test_no_account_of_a_fixed_size_is_above_what_the_library_finds_from_its_event(batch, noise, steps):
    spent = ((Mechanism(gaussian=1 / noise**2, amplification=SubsetAmplification(1000, batch)), steps),)
    theirs = RdpAccountant(neighboring_relation=RELATION["replace-one"]).compose(dp_event(spent)).get_epsilon(1e-5)
    assert accountant.epsilon(spent, 1e-5, "zero-out") <= theirs
