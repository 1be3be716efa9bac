"""Compute the epsilon of a configured method, before a record is read: `account`.

One value, `Account`, holds all that is known: the traced step, the population, the network. The report, calibration,
the ledger's charges and the run share it. Example: ``Account.report.epsilon`` is the number in the statement, and
``Account.spent(agent, levels, range(10))`` is what the ledger writes down for the first ten steps.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sottovoce.accounting import sums
from sottovoce.accounting.composition import composed, paid
from sottovoce.accounting.renoise import renoised
from sottovoce.accounting.stand_in import trace_stand_in
from sottovoce.accounting.table import blank, table_account
from sottovoce.accounting.trace import DECLARED, Charge, Trace, trace
from sottovoce.data.overlap import REASONS
from sottovoce.data.parties import Parties
from sottovoce.data.parts import Bought
from sottovoce.data.population import Population, named
from sottovoce.methods.agent import Known
from sottovoce.methods.base import Method, Setting
from sottovoce.naming import check_count, how_often
from sottovoce.networks import Network, single
from sottovoce.privacy import accountant, attacker, discrete
from sottovoce.privacy.accountant import Adjacency, Epsilon
from sottovoce.privacy.against import MOST, Against, at_several, numbers_of_colluders
from sottovoce.privacy.mechanisms import Spent, check_delta
from sottovoce.privacy.report import PrivacyReport, merge_caveats
from sottovoce.privacy.summed import Summed
from sottovoce.privacy.table import Table
from sottovoce.privacy.trust import Sum
from sottovoce.schedules import charged, same_for_all


def account(
    method: Method,
    data: Any,
    *,
    steps: int,
    network: Network | None = None,
    delta: float | None = None,
    adjacency: Adjacency | None = None,
    problem: Any = None,
    trust: Sum | None = None,
) -> PrivacyReport:
    """Return the privacy statement of a configured method; nothing is run and no record is read.

    Args:
        method: a configured method.
        data: the parties' parts, or a `Population`: their sizes, what a unit is, and which units are held twice; or a
            `Table`, whose labels are not read: the statement then is for labels of which nothing was released before,
            and for the batches of seed 0.
        steps: how many steps the run will have.
        network: who talks to whom; needed for more than one party.
        delta: of the statement; 1e-5 by default, 0 for a table.
        adjacency: "zero-out" or "replace-one"; by default the one natural to the method's sampling.
        problem: what will be solved. Most methods release the same for every problem; the others ask for it, and so do
            bilevel ones with release_x=None. It needs the parts, or ``Population(..., record=...)``.
        trust: ``sv.Sum(colluding=1)`` for secure sums over the parties, which need no network; None, the default, for
            noise of each party's own.

    >>> import sottovoce as sv
    >>> method = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(clip=1.0, noise=0.02), sampling=sv.Poisson(100))
    >>> report = sv.account(method, sv.Population([1000] * 5), steps=200, network=sv.networks.ring(5), delta=1e-5)
    >>> round(report.epsilon, 2), report.adjacency
    (3.36, 'zero-out')
    """
    if isinstance(data, Table):
        sums.refuse_for_tables(trust)
        labels = blank(data.labels)
        about = table_account(method, data, problem, steps, 0.0 if delta is None else check_delta(delta))
        about.charge(labels)
        return about.report(labels)
    return account_of(
        method, data, steps, network, 1e-5 if delta is None else delta, adjacency, problem, trust
    ).statement


def account_of(
    method: Method,
    data: Any,
    steps: int,
    network: Network | None = None,
    delta: float = 1e-5,
    adjacency: Adjacency | None = None,
    problem: Any = None,
    trust: Sum | None = None,
) -> "Account":
    """Return the account itself; arguments as for `account`, all checked.

    >>> import sottovoce as sv
    >>> method = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(clip=1.0, noise=0.02), sampling=sv.Poisson(100))
    >>> len(account_of(method, sv.Population([1000]), steps=200).trace.charges)
    1
    """
    if not isinstance(method, Method):
        raise TypeError(f"method is {method!r}: give a configured method, such as sv.methods.DpSgd(rate=0.1, ...)")
    check_count("steps", steps)
    delta = check_delta(delta)
    known = known_of(data, steps, network, trust)
    if problem is not None and not known.records:
        raise TypeError("problem= needs to know a record: give the parties' parts, or Population(..., record=...)")
    return account_for(method, known, delta, adjacency, problem)


def known_of(data: Any, steps: int, network: Network | None, trust: Sum | None = None) -> Known:
    """Return what everybody knows of a run: who takes part and with whom, for how long, and the shapes of a record.

    With `trust`, the program is that of one agent, whose records the parties hold.

    >>> known_of([np.zeros((5, 2), np.float32)], steps=3, network=None).records
    {'records': ShapeDtypeStruct(shape=(2,), dtype=float32)}
    """
    held = data if isinstance(data, Population) else Parties.of(data)
    population = Population.of(held)
    if trust is not None:
        summed = Summed(sums.checked(trust, network), population)
        return Known(summed.program, single(), steps, held.records, summed)
    return Known(population, check_network(network, population.parties), steps, held.records)


def account_for(
    method: Method, known: Known, delta: float, adjacency: Adjacency | None = None, problem: Any = None
) -> "Account":
    """Trace a method for a run that is known, and return its account.

    >>> import sottovoce as sv
    >>> method = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(clip=1.0, noise=0.02), sampling=sv.Full())
    >>> account_for(method, known_of(sv.Population([1000]), steps=9, network=None), delta=1e-5).adjacency
    'replace-one'
    """
    try:
        hash(method)
    except TypeError as error:
        raise TypeError(f"{type(method).__name__} has a field that cannot be hashed ({error}): use tuples") from error
    sums.before(method, problem, known)
    traced = trace_stand_in(method, known) if problem is None else trace(method, problem, known)
    sums.after(method, traced)
    _check_per_agent(traced.charges, known.population.parties)
    _check_laws(traced.charges)
    relation = accountant.check_adjacency(adjacency or default_adjacency(traced.charges))
    return Account(method, problem, traced, traced.charges, delta, relation)


def check_network(network: Network | None, parties: int) -> Network:
    """Return the network if it fits this number of parties; one party needs none.

    >>> check_network(None, 1).size
    1
    """
    if network is None:
        if parties > 1:
            raise ValueError(f"{parties} parties need a network, for example sv.networks.ring({parties})")
        return single()
    if type(network) is not Network:
        raise TypeError(f"network is a {type(network).__name__}: make one, for example sv.networks.from_matrix(W)")
    if network.size != parties:
        raise ValueError(
            f"the network has {network.size} agents, but there are {parties} parties: make one of {parties}"
        )
    return network


@dataclass(frozen=True, eq=False)
class Account:
    """Compute what a configured method spends, and which agents pay it."""

    method: Method
    problem: Any  # None for stand-ins
    trace: Trace
    charges: tuple[Charge, ...]  # those of the trace; while a calibration searches, with other noise
    delta: float
    adjacency: Adjacency

    @property
    def population(self) -> Population:
        """Return who takes part, and among how many records each one's are (`Summed.charged`)."""
        known = self.trace.known
        return known.population if known.summed is None else known.summed.charged

    @property
    def network(self) -> Network:
        """Return who talks to whom."""
        return self.trace.known.network

    @property
    def steps(self) -> int:
        """Return how many steps the run has."""
        return self.trace.known.steps

    @cached_property
    def setting(self) -> Setting:
        """Return what a method's own bounds may depend on."""
        return Setting(self.trace.known.population.sizes, self.steps, self.network, self.delta)

    @cached_property
    def tells(self) -> bool:
        """Say whether messages carry private state, which standard composition does not cover."""
        return any(charge.sampling is None for charge in self.charges)

    def louder(self, factor: float) -> "Account":
        """Return what the same charges cost with their noise multiplied: a trial, which has no trace of its own."""
        charges = tuple(replace(charge, release=charge.release.louder(factor)) for charge in self.charges)
        return replace(self, method=self.method.louder(factor), charges=charges)

    def of_louder(self, factor: float) -> "Account":
        """Return the account of a run with the noise multiplied.

        Nothing is traced, unless the method's own code reads its noise: then the noise may change more than a draw.
        """
        method = self.method.louder(factor)
        traced = renoised(self.trace, self.method, method)
        if traced is None:
            return account_for(method, self.trace.known, self.delta, self.adjacency, self.problem)
        return replace(self, method=method, trace=traced, charges=traced.charges)

    @cached_property
    def kinds(self) -> np.ndarray:
        """Return one number per agent: agents with equal numbers pay the same, so each kind is computed only once."""
        population, agents = self.population, self.population.parties
        differ = any(not same_for_all(charge.release.scale) for charge in self.charges)
        both = np.array([population.in_both_levels(agent) for agent in range(agents)])
        purchases = list(zip(*population.purchases.values()))
        first = np.array([purchases.index(held) for held in purchases])
        table = np.stack([*population.counts.values(), both, first, np.arange(agents) if differ else np.zeros(agents)])
        return np.unique(table, axis=1, return_inverse=True)[1].reshape(-1)

    def groups(self, agent: int) -> dict[str, tuple[str, ...]]:
        """Return the levels that one unit of an agent may be in: apart, or together where some unit is in both."""
        levels = tuple(self.population.sizes)
        return {"both levels": levels} if self.population.in_both_levels(agent) else {name: (name,) for name in levels}

    @cached_property
    def report(self) -> PrivacyReport:
        """Return the privacy statement."""
        agents = self.population.parties
        kinds = np.arange(agents) if self.tells else self.kinds  # a proof about messages may use an agent's weights
        first = [int(np.argmax(kinds == kind)) for kind in range(kinds.max() + 1)]
        bounds = [self._bound(agent) for agent in first]
        per_agent = tuple(float(bounds[kind][0]) for kind in kinds)
        worst = bounds[int(np.argmax([float(epsilon) for epsilon, _ in bounds]))]
        return PrivacyReport(
            epsilon=max(per_agent),
            delta=self.delta,
            per_agent=per_agent,
            per_level={level: float(epsilon) for level, epsilon in worst[1].items()},
            published=self.method.published(self.setting),
            design="printed" if self.tells else self.method.design_name,
            adjacency=self.adjacency,
            unit=self.population.unit,
            accountant=worst[0].accountant,
            library=accountant.library(),
            method=type(self.method).__name__,
            steps=self.steps,
            events=tuple(_describe(charge, self.steps) for charge in self.charges),
            caveats=merge_caveats(
                self._caveats(worst[0]), self.population.facts.words, self.method.caveats(self.setting)
            ),
            parties=self.population.names,
            states=self.trace.covered,
        )

    def epsilon_of(self, agents: Iterable[int]) -> float:
        """Return the largest epsilon of some agents."""
        return max(float(self._bound(agent)[0]) for agent in agents)

    @cached_property
    def statement(self) -> PrivacyReport:
        """Return the report, with what the worst party releases and what an attacker can gain.

        A search for noise does not need these two, so `report` leaves them out. The gain is the largest of all parties:
        one with a smaller epsilon may lose more at the rates that are shown.
        """
        if self.tells or not self.report.private:
            return self.report
        agent = int(np.argmax(self.report.per_agent))
        steps, found = range(self.steps), []
        for each in np.unique(self.kinds, return_index=True)[1].tolist():
            for levels in self.groups(each).values():
                spent, overflow = self.spent(each, levels, steps), self.overflow(each, levels, steps)
                found.append(attacker.highest_power(spent, attacker.RATES, self.adjacency, overflow=overflow))
        costliest = max(self.report.per_level, key=self.report.per_level.__getitem__)
        return replace(
            self.report,
            attack=tuple(zip(attacker.RATES, map(max, zip(*found)))),
            spent=self.spent(agent, self.groups(agent)[costliest], steps),
            against=self._against(agent, self.groups(agent)[costliest]),
        )

    def _against(self, agent: int, levels: Sequence[str]) -> Against | None:
        """Return whom a sum protects from, and what more parties find; None where there is no sum."""
        if (summed := self.trace.known.summed) is None:
            return None
        steps, parties, trust = range(self.steps), summed.holders.parties, summed.trust
        grid = min(self._grid_steps(charge) for charge in self.charges)
        secret = any(charge.sampling is not None and charge.sampling.amplifies for charge in self.charges)
        counts = numbers_of_colluders(trust.colluding, parties, costly=secret)
        left = {count: trust.left(parties, count, grid) for count in counts}
        spent, overflow = self.spent(agent, levels, steps), self.overflow(agent, levels, steps)
        several = {
            held: at_several(spent, held, self.delta, self.adjacency, held * overflow)
            for held in range(2, min(MOST, parties) + 1)
        }
        found = {count: self.louder(one).report.epsilon if one else math.inf for count, one in left.items()}
        return Against(trust.colluding, parties, tuple(found.items()), tuple(several.items()))

    def _grid_steps(self, charge: Charge) -> float:
        """Return the least noise that is charged to a release, in steps of the grid on which it is drawn exactly."""
        assert charge.sampling is not None
        times = np.arange(self.steps if charge.phase == "step" else 1)
        sizes = [int(self.population.counts[level][0]) for level in charge.levels]
        denominator = math.lcm(*(int(charge.sampling.denominator(n, 0)) for n in sizes))
        noise = float(np.min(charged(charge.release.scale, times, 0)))
        return noise * denominator / discrete.on_grid(charge.release, denominator).step

    def spent(self, agent: int, levels: Sequence[str], steps: range) -> Spent:
        """Return what one unit of an agent's `levels` takes part in during `steps`: mechanisms and their counts.

        What `init` releases is counted with step 0.
        """
        purchases = paid(self.population.bought(agent, levels), steps)
        return (*purchases, *composed(self.charges, self.population, agent, levels, steps))

    def _bound(self, agent: int) -> tuple[Epsilon, dict[str, Epsilon]]:
        """Return an agent's epsilon: the largest over its levels, or their composition where units are in both."""
        if self.tells:
            covered = self._drawn_as_stated(agent) and not self.population.bought(agent, self.population.sizes)
            proved = self.method.message_bound(self.setting, agent) if covered else None
            known = proved if proved is not None and proved >= 0 else math.inf  # nan is no bound, and no maximum
            epsilon = Epsilon(known, delta=self.delta, adjacency=self.adjacency, accountant="the design's own bound")
            return epsilon, dict.fromkeys(self.population.sizes, epsilon)
        by_level = {
            name: accountant.epsilon(
                self.spent(agent, levels, range(self.steps)),
                self.delta,
                self.adjacency,
                overflow=self.overflow(agent, levels, range(self.steps)),
            )
            for name, levels in self.groups(agent).items()
        }
        return max(by_level.values(), key=float), by_level

    def _drawn_as_stated(self, agent: int) -> bool:
        """Say whether a run draws the noise that a design's own proof reads off the schedules."""
        times = np.arange(self.steps)
        return all(
            bool(np.all(charged(charge.release.scale, times, agent) >= charge.release.scale(times, agent)))
            for charge in self.charges
        )

    def overflow(
        self, agent: int, levels: Sequence[str], steps: range, bought: Sequence[Bought] | None = None
    ) -> float:
        """Return the chance that some padded batch of an agent's `levels` does not fit its array during `steps`.

        What `init` draws is counted with step 0, and so are the deltas of purchases: of all, or of those in `bought`.
        """
        purchases = self.population.bought(agent, levels) if bought is None else bought
        total = sum(one.delta for one in purchases) if 0 in steps else 0.0
        for level in levels:
            n = int(self.population.counts[level][agent])
            seen = {(charge.phase, charge.batch): charge for charge in self.charges if level in charge.levels}
            for charge in seen.values():
                times = (0 in steps) if charge.phase == "init" else len(steps)
                total += charge.sampling.overflow(n) * charge.batches * times if charge.sampling is not None else 0.0
        return total

    def _caveats(self, worst: Epsilon) -> list[str]:
        caveats = []
        if self.tells:
            caveats.append("messages carry private state: standard composition does not cover them")
            if changed := self.method.changed_since_proof:
                caveats.append(
                    f"{type(self.method).__name__} changes {', '.join(changed)} of a design, whose own bound is not "
                    "about that: prove one, and return it by a `proved` of its own"
                )
        if not math.isfinite(worst):
            caveats.append(
                "epsilon is infinite: a release has no clip or (almost) no noise, or its messages have no proved bound"
            )
        caveats += self._level_caveats()
        if self.population.spread and self.trace.known.summed is None:
            caveats.append("some units have records with several parties: epsilon is of what one party holds of them")
        caveats.append(
            "taken as public: sizes of the parties, settings, preprocessing, starting values, and plain numbers inside "
            "losses and methods (texts and shapes too)"
        )
        caveats += [DECLARED] * self.trace.declares
        return caveats

    def _level_caveats(self) -> list[str]:
        """Say which parties pay for one level and which for both, and by which rule."""
        if len(self.population.sizes) == 1:
            return []
        by_rule: dict[str, list[int]] = {}
        for party, rule in enumerate(self.population.apart):
            known = rule or ("seen" if self.population.seen_in_both_levels(party) else "unknown")
            by_rule.setdefault(known, []).append(party)
        said = {
            "seen": "some units have records in both levels: they are charged for both",
            "unknown": "nothing says that the levels hold different records: they are charged for both (split them by "
            "sv.data.levels, name units, or give Levels(upper, lower, disjoint=True))",
        }
        for how, reason in REASONS.items():
            said[how] = (
                f"levels hold disjoint records ({reason}), split without looking at values: each is charged for its "
                "own level"
            )
        several = len(by_rule) > 1
        return [
            said[rule] + (f" (parties {named(self.population, parties)})" if several else "")
            for rule, parties in by_rule.items()
        ]


