"""`account` and `calibrate`: the epsilon of a method before a record is read, and the noise for a wanted epsilon."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
from scipy.optimize import brentq

from sottovoce.data.parts import Levels
from sottovoce.methods.base import Method, Setting
from sottovoce.naming import check_count
from sottovoce.networks import Network, single
from sottovoce.privacy import accountant
from sottovoce.privacy.accountant import Adjacency, Epsilon, Mechanism
from sottovoce.privacy.mechanisms import Spent
from sottovoce.privacy.release import Release
from sottovoce.privacy.report import PrivacyReport, merge_caveats
from sottovoce.privacy.sampling import FixedSize, OnePass, Sampling
from sottovoce.runtime.agent import SINGLE
from sottovoce.runtime.recorder import Charge, charges
from sottovoce.runtime.store import as_part, facts
from sottovoce.schedules import same_for_all

M = TypeVar("M", bound=Method)


def account(
    method: Method,
    *,
    sizes: Sequence[Any] | Mapping[str, Any],
    steps: int,
    network: Network | None = None,
    delta: float = 1e-5,
    adjacency: Adjacency | None = None,
    unit: str = "record",
    shared_units: bool = False,
    spread: bool = False,
    problem: Any = None,
) -> PrivacyReport:
    """The privacy statement of a configured method; nothing is run and no record is read.

    Args:
        sizes: each agent's number of records (or units), or its records; ``Levels(upper, lower)`` for two record sets.
        network: who talks to whom; needed as soon as there is more than one agent.
        adjacency: "zero-out" or "replace-one"; by default the one natural to the method's sampling.
        shared_units: units have records in both levels, so that they pay for both.
        spread: units have records with several parties; epsilon is of what one of them holds, and a caveat says so.
            If `sizes` are the records themselves, these three are read off them.

    >>> import sottovoce as sv
    >>> method = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(clip=1.0, noise=0.02), sampling=sv.Poisson(100))
    >>> report = sv.account(method, sizes=[1000] * 5, steps=200, network=sv.networks.ring(5), delta=1e-5)
    >>> round(report.epsilon, 2), report.adjacency
    (3.36, 'zero-out')
    """
    if (known := _records_given(sizes)) is not None:
        sizes, unit, shared_units, spread = (known[name] for name in ("sizes", "unit", "shared_units", "spread"))
    by_level = as_sizes(sizes)
    agents = len(next(iter(by_level.values())))
    network = check_network(network, agents)
    check_count("steps", steps)
    if not 0 <= delta < 1:
        raise ValueError(f"delta is {delta}: it must lie in [0, 1); 1e-5, or below 1/n, is usual")
    notes = charges(method, by_level, steps, network, problem)
    _check_per_agent(notes, agents)
    relation = accountant.check_adjacency(adjacency or default_adjacency(notes))
    setting = Setting({level: tuple(n.tolist()) for level, n in by_level.items()}, steps, network, delta)
    told = any(note.sampling is None for note in notes)
    which = np.arange(agents) if told else kinds(notes, by_level)  # a proof about messages may use an agent's weights
    first = [int(np.argmax(which == kind)) for kind in range(which.max() + 1)]
    bounds = [_agent_bound(method, notes, by_level, i, setting, relation, shared_units) for i in first]
    per_agent = tuple(float(bounds[kind][0]) for kind in which)
    worst = bounds[int(np.argmax([float(bound) for bound, _ in bounds]))]
    return PrivacyReport(
        epsilon=max(per_agent),
        delta=delta,
        per_agent=per_agent,
        per_level={level: float(epsilon) for level, epsilon in worst[1].items()},
        published=method.published(setting),
        design="printed" if told else method.design_name,
        adjacency=relation,
        unit=unit,
        accountant=worst[0].accountant,
        library=accountant.library(),
        method=type(method).__name__,
        steps=steps,
        events=tuple(_describe(note, steps) for note in notes),
        caveats=merge_caveats(_caveats(notes, by_level, worst[0], shared_units, spread), method.caveats(setting)),
    )


def calibrate(method: M, *, epsilon: float, delta: float = 1e-5, tolerance: float = 1e-3, **setting: Any) -> M:
    """The method with its noise scaled so that the worst agent's epsilon is the wanted one.

    All releases keep their ratio to each other; the result's epsilon lies within `tolerance` below the target, never
    above it. Takes the keywords of `account`.

    >>> import sottovoce as sv
    >>> rough = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(clip=1.0, noise=0.02), sampling=sv.Poisson(100))
    >>> tuned = sv.calibrate(rough, epsilon=1.0, sizes=[1000] * 5, steps=200, network=sv.networks.ring(5))
    >>> report = sv.account(tuned, sizes=[1000] * 5, steps=200, network=sv.networks.ring(5))
    >>> 0.999 <= report.epsilon <= 1.0
    True
    """
    if not epsilon > 0 or not math.isfinite(epsilon):
        raise ValueError(f"epsilon is {epsilon}: give a positive number")
    setting |= _records_given(setting.get("sizes", ())) or {}  # once, not for every noise that is tried
    unbounded = [release.name for release in method.releases() if not release.private]
    if unbounded or not method.releases():
        raise ValueError(
            f"releases {unbounded} have no clip or no noise, so there is nothing to scale: "
            "give each a finite clip and any positive noise (only the ratios matter)"
        )

    @cache
    def excess(log_factor: float) -> float:
        reached = account(method.louder(math.exp(log_factor)), delta=delta, **setting).epsilon
        return (
            math.log(max(reached, 1e-12)) - math.log(epsilon * (1 - tolerance / 2)) if math.isfinite(reached) else 50.0
        )

    if excess(0.0) >= 50.0:  # too little noise for a finite epsilon, or a design without a bound at any noise
        report = account(method.louder(1e12), delta=delta, **setting)
        if not math.isfinite(report.epsilon):
            raise ValueError(f"no noise level helps: {report.statement()} {' '.join(report.caveats)}")
    low, high = _bracket(excess)
    root = float(brentq(excess, low, high, xtol=tolerance / 8, rtol=1e-12, maxiter=60))
    while excess(root) > math.log1p(tolerance / 2) * 0.9:  # the last step must land on the safe side
        root += tolerance / 4
    return method.louder(math.exp(root))


def _bracket(excess: Any) -> tuple[float, float]:
    """Log-factors around the root: epsilon falls as noise grows."""
    width = 1.0
    while width < 64:
        low, high = (-width, 0.0) if excess(0.0) < 0 else (0.0, width)
        if excess(low) >= 0 >= excess(high):
            return low, high
        width *= 2
    raise ValueError("the wanted epsilon is out of reach by scaling the noise: change the clip, batch or steps")


def as_sizes(sizes: Sequence[Any] | Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Numbers of records by level, one entry an agent.

    >>> as_sizes([10, 20])
    {'records': array([10, 20])}
    >>> sorted(as_sizes([Levels(5, 15)]))
    ['lower', 'upper']
    """
    if isinstance(sizes, Mapping):
        if set(sizes) not in ({SINGLE}, {"upper", "lower"}):
            raise ValueError(f"sizes name the levels {sorted(sizes)}: give 'records', or 'upper' and 'lower'")
        by_level = {level: np.asarray(n, dtype=np.int64) for level, n in sizes.items()}
    elif sizes and isinstance(sizes[0], Levels):
        by_level = {level: np.array([_count(getattr(part, level)) for part in sizes]) for level in ("upper", "lower")}
    else:
        by_level = {SINGLE: np.array([_count(part) for part in sizes], dtype=np.int64)}
    for level, n in by_level.items():
        if n.size == 0 or (n < 1).any():
            raise ValueError(f"sizes ({level}) are {n.tolist()}: every party needs at least one record")
    return by_level


