"""Kinds of one's own on lists that an accountant covers: batches, releases, gates, laws; and values that changed."""

from dataclasses import dataclass

import pytest

import sottovoce as sv
from sottovoce.closed import exact
from sottovoce.data.population import Population
from sottovoce.methods import equations
from sottovoce.networks import Network
from sottovoce.privacy import accountant
from sottovoce.privacy.labels import GATES, LabelGate
from sottovoce.privacy.sampling import KINDS, Poisson, Sampling
from sottovoce.problems.vertical import Vertical
from sottovoce.schedules import Constant

CLOSED = [*KINDS, Sampling, sv.Release, *GATES, Population, Network, sv.Minimize, sv.MinMax, sv.Bilevel, Vertical]


@pytest.mark.parametrize("kind", CLOSED, ids=lambda kind: kind.__name__)
def test_a_closed_list_takes_no_kind_of_ones_own(kind):
    """Cyclic batches charged as Poisson: stated 1.295, true 2.753. L2 clips under Laplace noise: .02, true .20."""
    with pytest.raises(TypeError, match="closed list"):
        type("Own", (kind,), {})


class _Agreeable(type(Sampling)):
    """A kind of class that equals every other."""

    __hash__ = type.__hash__

    def __eq__(cls, other):
        return True


def _forged(kind, **changed):
    """A kind that says that it stands in the module of the list."""
    return _Agreeable("Own", (kind,), {"__module__": kind.__module__, **changed})


def test_a_kind_that_says_that_it_stands_in_the_package_is_refused_where_it_is_used():
    cheap = _forged(Poisson, event=lambda self, n: accountant.PoissonAmplification(1e-6))
    with pytest.raises(TypeError, match="sampling is of type Own: the closed list is Full"):
        sv.account(sv.methods.DpSgd(0.1, sv.Release(1.0, 0.3), cheap(5)), sv.Population([50]), steps=10)
    loose = _forged(sv.Release, norm=property(lambda self: "l2"))
    with pytest.raises(TypeError, match="release is of type Own"):
        sv.account(
            sv.methods.DpSgd(0.1, loose(1.0, 1.0, "laplace"), sv.Full()), sv.Population([50]), steps=1, delta=0.0
        )


def test_an_equation_that_is_written_by_hand_is_held_to_the_list():
    """What is checked is the equation that the account reads, not only the handle that usually writes it."""

    forged = _forged(Poisson)(5)

    @dataclass(frozen=True)
    class ByHand(sv.methods.DpSgd):
        """Writes the equation of its batch itself."""

        def step(self, problem, state, agent):
            equations.sample_p.bind(sampling=forged, name="batch", number=77)
            return super().step(problem, state, agent)

    del sv.methods.Method.registry["ByHand"]
    with pytest.raises(TypeError, match="sampling is of type Own"):
        sv.account(ByHand(0.1, sv.Release(1.0, 0.3), sv.Full()), sv.Population([50]), steps=1)


@pytest.mark.parametrize(
    ("value", "field", "changed", "refused"),
    [
        (sv.Poisson(5), "batch", 0.5, "whole number"),
        (sv.Poisson(5), "event", lambda n: accountant.PoissonAmplification(1e-9), "event beside its fields"),
        (sv.Release(1.0, 0.3), "clip", -1.0, "must be positive"),
        (sv.Release(1.0, 0.3, name="gradient"), "louder", "l2", "louder beside its fields"),
        (sv.Release(1.0, 0.3), "mechanism", "none", "choose 'gaussian' or 'laplace'"),
    ],
)
def test_a_value_that_was_changed_is_checked_anew(value, field, changed, refused):
    object.__setattr__(value, field, changed)
    own = value if isinstance(value, Sampling) else sv.Full()
    release = value if isinstance(value, sv.Release) else sv.Release(1.0, 0.3)
    with pytest.raises((TypeError, ValueError), match=refused):
        exact("value", value, (*KINDS, sv.Release))
    with pytest.raises((TypeError, ValueError), match=refused):
        sv.account(sv.methods.DpSgd(0.1, release, own), sv.Population([50]), steps=1)


class _Small(float):
    """A number that is small where the account divides."""

    def __truediv__(self, other):
        return 1e-9


class _Both(str):
    """A text that equals every other."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        return True


def test_numbers_and_texts_of_ones_own_are_python_s_own_in_a_release():
    assert type(sv.Release(_Small(1.0), 0.3).clip) is float
    with pytest.raises(TypeError, match="mechanism of a release"):
        sv.Release(1.0, 0.3, _Both("gaussian"))

    def spent(noise):
        return sv.account(sv.methods.DpSgd(0.1, sv.Release(1.0, noise), sv.Full()), sv.Population([50]), steps=1)

    assert spent(Constant(_Small(0.3))).epsilon == pytest.approx(spent(0.3).epsilon)


def test_a_method_that_equals_every_other_has_its_own_account():
    """The second one was stated at the epsilon of the first: .23, true 2694."""

    @dataclass(frozen=True)
    class Alike(sv.methods.DpSgd):
        """Equals every other of its class."""

        def __eq__(self, other):
            return isinstance(other, Alike)

        def __hash__(self):
            return 1

    del sv.methods.Method.registry["Alike"]
    loud, quiet = (
        sv.account(Alike(0.1, sv.Release(1.0, noise), sv.Full()), sv.Population([50]), steps=3).epsilon
        for noise in (1.0, 0.001)
    )
    assert quiet > 1000 * loud


def test_the_number_of_trials_is_drawn_by_a_law_whose_bound_is_proved():
    from sottovoce.privacy.selection import PoissonTrials

    class Free(PoissonTrials):
        def renyi(self, order, rdp, delta):
            return 0.0

    with pytest.raises(TypeError, match="choose PoissonTrials or GeometricTrials"):
        sv.select({"one": lambda mu: 1.0}, lambda value, mu: value, epsilon=1.0, stopping=Free)


def test_the_lists_hold_every_kind_that_is_defined():
    def below(kind):
        return {kind, *(one for under in kind.__subclasses__() for one in below(under))}

    for base, listed in ((Sampling, KINDS), (LabelGate, GATES)):
        defined = {one for one in below(base) if one.__module__ == base.__module__ and one.__name__ != "Own"}
        assert {one for one in defined if not one.__abstractmethods__} == set(listed)
