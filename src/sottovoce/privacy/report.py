"""State what is guaranteed to whom, and what is not.

For example: "each agent's epsilon is at most 2 at delta 1e-05, per record, zero-out adjacency, by PLD".
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sottovoce.privacy.against import Against
from sottovoce.privacy.attacker import RATES, power_of
from sottovoce.privacy.events import dp_event, technical
from sottovoce.privacy.ledger_line import decode_spent, encode_spent
from sottovoce.privacy.mechanisms import Spent
from sottovoce.shown import glance

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Drawn = Literal["", "simulated", "secret", "exact"]
_DRAWN: dict[str, tuple[str, ...]] = {
    "": (),
    "simulated": (
        "Noise: simulated from a seed. Anybody who knows the seed can remove it. This result shows how well the method "
        "works, and must not be released.",
    ),
    "secret": ("Noise: from a secret key, in floating point. Epsilon and delta are those of the ideal mechanism.",),
    "exact": (
        "Noise: exact, from random bits of the operating system. Epsilon and delta hold for the program as it ran.",
    ),
}
_COUNTED = frozenset({
    "record", "label", "row", "patient", "person", "customer", "client", "user", "case", "household", "student",
    "pupil", "member", "visit", "column", "account", "device", "site", "employee", "participant", "subject", "citizen",
    "unit",
})  # fmt: skip
LISTED = 20  # parties up to which each one's epsilon is listed


@dataclass(frozen=True)
class PrivacyReport:
    """Hold the epsilon of a configured method, per agent, against everybody who sees the agent's messages.

    Under secure sums it is against everybody who sees the totals, with so many parties as `against` says.

    Guarantee (design "sound"): for every agent i, the messages it sends during the run are
    ``(per_agent[i], delta)``-differentially private for one `unit` of its data under `adjacency`, whatever the other
    agents do. `epsilon` is the largest. `published` is what the method's paper prints for this configuration.
    """

    epsilon: float
    delta: float
    per_agent: tuple[float, ...]
    per_level: dict[str, float]
    published: float | None
    design: str
    adjacency: str
    unit: str
    accountant: str
    library: str
    method: str
    steps: int
    events: tuple[str, ...]
    caveats: tuple[str, ...]
    parties: tuple[str, ...] = ()  # their names, in the order of `per_agent`
    attack: tuple[tuple[float, float], ...] = ()  # false-positive rates, and the highest true-positive rates at them
    drawn: Drawn = ""  # how the noise of the run was drawn; empty before a run
    spent: Spent = ()  # what the party with the largest epsilon releases; none where no mechanism describes it
    states: bool = True  # whether the states that a run ends with are covered too, and not its messages alone
    against: Against | None = (
        None  # under secure sums: from how many colluding parties it protects, and what others find
    )

    @property
    def private(self) -> bool:
        """Say whether anything is guaranteed."""
        return bool(np.isfinite(self.epsilon))

    @property
    def covered(self) -> bool:
        """Say whether the guarantee is for the states that a run ends with, every leaf of them.

        This is the one rule of what a result may call covered. Figures of `evaluate` are no state: no statement covers
        them.
        """
        return self.private and self.states

    @property
    def seen(self) -> str:
        """Name what an attacker may see of a run."""
        if not self.states:
            return "the messages between the parties, but not what a party holds in the end: that has no noise"
        several = len(self.per_agent) > 1 or self.unit == "label"
        return "the messages between the parties, and the result" if several else "the result"

    @property
    def adversary(self) -> str:
        """Name whom the guarantee protects from."""
        return f"everybody who sees {self.seen}" if self.against is None else self.against.adversary

    def statement(self) -> str:
        """Write one sentence to attach to a model."""
        if not self.private:
            return f"No differential privacy is guaranteed ({self.method}, {self.design} design): epsilon is infinite."
        spread = min(self.per_agent)
        what = "" if self.states else ", for its messages and not for what it ends with,"
        sums = "" if self.against is None else f", {self.against.briefly},"
        who = f"each agent's epsilon{what}{sums} is at most {rounded_up(self.epsilon, 4)}"
        if spread < self.epsilon * 0.995:
            who += f" (the lowest {rounded_up(spread, 4)})"
        return (
            f"{self.method}, {self.design} design, {self.steps} steps: {who} at delta {self.delta:g}, per {self.unit}, "
            f"{self.adjacency} adjacency, by {self.accountant} ({self.library})."
        )

    def words(self) -> tuple[str, ...]:
        """Say in plain words who is protected, against whom, what an attacker can gain, and what is public."""
        if not self.private:
            return ("Protected: nobody. No noise, or no proof, stands between the records and this result.",)
        several = len(self.per_agent) > 1
        unit = unit_of(self.unit)
        held = "one record" if unit == "record" else f"all records of one {unit}"
        tested, others, found = f"one {unit} took part", f"{_plural(unit)} that did not", "those that did"
        if unit == "label":
            held, tested = "the label of one row, and not its features", "a row has a certain label"
            others, found = "rows without it", "the rows with it"
        where = (
            " that one party holds. If two parties hold data of a person, the person pays at both"
            if several and unit != "label" and self.against is None
            else " that one party holds"
            if self.against is not None
            else ""
        )
        (rate, power), *rest = self.power()
        more = "".join(f"; for {100 * rate:g} %, at most {_percent(power)} %" for rate, power in rest)
        return (
            f"Protected: {held}{where}.",
            f"Against: {self.adversary}, even if they know all other records, the settings and the program.",
            *self.by_sums(),
            f"What they can gain: they test whether {tested}. If they accept a false alarm for {100 * rate:g} % of the "
            f"{others}, they find at most {_percent(power)} % of {found}{more}.",
            "Public: the sizes of the parties, the settings, and what the notes list.",
            *_DRAWN[self.drawn],
        )

    def by_sums(self) -> tuple[str, ...]:
        """Say of secure sums what more parties find, what a person at several pays, and what masks assume."""
        if self.against is None:
            return ()
        unit = unit_of(self.unit)
        more = [(count, epsilon) for count, epsilon in self.against.colluders if count > self.against.colluding]
        found = ", ".join(f"{count} find {rounded_up(epsilon, 3)}" for count, epsilon in more)
        paid = ", ".join(f"at {count} parties {rounded_up(epsilon, 3)}" for count, epsilon in self.against.several)
        return (
            *((f"More parties together: of the {self.against.parties}, {found} (epsilon).",) * bool(more)),
            *(
                (f"Held by several parties: each clips its own, so the same {unit} pays {paid} (epsilon).",)
                * bool(paid)
            ),
            "Assumed: parties follow the protocol, and nobody breaks the masks (X25519, SHA-256, ChaCha20). "
            "What this run and others cost together holds against as many parties as the weakest of them.",
        )

    @property
    def meaning(self) -> str:
        """Say in one sentence what the guarantee means for one person: the first thing to read.

        >>> told = {"epsilon": 1.0, "delta": 0.0, "attack": [], **_ANY}
        >>> PrivacyReport.from_dict(told | {"unit": "record"}, Path("result.json")).meaning
        'An attacker tests whether one record took part, and allows itself 1 false alarm in 100. It finds ...'
        """
        if not self.private:
            return "Nobody is protected: no noise, or no proof, stands between the records and this result."
        if self.unit == "label":
            return (
                "An attacker tests whether a row has a certain label, and allows itself 1 false alarm in 100 rows "
                f"without it. It finds at most {self.found} in 100 of the rows that have it; guessing finds 1 in 100."
            )
        return (
            f"An attacker tests whether one {unit_of(self.unit)} took part, and allows itself 1 false alarm in 100. It "
            f"finds at most {self.found} in 100 of those who did; guessing finds 1 in 100."
        )

    @property
    def found(self) -> str:
        """Return how many of 100 who took part an attacker finds at most, at 1 false alarm in 100, rounded up."""
        return rounded_up(100 * min(1.0, dict(self.power())[0.01]), 2)

    def __repr__(self) -> str:
        return f"PrivacyReport({self.statement()})"

    def _repr_html_(self) -> str:
        told = [line.partition(": ")[::2] for line in self.words()]
        return glance("Privacy statement", [("Statement", self.statement()), *told], self.meaning)

    def power(self) -> tuple[tuple[float, float], ...]:
        """Return false-positive rates, and the highest true-positive rate of any attacker at each.

        From the composed privacy loss where it is known (`sottovoce.privacy.attacker`), else from epsilon and delta.

        >>> told = {"epsilon": 1.0, "delta": 0.0, "attack": [], **_ANY}
        >>> PrivacyReport.from_dict(told, Path("result.json")).power()[0]
        (0.001, 0.00271...)
        """
        return self.attack or tuple(zip(RATES, power_of(self.epsilon, self.delta, RATES)))

    @property
    def dp_event(self) -> "DpEvent":
        """Return what the party with the largest epsilon releases, as an event of dp-accounting.

        An accountant of that library finds about the same epsilon (see `sottovoce.privacy.events.dp_event` for the
        relation to give it). `UnsupportedDpEvent` stands where no mechanism describes the run: a choice among variants,
        labels, a design with a bound of its own. `NonPrivateDpEvent` stands where nothing is guaranteed. It needs the
        extra `events`.

        >>> import sottovoce as sv
        >>> method = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(clip=1.0, noise=0.02), sampling=sv.Poisson(100))
        >>> sv.account(method, sv.Population([1000]), steps=200).dp_event
        SelfComposedDpEvent(event=PoissonSampledDpEvent(sampling_probability=0.09999...,
        event=GaussianDpEvent(noise_multiplier=2.0)), count=200)
        """
        return dp_event(self.spent if self.private else None)

    def technical(self) -> tuple[str, ...]:
        """Say what the party with the largest epsilon releases by the names of other libraries.

        A `noise_multiplier` is that of all releases from one batch together.

        >>> import sottovoce as sv
        >>> method = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(clip=1.0, noise=0.02), sampling=sv.Poisson(100))
        >>> sv.account(method, sv.Population([1000]), steps=200).technical()
        ('noise_multiplier 2, sampling_probability 0.1, 200 times',)
        """
        return technical(self.spent)

    def of_the_best(self, epsilon: float, delta: float, words: str, seeded: bool = False) -> "PrivacyReport":
        """Return the statement of a model that was chosen among trials, of which this report is one: `words` say how.

        What one trial releases is not what an attacker sees of the choice, so nothing of it is left but its settings.
        `seeded` says that a seed drew something of the choice.
        """
        if self.against is not None:
            raise ValueError(
                "a choice among trials (sv.select) is for trials that nobody sees, and everybody sees the totals of a "
                "secure sum: choose among runs of one table, or use DpGrid, which pays for all candidates"
            )
        return replace(
            self,
            epsilon=epsilon,
            delta=delta,
            per_agent=(epsilon,),
            per_level=dict.fromkeys(self.per_level, epsilon),
            accountant="random stopping (Papernot and Steinke 2022)",
            events=(*self.events, words),
            attack=(),
            spent=(),
            drawn="simulated" if seeded else self.drawn,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {**asdict(self), "spent": encode_spent(self.spent)}

    @classmethod
    def from_dict(cls, data: Any, file: Path) -> "PrivacyReport":
        """Make a report from what `to_dict` returned; `file`, where it was stored, is named in errors."""
        try:
            lists = {name: tuple(data[name]) for name in ("per_agent", "events", "caveats", "parties")}
            attack = tuple((float(rate), float(power)) for rate, power in data.get("attack", ()))
            against = Against.from_dict(data.get("against"))
            spent = decode_spent(data.get("spent", ()))
            return cls(**{**data, **lists, "attack": attack, "spent": spent, "against": against})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{file} holds no privacy statement of this version ({type(error).__name__}: {error!s:.100}): use the "
                "version of sottovoce that wrote it, or run again"
            ) from error

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the statement line by line: each holds one thing."""
        lines = [self.statement()]
        if self.published is not None:
            lines.append(f"The paper prints epsilon {self.published:.4g} for this configuration.")
        if self.private and 1 < len(self.parties) <= LISTED:
            each = (f"{name} {rounded_up(epsilon, 4)}" for name, epsilon in zip(self.parties, self.per_agent))
            lines.append(f"  epsilon per party: {', '.join(each)}")
        lines += [f"  {line}" for line in self.words()]
        lines += [f"  {event}" for event in self.events]
        return [*lines, *(f"  note: {caveat}" for caveat in self.caveats)]


