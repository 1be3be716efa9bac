"""Say what a secure sum charges and what it draws: one object for both, so that they cannot be confused.

Several parties run the program of one curator, an agent whose records lie in many places. Example: five hospitals with
400 patients each run the program of one table with 2000. Who *acts* is agent 0 of that program. Who *holds* records,
and answers for them, is each of the five.

>>> five = Summed(Sum(colluding=1), Population([400] * 5))
>>> five.program.sizes, five.charged.sizes
({'records': (2000,)}, {'records': (2000, 2000, 2000, 2000, 2000)})
>>> round(five.drawn(1.0), 3)    # charged is 1
1.118
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sottovoce.data.population import Population
from sottovoce.privacy.trust import Sum


@dataclass(frozen=True)
class Summed:
    """Hold whom the parties trust, and who holds records.

    A `Release` of the program has the noise that is *charged*, S. All parties together *draw* `drawn` of it, because up
    to `trust.colluding` of them may subtract theirs. The account asks `charged`, and never `factor`. A place that draws
    asks `drawn`. What a method reads of its noise (`Agent.noise`) is what is drawn.
    """

    trust: Sum
    holders: Population

    def __post_init__(self) -> None:
        self.trust.check(self.holders.parties)

    @property
    def factor(self) -> float:
        """Return what is drawn over what is charged: sqrt(m / (m - t))."""
        return self.trust.factor(self.holders.parties)

    def drawn(self, scale: Any) -> Any:
        """Return the scale of all noise that is drawn where `scale` is charged."""
        return scale * self.factor

    @cached_property
    def program(self) -> Population:
        """Return the one agent that the program is written for: it has everybody's records.

        A person's records at two parties are two units, here as deployed: nobody compares ids across parties.
        """
        return Population(
            {level: (sum(sizes),) for level, sizes in self.holders.sizes.items()},
            unit=self.holders.unit,
            names=("all",),
            facts=self.holders.facts,
            record=self.holders.record,
        )

    @cached_property
    def charged(self) -> Population:
        """Return the parties as the account sees them: each one's records are among everybody's.

        What one unit changes of a mean is its clip over everybody's number, whoever holds it.
        """
        sizes = {level: (sum(sizes),) * self.holders.parties for level, sizes in self.holders.sizes.items()}
        return replace(self.holders, sizes=sizes)