def _records_given(sizes: Any) -> dict[str, Any] | None:
    """What is known of the records if they were given in place of their numbers."""
    if isinstance(sizes, Mapping) or not len(sizes):
        return None
    first = sizes[0].upper if isinstance(sizes[0], Levels) else sizes[0]
    return None if isinstance(first, (int, np.integer)) else facts(sizes)


def _count(part: Any) -> int:
    return int(part) if isinstance(part, (int, np.integer)) else as_part(part).units


def check_network(network: Network | None, agents: int) -> Network:
    """The network, if it fits so many parties; one party needs none."""
    if network is None:
        if agents > 1:
            raise ValueError(f"{agents} parties need a network, for example sv.networks.ring({agents})")
        return single()
    if not isinstance(network, Network):
        raise TypeError(f"network is a {type(network).__name__}: make one, for example sv.networks.from_matrix(W)")
    if network.size != agents:
        raise ValueError(f"the network has {network.size} agents, but there are {agents} parties")
    return network


def spent(
    notes: Sequence[Charge], sizes: Mapping[str, np.ndarray], agent: int, levels: Sequence[str], steps: range
) -> Spent:
    """What one record of an agent's `levels` takes part in during `steps`, as mechanisms and their counts.

    What `init` releases is counted with step 0.
    """
    counts: Counter[Mechanism] = Counter()
    groups: dict[tuple[Any, ...], list[Charge]] = {}
    for note in notes:
        if note.sampling is not None:
            groups.setdefault((note.phase, note.batch), []).append(note)
    for (phase, _), group in groups.items():
        times = np.asarray(steps if phase == "step" else range(0 in steps), dtype=np.int64)
        for level in levels:
            for mechanism, count in _group(group, sizes, agent, level, times, levels):
                counts[mechanism] += count
    return tuple(counts.items())


