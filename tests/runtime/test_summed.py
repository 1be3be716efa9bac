"""A run by secure sums is one table's run: it charges S and draws more, and refuses what a sum cannot serve."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.marks import few
from tests.methods import contract

import sottovoce as sv
from sottovoce.data.parties import Parties
from sottovoce.methods import available
from sottovoce.privacy import gate
from sottovoce.privacy.summed import Summed
from sottovoce.problems.linear_model import LinearModel, PartyWeights
from sottovoce.runtime import jobs

WIDE = 20_000  # numbers, each with noise of its own: their spread is known to half a percent


def flat(x0: Any = None) -> sv.Minimize:
    """A loss without a slope: a step is noise alone."""
    return sv.Minimize(lambda x, r: 0.0 * jnp.sum(x) * jnp.sum(r), jnp.zeros(WIDE))


def sgd(noise: float = 0.5, **fields: Any) -> sv.methods.DpSgd:
    return sv.methods.DpSgd(**{"rate": 1.0, "gradient": sv.Release(1.0, noise), "sampling": sv.Full(), **fields})


def held(*sizes: int) -> list[np.ndarray]:
    return [np.full((n, 2), number, np.float32) for number, n in enumerate(sizes)]


@pytest.mark.filterwarnings("ignore:.*has not moved|.*delta is")
@pytest.mark.parametrize("case", few([(3, 1, True), (3, 1, False), (6, 3, True)], [(3, 1, True)]))
def test_the_account_charges_s_and_the_place_draws_more(case: tuple[int, int, bool]) -> None:
    parties, colluding, share = case
    data, trust = held(*[40] * parties), sv.Sum(colluding)
    how = sv.Performance(share=share, progress=False)
    result = sv.run(flat(), data, sgd(0.5), steps=1, trust=trust, performance=how)
    drawn = float(np.std(result.x)) / 0.5
    assert abs(drawn / math.sqrt(parties / (parties - colluding)) - 1) < 0.02  # and 1 is at least 0.22 away
    table = sv.account(sgd(0.5), sv.Population([40 * parties]), steps=1)
    assert result.privacy.epsilon == table.epsilon
    assert result.privacy.per_agent == (table.epsilon,) * parties
    loud = sv.account(sgd(0.5 * drawn), sv.Population([40 * parties]), steps=1)
    assert loud.epsilon < 0.9 * table.epsilon  # what would be stated if the drawn noise were charged


@pytest.mark.filterwarnings("ignore:.*has not moved|.*delta is")
def test_members_of_one_program_draw_each_their_own_factor() -> None:
    common = {"problem": flat(), "data": held(40, 40, 40), "steps": 1, "performance": sv.Performance(progress=False)}
    runs = [
        {**common, "method": sgd(noise), "trust": trust} for noise in (0.5, 0.25) for trust in (sv.Sum(1), sv.Sum(0))
    ]
    found = [float(np.std(end.x)) for end in sv.run_many(runs)]  # type: ignore[union-attr]
    assert np.allclose(found, [0.5 * math.sqrt(1.5), 0.5, 0.25 * math.sqrt(1.5), 0.25], rtol=0.02)


def test_a_method_reads_the_noise_that_is_drawn() -> None:
    seen: list[Any] = []

    class Reads(sv.methods.DpSgd):
        def step(self, problem: Any, state: Any, agent: Any) -> Any:
            seen.append(float(agent.noise(self.gradient)))
            return super().step(problem, state, agent)

    reads = Reads(1.0, sv.Release(1.0, 0.5), sv.Full())
    sv.account(reads, held(40, 40, 40), steps=1, trust=sv.Sum(1), problem=sv.Minimize(lambda x, r: x @ r, jnp.zeros(2)))
    assert seen
    assert np.allclose(seen, 0.5 * math.sqrt(1.5))


def test_one_object_says_both() -> None:
    both = Summed(sv.Sum(1), sv.Population([100, 300, 500], names=("north", "mid", "south")))
    assert both.program.sizes == {"records": (900,)}
    assert both.charged.sizes == {"records": (900,) * 3}
    assert both.charged.names == ("north", "mid", "south")
    assert both.drawn(2.0) == 2.0 * both.factor == 2.0 * math.sqrt(1.5)


CURATED = {
    "DpNewton": "plain",
    "DpSgd": None,
    "DpSgda": None,
    "LdpDsbo": "sound",
    "DpMixSgd": "sound",
    "DpBilevel": None,
    "DpGrid": None,
}


@pytest.mark.filterwarnings("ignore:.*delta is|.*differs|.*moved")
@pytest.mark.slow
@pytest.mark.parametrize("name", CURATED)
def test_a_sum_is_one_table_with_the_noise_that_is_drawn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under one key for both, parties by sums compute what one table with noise sqrt(m / (m - t)) S computes."""
    examples = available[name].examples()
    method = contract.noisy(examples[CURATED[name] or next(iter(examples))]).louder(8.0)
    case = contract.case_for(method)
    monkeypatch.setattr(
        jobs, "agent_keys", lambda seed, program, records: jax.random.split(jax.random.key(7), len(records))
    )
    pooled = [jax.tree.map(lambda *leaves: np.concatenate(leaves), *case.parts)]
    how = {"steps": 3, "every": 3, "performance": sv.Performance(progress=False)}
    summed = sv.run(case.problem, case.parts, method, trust=sv.Sum(1), **how)
    table = sv.run(case.problem, pooled, method.louder(math.sqrt(4 / 3)), **how)
    quiet = sv.run(case.problem, pooled, method, **how)

    def flat_of(result: Any) -> np.ndarray:
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves((result.x, result.y))])

    np.testing.assert_allclose(flat_of(summed), flat_of(table), rtol=1e-5, atol=1e-5)
    assert not np.allclose(flat_of(summed), flat_of(quiet), rtol=1e-3, atol=1e-3)
    assert summed.privacy.epsilon == quiet.privacy.epsilon > table.privacy.epsilon


