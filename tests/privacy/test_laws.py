"""A law says all about itself: nobody else asks which law it is, and a new one is a class in one file."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.methods import contract

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.accounting.charging import Charging
from sottovoce.privacy import labels, noise, sampling
from sottovoce.privacy.noise import LAWS, Noise
from sottovoce.runtime.array import ArrayPlace
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out
from sottovoce.runtime.threads import ThreadPlace

SOURCE = Path(sv.__file__).parent
# Formulas of a paper are about the paper's law.
ELSEWHERE = ("papers", "laboratory")
WORDS = ("gaussian", "laplace")
GATES = (*labels.GATES, labels.LaplaceGate, labels.LabelGate)
KINDS = {kind.__name__ for kind in (*sampling.KINDS, *GATES, *(type(law) for law in LAWS.values()))}
GATE = ("gate", "labels")  # how a gate is called; its design is for reports, and nobody decides by it
OWN = {"privacy/noise.py", "privacy/sampling.py", "privacy/sound.py", "privacy/labels.py"}


def questions(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield comparisons with a law's word or of what it tells, and tests for a law's class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            held = [*sides, *(part for side in sides for part in getattr(side, "elts", ()))]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            held = list(ast.walk(node.args[1]))
        elif isinstance(node, ast.MatchClass):
            held = [node.cls]
        else:
            continue
        named = {getattr(part, "attr", getattr(part, "id", None)) for part in held}
        asked = [part.value for part in held if isinstance(part, ast.Attribute) and part.attr == "design"]
        told = any(getattr(one, "attr", getattr(one, "id", None)) in GATE for one in asked)
        if told or any(isinstance(part, ast.Constant) and part.value in WORDS for part in held) or named & KINDS:
            yield node


def test_nobody_asks_which_law_it_is() -> None:
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE).as_posix()
        text = file.read_text()
        asks = any(word in text for word in (*WORDS, *KINDS))  # a file is parsed only where it may
        if asks and name not in OWN and not name.startswith(ELSEWHERE):
            found += [f"{name}:{node.lineno}" for node in questions(ast.parse(text))]
    assert not found, f"ask the law instead: {found}"


@pytest.mark.parametrize(
    "code",
    [
        "release.mechanism == 'gaussian'",
        "isinstance(s, OnePass)",
        "type(s) is Full",
        "word in ('laplace',)",
        "isinstance(gate, labels.Memoised)",
        "type(gate) == Fresh",
        "gate.design == 'sound'",
        "type(g) in (Open, Printed)",
    ],
)
def test_questions_are_found(code: str) -> None:
    assert list(questions(ast.parse(code)))


def test_every_law_has_a_word_of_its_own() -> None:
    kinds = [*sampling.KINDS, *labels.GATES, *map(type, LAWS.values())]
    assert all(isinstance(vars(kind)["kind"], str) for kind in kinds)
    assert len({kind.kind for kind in kinds}) == len(kinds)


class Uniform(Noise):
    """Rounded to two points, for tests: Laplace noise by another name whose exact law is not written."""

    kind: ClassVar[str] = "toy"
    norm: ClassVar[Literal["l1", "l2"]] = "l1"
    draw = noise.Laplace.draw
    gain = noise.Laplace.gain
    terms = noise.Laplace.terms
    lengths, exceeds = noise.Laplace.lengths, noise.Laplace.exceeds

    def _no(self, *_: Any) -> Any:
        raise ValueError("toy noise cannot be drawn exactly: use 'gaussian' or 'laplace'")

    multiplier = whole_scale = climb = exact = _no

    def energy(self, size: int, scale: int) -> Fraction:
        return self._no()


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> sv.Release:
    monkeypatch.setattr(noise, "LAWS", {**LAWS, "toy": Uniform()})
    return sv.Release(clip=1.0, noise=0.05, mechanism="toy")


def test_a_new_law_is_one_class(toy: sv.Release) -> None:
    """It runs, is charged and is audited; what it cannot do it refuses by its name."""
    problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(2))
    parts = [np.ones((40, 2), np.float32)]
    method = sv.methods.DpSgd(rate=0.5, gradient=toy, sampling=sv.Full())
    given = {"problem": problem, "steps": 3}
    charged = sv.account(method, parts, **given)
    known = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(1.0, 0.05, "laplace"), sampling=sv.Full())
    assert charged.epsilon == sv.account(known, parts, **given).epsilon < np.inf
    assert "toy noise" in charged.events[0]
    result = sv.run(problem, parts, method, steps=3)
    assert np.abs(np.asarray(result.x)).max() < 2
    assert result.privacy.epsilon == charged.epsilon
    whole = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(1.0, 0.1, "toy"), sampling=sv.Full())
    found = sv.audit(whole, sv.Population([10]), steps=1, delta=0.0, adjacency="zero-out", trials=4000)
    assert found.passed
    assert found.claimed == pytest.approx(1.0)
    assert found.ratio > 0.5
    with pytest.raises(ValueError, match="toy noise cannot be drawn exactly"):
        sv.run(problem, parts, method, steps=3, noise="discrete")
    with pytest.raises(ValueError, match="choose 'gaussian' or 'laplace' or 'toy'"):
        sv.Release(1.0, 0.1, "cauchy")


@pytest.mark.parametrize(
    "check",
    [
        contract.check_private_is_accounted,
        pytest.param(contract.check_noise_is_drawn, marks=pytest.mark.slow),
        pytest.param(contract.check_threads_equal_vectorised, marks=pytest.mark.slow),
    ],
)
def test_the_contract_holds_of_a_new_law(check: Any, toy: sv.Release) -> None:
    """What a method must satisfy is no matter of the law."""
    check(sv.methods.DpSgd(0.2, replace(sv.Release.open(), mechanism="toy"), sv.Full()), contract.minimize())


class Kept(NamedTuple):
    x: Any
    kept: Any  # what was released, by step


@dataclass(frozen=True)
class Keeping(sv.methods.Method):
    """Releases a gradient at x0 in each step, and keeps them all."""

    gradient: sv.Release
    sampling: Any

    def init(self, problem: Any, agent: Any) -> Kept:
        return Kept(problem.x0, jnp.zeros((STEPS, *problem.x0.shape)))

    def step(self, problem: Any, state: Kept, agent: Any) -> Kept:
        told = agent.release(self.gradient, problem.loss, at=state.x, batch=agent.sample(self.sampling))
        return state._replace(kept=state.kept.at[agent.t].set(told))


class Faded(noise.Gaussian):
    """For tests: the noise of step t is z[t] - z[t-1] / 2, so that sums over steps have less noise.

    Released are values + scale B z, with ones on B's diagonal and -1/2 below: as much as (B^-1 values) / scale + z, of
    which a unit in step s alone moves the entries from s on, by 1, 1/2, 1/4 and so on.
    """

    kind: ClassVar[str] = "faded"
    reaches: ClassVar[bool] = True

    def now(self, drawn: Any, t: Any) -> jax.Array:
        return drawn(t) - 0.5 * jnp.where(t > 0, 1.0, 0.0) * drawn(jnp.maximum(t - 1, 0))

    def terms(self, own: np.ndarray, together: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        left = np.cumsum(0.25 ** np.arange(own.size))[::-1]
        return own * together * left, ()

    def whole_scale(self, ideal: Fraction, clip: int) -> int:
        raise ValueError("faded noise cannot be drawn exactly: earlier draws are not kept. Use 'gaussian' or 'laplace'")

    def gain(self, value: jax.Array, shift: jax.Array, scale: jax.Array) -> jax.Array:
        raise ValueError("faded noise cannot be weighed one step at a time: audit another law")


STEPS, WIDTH, SCALE = 6, 3000, 0.05


@pytest.fixture
def faded(monkeypatch: pytest.MonkeyPatch) -> Keeping:
    monkeypatch.setattr(noise, "LAWS", {**LAWS, "faded": Faded()})
    return Keeping(sv.Release(clip=1e-6, noise=SCALE, mechanism="faded"), sv.OnePass(2))


def _drawn(method: Keeping, **how: Any) -> np.ndarray:
    """Return the noise of all steps, by step and coordinate."""
    problem = sv.Minimize(lambda x, r: jnp.sum(x) * r, jnp.zeros(WIDTH))
    kept = sv.run(problem, [np.zeros(12, np.float32)], method, steps=STEPS, **how).agents.kept
    return np.asarray(kept)[0] / SCALE


def test_a_law_reaches_its_earlier_draws(faded: Keeping, tmp_path: Path) -> None:
    """Undoing the filter gives independent noise; a run that stops and goes on draws the same."""
    found = _drawn(faded)
    fresh = [found[0]]
    for row in found[1:]:
        fresh.append(row + 0.5 * fresh[-1])
    together = np.corrcoef(np.stack(fresh))
    assert np.abs(together - np.eye(STEPS)).max() < 5 / np.sqrt(WIDTH)
    assert abs(np.std(fresh) - 1) < 5 / np.sqrt(2 * STEPS * WIDTH)
    assert np.corrcoef(found[1], found[2])[0, 1] < -0.3  # -0.4
    np.testing.assert_array_equal(_drawn(faded, every=1, out=tmp_path), found)


def test_agents_by_themselves_reach_the_same_draws(faded: Keeping) -> None:
    problem = sv.Minimize(lambda x, r: jnp.sum(x) * r, jnp.zeros(5))
    parts = [np.zeros(12, np.float32), np.zeros(14, np.float32)]
    trace = account_of(faded, parts, STEPS, sv.networks.ring(2), problem=problem).trace
    given = (trace, problem, lay_out(parts), root_key(3), 16)
    ends = [place.advance(place.begin(), 0, STEPS)[0] for place in (ArrayPlace(*given), ThreadPlace.simulated(*given))]
    for one, other in zip(*ends, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=1e-6)
    assert np.ptp(np.asarray(ends[0][-1])) > 0


def test_a_whole_run_is_charged_with_its_first_step(faded: Keeping) -> None:
    """As linear algebra has it: the longest shift, measured by the covariance of the noise of all steps."""
    method = replace(faded, gradient=sv.Release(1.0, 0.4, "faded"))
    people, between = sv.Population([12]), np.eye(STEPS) - 0.5 * np.eye(STEPS, k=-1)
    covariance = (0.4**2) * between @ between.T
    worst = max(0.5 * np.sqrt(row @ np.linalg.solve(covariance, row)) for row in np.eye(STEPS))
    charged, ledger = sv.account(method, people, steps=STEPS), sv.Ledger()
    apart = replace(method, gradient=sv.Release(1.0, 0.5 / worst, "gaussian"))
    assert charged.epsilon == pytest.approx(sv.account(apart, people, steps=STEPS).epsilon, rel=1e-6)
    written = Charging(ledger, "run", account_of(method, people, STEPS))
    written.charge(0, 1)
    first = float(ledger.epsilon("0", 1e-5, charged.adjacency))
    written.charge(1, STEPS)
    assert float(ledger.epsilon("0", 1e-5, charged.adjacency)) == first == pytest.approx(charged.epsilon, rel=1e-6)


def test_what_a_law_that_reaches_earlier_draws_is_not_proved_for(faded: Keeping) -> None:
    for other in sampling_kinds():
        with pytest.raises(ValueError, match=r"release 'gradient' has faded noise, .* sv\.OnePass"):
            sv.account(replace(faded, sampling=other), sv.Population([12]), steps=3)
    looped = sv.methods.DpSgd(0.1, faded.gradient, sv.OnePass(2))
    with pytest.raises(ValueError, match="faded noise"):
        sv.account(_Twice(looped), sv.Population([12]), steps=3)
    with pytest.raises(ValueError, match="faded noise cannot be drawn exactly"):
        _drawn(replace(faded, gradient=sv.Release(1.0, 0.1, "faded")), noise="discrete")


def sampling_kinds() -> list[sampling.Sampling]:
    """Return one sampling of each kind but the one in which a record takes part once."""
    return [kind() if kind in (sv.Full, sv.Stream) else kind(2) for kind in sampling.KINDS if not kind.once]


@dataclass(frozen=True)
class _Twice(sv.methods.Method):
    """Take two steps of a method in one, on one batch."""

    of: sv.methods.DpSgd

    def init(self, problem: Any, agent: Any) -> Any:
        return self.of.init(problem, agent)

    def step(self, problem: Any, state: Any, agent: Any) -> Any:
        return agent.loop(2, lambda state, agent: self.of.step(problem, state, agent), state)


def test_two_levels_under_one_noise_are_the_laws_own_business() -> None:
    own, other = np.array([1.0, 2.0]), np.array([3.0, 1.0])
    gaussian, none = LAWS["gaussian"].terms(own, own + other)
    back, _ = LAWS["gaussian"].terms(other, own + other)
    np.testing.assert_allclose(gaussian + back, (own + other) ** 2)
    assert none == ()
    with pytest.raises(ValueError, match="both levels under one Laplace noise"):
        LAWS["laplace"].terms(own, own + other)


@pytest.mark.parametrize("kind", LAWS)
def test_gains_are_differences_of_log_densities(kind: str) -> None:
    """Against SciPy, in every coordinate; half the shift is told apart."""
    from scipy import stats

    law = {"gaussian": stats.norm, "laplace": stats.laplace}[kind]
    value, shift, scale = jnp.linspace(-3, 3, 41), 0.7, 1.3
    wanted = law.logpdf(np.asarray(value) - shift, scale=scale) - law.logpdf(np.asarray(value), scale=scale)
    got = LAWS[kind].gain(value, jnp.float32(shift), jnp.float32(scale))
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    assert np.abs(LAWS[kind].gain(value, jnp.float32(shift / 2), jnp.float32(scale)) - wanted).max() > 0.1


def test_coins_are_the_law_of_the_draw() -> None:
    """The chances that an audit averages over are those of exact draws."""
    import random

    source = random.Random(0)
    for kind in (sv.Poisson(3), sv.FixedSize(3), sv.WithReplacement(3)):
        coin, seen = kind.coin(8), np.zeros(4)
        for _ in range(4000):
            seen[int(np.sum(kind.exact(8, 0, source) == 5))] += 1
        np.testing.assert_allclose(np.pad(coin, (0, 4 - len(coin))), seen / 4000, atol=0.03)
    assert all(kind.coin(8) is None for kind in (sv.Full(), sv.OnePass(2), sv.Stream()))
    assert sv.WithReplacement(3).coin(1).tolist() == [0, 0, 0, 1]
    assert jax.tree.leaves([kind for kind in sampling.KINDS if kind.once]) == [sv.OnePass]