def default_adjacency(charges: Sequence[Charge]) -> Adjacency:
    """Return what bounds are usually stated in: zero-out if Poisson or with replacement, replace-one otherwise.

    >>> default_adjacency([])
    'replace-one'
    """
    random = [charge.sampling for charge in charges if charge.sampling is not None and charge.sampling.amplifies]
    return "zero-out" if random and all(sampling.adjacency == "zero-out" for sampling in random) else "replace-one"


def _check_per_agent(charges: Sequence[Charge], agents: int) -> None:
    for charge in charges:
        listed = charge.release.scale.agents
        if listed is not None and listed != agents:
            raise ValueError(
                f"release {charge.release.name!r} lists noise for {listed} agents, but there are {agents}: give one "
                "number, or one per agent"
            )


def _check_laws(charges: Sequence[Charge]) -> None:
    """Let each law refuse what its terms are not about."""
    for charge in charges:
        alone = charge.phase == "step" and charge.batches * charge.times == 1
        try:
            charge.release.law.check(charge.once, alone)
        except ValueError as error:
            raise ValueError(f"release {charge.release.name!r} {error}") from None


def _describe(charge: Charge, steps: int) -> str:
    release, often = charge.release, charge.batches * charge.times * (1 if charge.phase == "init" else steps)
    first = float(np.asarray(release.scale(0, 0)))
    what = f"{release.name}: {release.mechanism} noise {first:.4g}"
    if charge.sampling is None:
        return f"{what} on a message of private state, {how_often(often)}"
    return f"{what} on a mean clipped to {release.clip:g} ({release.norm}), {charge.sampling}, {how_often(often)}"