def _group(
    group: list[Charge],
    sizes: Mapping[str, np.ndarray],
    agent: int,
    level: str,
    times: np.ndarray,
    paying: Sequence[str],
) -> list[tuple[Mechanism, int]]:
    """The releases that share a batch: one mechanism at each step (privacy is lost jointly, not separately).

    A unit with records in both levels moves both means of a release that reads both, under one noise. Gaussian noise is
    the sum of two, in any proportion: with shares like the levels' sensitivities a and b, what each level pays is
    a (a + b) and b (a + b), and (a + b)^2 together.
    """
    own = [note for note in group if level in note.levels]
    if not own or times.size == 0:
        return []
    sampling, n = own[0].sampling, int(sizes[level][agent])
    assert sampling is not None
    gaussian = np.zeros(times.size)
    laplace: list[np.ndarray] = []
    for note in own:
        inverse = _inverse_multiplier(note.release, sampling, n, agent, times)
        both = [
            _inverse_multiplier(note.release, sampling, int(sizes[other][agent]), agent, times)
            for other in note.levels
            if other in paying
        ]
        if note.release.mechanism == "gaussian":
            gaussian += note.times * inverse * sum(both)
        elif len(both) > 1:
            raise ValueError(
                f"release {note.release.name!r} reads both levels under one Laplace noise, and some units are in both: "
                "no sum of two covers it. Use Gaussian noise, or keep each unit in one level"
            )
        else:
            laplace += [inverse] * note.times
    table = np.stack([gaussian, *laplace])
    if isinstance(sampling, OnePass):  # a record takes part in one step only: it pays for the dearest
        table = table.max(axis=1, keepdims=True)
    rows, how_often = np.unique(table, axis=1, return_counts=True)
    event = sampling.event(n)
    return [
        (
            Mechanism(gaussian=float(row[0]), laplace=tuple(row[1:].tolist()), amplification=event),
            int(count) * own[0].batches,
        )
        for row, count in zip(rows.T, how_often)
    ]


def _inverse_multiplier(release: Release, sampling: Sampling, n: int, agent: int, times: np.ndarray) -> np.ndarray:
    """Zero-out sensitivity over noise scale at each step; infinite where nothing is guaranteed."""
    scale = np.broadcast_to(np.asarray(release.scale(times, agent), dtype=np.float64), times.shape)
    sensitivity = release.clip / np.broadcast_to(np.asarray(sampling.denominator(n, times), np.float64), times.shape)
    with np.errstate(divide="ignore"):
        return np.where(scale > 0, sensitivity / np.where(scale > 0, scale, 1.0), np.inf)


def bound(mechanisms: Spent, overflow: float, delta: float, adjacency: Adjacency) -> Epsilon:
    """Epsilon of what was spent; `overflow`, the chance that any padded batch did not fit, is paid out of delta."""
    infinite = any(
        not math.isfinite(m.gaussian) or not all(map(math.isfinite, m.laplace)) or not math.isfinite(m.pure)
        for m, _ in mechanisms
    )
    if infinite:
        return Epsilon(math.inf, delta=delta, adjacency=adjacency, accountant="none")
    if overflow == 0.0:
        return accountant.epsilon(mechanisms, delta, adjacency)
    for reserve in (1e-6, 1e-2):
        epsilon = accountant.epsilon(mechanisms, delta * (1 - reserve), adjacency)
        if overflow * (1 + math.exp(min(float(epsilon), 700.0))) <= reserve * delta:
            return epsilon
    # Beyond an epsilon of about 20 the chance of an overflow, times e^epsilon, is no longer negligible against delta.
    return Epsilon(math.inf, delta=delta, adjacency=adjacency, accountant="none")


