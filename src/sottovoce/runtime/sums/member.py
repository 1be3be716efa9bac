"""Answer for an agent whose records lie with all parties: draw a part of its batches, add a share to its sums.

Example: the program of a run with ``trust=sv.Sum()`` has one agent. At its step 7 it draws a batch, so each party draws
the part of its own rows. It releases a gradient, so each party adds up its own rows of the batch, adds its share of the
noise, masks that and says it. The total of all is divided, and the program of every party goes on from the same mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jax.extend.core import JaxprEqn

from sottovoce.privacy import exact_gate
from sottovoce.privacy.discrete import GridRelease
from sottovoce.privacy.exact_gate import Noised
from sottovoce.privacy.gate import Reading
from sottovoce.privacy.sampling import Rows
from sottovoce.runtime.lone_agent import LoneAnswers
from sottovoce.runtime.sums.keys import Secrets
from sottovoce.runtime.sums.roster import Roster
from sottovoce.runtime.sums.session import Session
from sottovoce.runtime.sums.talk import total
from sottovoce.runtime.transport import MessageId


@dataclass(frozen=True, eq=False)
class Member:
    """Draw one party's part: `own` says how many records (or units) it holds in each level."""

    session: Session
    own: Mapping[str, int]

    @classmethod
    def of(cls, own: Secrets, roster: Roster) -> "Member":
        """Begin the session of one member of a roster."""
        session = Session.begin(own, roster)
        return cls(session, {level: sizes[session.me] for level, sizes in roster.sizes})

    def batches(self, answers: LoneAnswers, equation: JaxprEqn) -> list[Rows]:
        """Draw the own rows of a batch by coins that nobody else knows, at the rate of a batch from all rows."""
        sampling, source = equation.params["sampling"], self.session.source(answers.place(equation))
        return [
            exact_gate.draw_part(sampling, self.own[level], whole, answers.t, source)
            for level, whole in answers.counts.items()
        ]

    def noised(self, answers: LoneAnswers, equation: JaxprEqn, readings: Sequence[Reading]) -> Noised:
        """Return what makes the noisy mean of all parties' sums, this one's among them.

        What is said is in the journal before: a step that is computed again says the same bytes.
        """
        place, journal = answers.place(equation), answers.journal
        id = MessageId(answers.run, answers.t, self.session.me, answers.tag(equation))

        def noised(grid: GridRelease, own: np.ndarray) -> np.ndarray:
            rows = sum(
                answers.counts[reading.function.level] * (grid.denominator // int(reading.denominator))
                for reading in readings
            )
            question = self.session.question(place, own.size, grid, rows)
            said = journal.recall(f"{place} share")
            if said is None:
                noise = grid.law.exact(question.share, own.size, self.session.source(place))
                said = [self.session.masked(question, own + noise)]
                journal.note(f"{place} share", said)
            return grid.mean(total(self.session, question, np.asarray(said[0]), answers.transport, id))

        return noised