def test_a_person_at_two_parties_is_clipped_at_each() -> None:
    """As deployed, where nobody compares ids: two units of a clip each, and not one."""
    ids = np.zeros(4, int)
    parts = [sv.data.Part(np.ones((4, 1), np.float32), np.arange(4), unit=ids) for _ in range(3)]
    apart = [sv.data.Part(np.ones((4, 1), np.float32), np.arange(4), unit=ids + k) for k in range(3)]
    together = Parties.of(parts).together()
    assert together.by_level["records"][0].units == 3
    problem = sv.Minimize(lambda x, r: -100 * jnp.sum(x * r), jnp.zeros(1))
    method = sv.methods.DpSgd(1.0, sv.Release(1.0, 1e-6), sv.Full())
    moved = [float(sv.run(problem, data, method, steps=1, trust=sv.Sum(1)).x[0]) for data in (parts, apart)]
    assert np.allclose(moved, 1.0, atol=1e-4)  # three clips over three units; one clip would give 1/3 or 1


def test_levels_keep_their_units_apart_by_party() -> None:
    def levels(first: int) -> sv.data.Levels:
        ids = np.arange(6) + first
        return sv.data.Levels(*(sv.data.Part(np.zeros(6), rows, unit=ids) for rows in (np.arange(2), np.arange(1, 6))))

    together = Parties.of([levels(0), levels(0)]).together().by_level
    assert [part.units for (part,) in together.values()] == [4, 10]
    upper, lower = (set(np.asarray(part.unit)[part.rows].tolist()) for (part,) in together.values())
    assert len(upper & lower) == 2  # row 1 of each party is in both of its levels


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*delta is")
def test_calibrated_sums_reach_epsilon_and_resume(tmp_path: Any) -> None:
    problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(2))
    given: dict[str, Any] = {"steps": 20, "epsilon": 1.0, "trust": sv.Sum(1), "out": tmp_path / "run", "every": 5}
    method = sgd(rate=0.2, sampling=sv.Poisson(30))
    first = sv.run(problem, held(100, 60, 40), method, **given)
    assert 0.998 < first.privacy.epsilon <= 1.0
    tuned = sv.calibrate(method, sv.Population([100, 60, 40]), steps=20, epsilon=1.0, trust=sv.Sum(1))
    table = sv.calibrate(method, sv.Population([200]), steps=20, epsilon=1.0)
    assert tuned == table  # what is charged is what one table charges
    again = sv.run(problem, held(100, 60, 40), method, **given, resume=True)
    assert np.array_equal(first.x, again.x)
    names = {name for entry in sv.Ledger(tmp_path / "run" / "ledger.jsonl").entries.values() for name in entry.names}
    assert names == {"0", "1", "2"}
    with pytest.raises(ValueError, match="another run"):
        sv.run(problem, held(100, 60, 40), method, **{**given, "trust": sv.Sum(0)}, resume=True)