def _agent_bound(
    method: Method,
    notes: Sequence[Charge],
    sizes: Mapping[str, np.ndarray],
    agent: int,
    setting: Setting,
    adjacency: Adjacency,
    shared_units: bool,
) -> tuple[Epsilon, dict[str, Epsilon]]:
    """An agent's epsilon: the larger of its levels', for a record is in one of them, or their composition."""
    if any(note.sampling is None for note in notes):
        proved = method.proved(setting, agent)
        known = proved if proved is not None else math.inf
        epsilon = Epsilon(known, delta=setting.delta, adjacency=adjacency, accountant="the design's own bound")
        return epsilon, dict.fromkeys(sizes, epsilon)
    steps = range(setting.steps)
    groups = {"both levels": tuple(sizes)} if shared_units else {level: (level,) for level in sizes}
    by_level = {
        name: bound(
            spent(notes, sizes, agent, levels, steps),
            sum(_overflow(notes, int(sizes[level][agent]), level, setting.steps) for level in levels),
            setting.delta,
            adjacency,
        )
        for name, levels in groups.items()
    }
    return max(by_level.values(), key=float), by_level


def _overflow(notes: Sequence[Charge], n: int, level: str, steps: int) -> float:
    seen = {(note.phase, note.batch): note for note in notes if note.sampling is not None and level in note.levels}
    return sum(
        note.sampling.overflow(n) * note.batches * (1 if note.phase == "init" else steps)
        for note in seen.values()
        if note.sampling is not None
    )


def default_adjacency(notes: Sequence[Charge]) -> Adjacency:
    """Replace-one where the sampler needs it or nothing is sampled, zero-out for the other random samplers."""
    samplings = [note.sampling for note in notes if note.sampling is not None]
    if any(isinstance(sampling, FixedSize) for sampling in samplings):
        return "replace-one"
    return "zero-out" if any(sampling.amplifies for sampling in samplings) else "replace-one"


def kinds(notes: Sequence[Charge], sizes: Mapping[str, np.ndarray]) -> np.ndarray:
    """A number for each agent: equal numbers are charged alike, so that ten thousand equal agents cost one."""
    agents = len(next(iter(sizes.values())))
    differ = any(not same_for_all(note.release.scale) for note in notes)
    table = np.stack([*sizes.values(), np.arange(agents) if differ else np.zeros(agents)])
    return np.unique(table, axis=1, return_inverse=True)[1].reshape(-1)


def _check_per_agent(notes: Sequence[Charge], agents: int) -> None:
    for note in notes:
        listed = note.release.scale.agents
        if listed is not None and listed != agents:
            raise ValueError(f"release {note.release.name!r} lists noise for {listed} agents, but there are {agents}")


def _describe(note: Charge, steps: int) -> str:
    release, often = note.release, note.batches * note.times * (1 if note.phase == "init" else steps)
    first = float(np.asarray(release.scale(0, 0)))
    what = f"{release.name}: {release.mechanism} noise {first:.4g}"
    if note.sampling is None:
        return f"{what} on a message of private state, {often} times"
    return f"{what} on a mean clipped to {release.clip:g} ({release.norm}), {note.sampling}, {often} times"


def _caveats(
    notes: Sequence[Charge], sizes: Mapping[str, np.ndarray], worst: Epsilon, shared: bool, spread: bool
) -> list[str]:
    caveats = []
    if any(note.sampling is None for note in notes):
        caveats.append("messages carry private state: standard composition does not cover them")
    if not math.isfinite(worst):
        caveats.append(
            "epsilon is infinite: a release has no clip or (almost) no noise, or no bound is proved for its messages"
        )
    if len(sizes) == 2 and not shared:
        caveats.append(
            "levels hold disjoint records, split without looking at values: each is charged for its own level"
        )
    if shared:
        caveats.append("some units have records in both levels: they are charged for both")
    if spread:
        caveats.append("some units have records with several parties: epsilon is of what one party holds of them")
    caveats.append("sizes of the parties, hyper-parameters and preprocessing are taken as public")
    return caveats
