"""The search: every sampling, mechanism and adjacency the package accepts, against an exact adversary."""

import itertools
from typing import Any

import pytest

from sottovoce.privacy.sampling import FixedSize, Full, OnePass, Poisson, Stream, WithReplacement

from .small_world import World, largest_delta

DELTA = 1e-3
SAMPLINGS = (Full(), Poisson(2), FixedSize(2), WithReplacement(2), OnePass(1), Stream(1), Poisson(1), FixedSize(1))


def worlds(sizes: tuple[int, ...], steps: tuple[int, ...], noises: tuple[float, ...]) -> list[World]:
    found = []
    for sampling, n, count, noise in itertools.product(SAMPLINGS, sizes, steps, noises):
        for mechanism, adjacency in itertools.product(("gaussian", "laplace"), ("zero-out", "replace-one")):
            if getattr(sampling, "batch", 1) * (count if isinstance(sampling, OnePass) else 1) > n:
                continue
            found.append(World(sampling, mechanism, noise, n, count, adjacency))  # type: ignore[arg-type]
            if mechanism == "gaussian":
                found.append(World(sampling, mechanism, noise, n, count, adjacency, releases=2))  # type: ignore[arg-type]
    return found


def check(world: World) -> None:
    try:
        stated = world.stated(DELTA)
    except ValueError as error:  # refused: no account is stated
        pytest.skip(str(error)[:80])
    if stated < 50:
        assert largest_delta(world, stated) <= DELTA * 1.01 + 1e-7, f"{world} states {stated:.4g}"


QUICK = worlds(sizes=(3,), steps=(1, 2), noises=(1.0,))
WHOLE = worlds(sizes=(2, 4, 6), steps=(1, 3), noises=(0.5, 2.0))


@pytest.mark.parametrize("world", QUICK, ids=str)
def test_no_account_is_below_the_truth(world: World) -> None:
    check(world)


@pytest.mark.slow
@pytest.mark.parametrize("world", WHOLE, ids=str)
def test_no_account_is_below_the_truth_anywhere(world: World) -> None:
    check(world)


def test_the_search_is_sharp() -> None:
    """For full batches the adversary reaches the account: epsilon is not stated too large either."""
    world = World(Full(), "gaussian", 1.0, 3, 2, "zero-out")
    assert largest_delta(world, 0.99 * world.stated(DELTA)) > DELTA


def _without_redraw(self: Any, n: int) -> Any:
    """The fault of old: a draw that misses the record draws nothing."""
    return Poisson(self.batch).event(n)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_it_finds_with_replacement_charged_as_if_draws_that_miss_drew_nothing(
    adjacency: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WithReplacement, "event", _without_redraw)
    world = World(WithReplacement(2), "gaussian", 1.0, 3, 2, adjacency)
    assert largest_delta(world, world.stated(DELTA)) > 1.5 * DELTA


def test_it_finds_a_stream_that_is_charged_for_more_arrivals_than_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Stream.denominator
    world = World(Stream(1), "gaussian", 1.0, 4, 3, "zero-out")
    with monkeypatch.context() as patch:
        patch.setattr(Stream, "denominator", lambda self, n, t: 1.9 * drawn(self, n, t))
        stated = world.stated(DELTA)
    assert largest_delta(world, stated) > 1.5 * DELTA