class Named(sv.methods.DpSgd):
    """A method that asks who it is."""

    def step(self, problem: Any, state: Any, agent: Any) -> Any:
        moved = super().step(problem, state, agent)
        return moved._replace(x=moved.x * jnp.where(agent.index > 0, 2.0, 1.0))


class Keeps(sv.methods.DpSgd):
    """A method whose state follows from records without noise."""

    def init(self, problem: Any, agent: Any) -> Any:
        return {"x": problem.x0, "kept": problem.x0}

    def step(self, problem: Any, state: Any, agent: Any) -> Any:
        batch = agent.sample(sv.Full())
        slope = agent.release(self.gradient, problem.loss, at=state["x"], batch=batch)
        return {"x": state["x"] - slope, "kept": agent.mean(self.gradient, problem.loss, at=state["x"], batch=batch)}


def line() -> sv.Minimize:
    return sv.Minimize(lambda x, r: x @ r, jnp.zeros(2))


def columns() -> sv.Table:
    return sv.Table(sv.Columns([np.zeros((4, 1))] * 2), sv.Labels([0, 1, 0, 1], classes=2))


def saddle(**known: Any) -> sv.MinMax:
    return sv.MinMax(lambda x, y, r: x @ r * y[0], jnp.zeros(2), jnp.ones(3) / 3, **known)


REFUSED: dict[str, tuple[Any, str]] = {
    "two parties": (lambda: sv.account(sgd(), sv.Population([9, 9]), steps=1, trust=sv.Sum(1)), "at least 3 parties"),
    "a network": (
        lambda: sv.run(line(), held(9, 9, 9), sgd(), steps=1, trust=sv.Sum(1), network=sv.networks.ring(3)),
        "leave network out",
    ),
    "batches of a fixed size": (lambda: told(sgd(sampling=sv.FixedSize(4))), "do not make up one"),
    "batches with replacement": (lambda: told(sgd(sampling=sv.WithReplacement(4))), "do not make up one"),
    "one pass": (lambda: told(sgd(sampling=sv.OnePass(4))), "do not make up one"),
    "a stream": (lambda: told(sgd(sampling=sv.Stream())), "do not make up one"),
    "Laplace noise": (lambda: told(sgd(gradient=sv.Release(1.0, 0.5, "laplace"))), "do not add up to such noise"),
    "a private leaf": (
        lambda: sv.account(
            Keeps(1.0, sv.Release(1.0, 0.5), sv.Full()), held(9, 9, 9), steps=1, trust=sv.Sum(1), problem=line()
        ),
        "keeps .*kept.* without noise",
    ),
    "noise per agent": (lambda: told(sgd(noise=(0.5, 0.4, 0.3))), "one noise for all"),
    "rates per agent": (lambda: told(sgd(rate=(0.5, 0.4, 0.3))), "one step for all"),
    "a printed design": (
        lambda: sv.account(
            sv.methods.DpMixSgd(0.1, 0.1, sv.Full(), sv.Release(1.0, 0.5), sv.Release(1.0, 0.5), design="printed"),
            sv.Population([9, 9, 9]),
            steps=2,
            trust=sv.Sum(1),
        ),
        "private state",
    ),
    "weights of parties": (
        lambda: sv.account(
            sv.methods.DpSgda(0.1, 0.1, sv.Full(), sv.Release(1.0, 0.5), sv.Release(1.0, 0.5)),
            held(9, 9, 9),
            steps=1,
            trust=sv.Sum(1),
            problem=saddle(weighted=PartyWeights(LinearModel(lambda r: r, lambda s, r: s[0], 1.0, 1.0), price=1.0)),
        ),
        "weighs parties",
    ),
    "an agent's number": (
        lambda: sv.account(
            Named(1.0, sv.Release(1.0, 0.5), sv.Full()), held(9, 9, 9), steps=1, trust=sv.Sum(1), problem=line()
        ),
        "asks for its agent's number",
    ),
    "no sum": (lambda: sv.run(line(), held(9, 9, 9), sgd(), steps=1, trust="sum"), "give sv.Sum"),
    "a table of columns": (
        lambda: sv.account(sgd(), columns(), steps=1, trust=sv.Sum(1)),
        "a server between",
    ),
}  # fmt: skip


def told(method: Any) -> sv.PrivacyReport:
    return sv.account(method, sv.Population([9, 9, 9]), steps=2, trust=sv.Sum(1))


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_sum_cannot_serve_is_refused_before_work(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, words = REFUSED[what]
    monkeypatch.setattr(gate, "noised", None)  # nothing is drawn
    with pytest.raises((ValueError, TypeError), match=words):
        call()