def unit_of(column: str) -> str:
    """Return what a unit is called: "patient" for the column patient_id.

    >>> unit_of("patient_id")
    'patient'
    """
    return "unit" if column.lower() == "id" else column.removesuffix("_id").replace("_", " ")


def units_of(counted: str) -> str:
    """Return what is counted, in the plural.

    >>> units_of("patient_id, upper level"), units_of("rows"), units_of("zper")
    ('patients, upper level', 'rows', 'units “zper”')
    """
    if counted in ("columns", "rows"):
        return counted
    unit, comma, level = counted.partition(",")
    return f"{_plural(unit_of(unit))}{comma}{level}"


def _plural(unit: str) -> str:
    """Return the plural of a common word; the name of a column may be none."""
    return f"{unit}s" if unit in _COUNTED else f"units “{unit}”"


def _percent(power: float) -> str:
    """Write a rate as a percentage with three digits, rounded up."""
    return rounded_up(100 * min(power, 1.0), 3)


_ANY: dict[str, Any] = {  # the rest of a report, for examples
    **dict.fromkeys(("per_agent", "events", "caveats", "parties"), ()), "per_level": {}, "published": None,
    **dict.fromkeys(("design", "adjacency", "unit", "accountant", "library", "method"), ""), "steps": 1,
}  # fmt: skip


def merge_caveats(*groups: Sequence[str]) -> tuple[str, ...]:
    """Return every caveat once, in order.

    >>> merge_caveats(["one", "two"], ["two", "three"])
    ('one', 'two', 'three')
    """
    return tuple(dict.fromkeys(caveat for group in groups for caveat in group))


def rounded_up(epsilon: float, digits: int) -> str:
    """Write a number >= 0 with this many digits, rounded up, so that what is written is guaranteed too.

    >>> rounded_up(1.9991, 3), rounded_up(2.0001, 3), rounded_up(0.34561, 4), rounded_up(math.inf, 4)
    ('2', '2.01', '0.3457', 'infinite')
    """
    if epsilon == 0:
        return "0"
    if math.isinf(epsilon):
        return "infinite"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) + 1 - digits)
    return f"{math.ceil(epsilon / unit * (1 - 1e-12)) * unit:.{digits}g}"
