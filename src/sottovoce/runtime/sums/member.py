"""Answer for an agent whose records lie with all parties: draw a part of its batches, add a share to its sums.

Example: the program of a run with ``trust=sv.Sum()`` has one agent. At its step 7 it draws a batch, so each party draws
the part of its own rows. It releases a gradient, so each party adds up its own rows of the batch, adds its share of the
noise, masks that and says it. The total of all is divided, and the program of every party goes on from the same mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jax.extend.core import JaxprEqn

from sottovoce.privacy import exact_gate
from sottovoce.privacy.discrete import GridRelease
from sottovoce.privacy.exact_gate import Noised
from sottovoce.privacy.gate import Reading
from sottovoce.privacy.sampling import Rows
from sottovoce.runtime.lone_agent import LoneAnswers
from sottovoce.runtime.sums.session import Question, Session
from sottovoce.runtime.sums.talk import total
from sottovoce.runtime.transport import MessageId


class Kept(Protocol):
    """Keep what a member must have again after its process was killed, or nothing."""

    def answered(self, place: str) -> np.ndarray | None:
        """Return the total of a place, if the session went on from it before the kill."""

    def keep(self, session: Session, place: str, total: np.ndarray) -> None:
        """Keep where the session is, with the total that it went on from: both or none."""


class _Nothing:
    def answered(self, place: str) -> None:
        """Return None."""

    def keep(self, session: Session, place: str, total: np.ndarray) -> None:
        """Forget it: an interrupted run begins another session."""


NOTHING: Kept = _Nothing()


@dataclass(frozen=True, eq=False)
class Member:
    """Draw one party's part: `own` says how many records (or units) it holds in each level."""

    session: Session
    own: Mapping[str, int]
    kept: Kept = NOTHING

    @classmethod
    def of(cls, session: Session, kept: Kept = NOTHING) -> "Member":
        """Return the member of a session."""
        return cls(session, {level: sizes[session.me] for level, sizes in session.roster.sizes}, kept)

    def batches(self, answers: LoneAnswers, equation: JaxprEqn) -> list[Rows]:
        """Draw the own rows of a batch by coins that nobody else knows, at the rate of a batch from all rows."""
        sampling, source = equation.params["sampling"], self.session.source(answers.place(equation))
        return [
            exact_gate.draw_part(sampling, self.own[level], whole, answers.t, source)
            for level, whole in answers.counts.items()
        ]

    def noised(self, answers: LoneAnswers, equation: JaxprEqn, readings: Sequence[Reading]) -> Noised:
        """Return what makes the noisy mean of all parties' sums, this one's among them."""
        rows = {reading.function.level: int(reading.denominator) for reading in readings}

        def noised(grid: GridRelease, own: np.ndarray) -> np.ndarray:
            most = sum(answers.counts[level] * (grid.denominator // whole) for level, whole in rows.items())
            question = self.session.question(answers.place(equation), own.size, grid, most)
            return grid.mean(self._total(answers, question, own, answers.tag(equation)))

        return noised

    def _total(self, answers: LoneAnswers, question: Question, own: np.ndarray, tag: str) -> np.ndarray:
        """Return the total of all members' sums and noise.

        What is said is in the journal before: a step that is computed again says the same bytes.
        """
        place, journal = question.place, answers.journal
        found = self.kept.answered(place)
        if found is None:
            said = journal.recall(f"{place} share")
            if said is None:
                noise = question.grid.law.exact(question.share, own.size, self.session.source(place))
                said = [self.session.masked(question, own + noise)]
                journal.note(f"{place} share", said)
            id = MessageId(answers.run, answers.t, self.session.me, tag)
            found = total(self.session, question, np.asarray(said[0]), answers.transport, id)
            self.kept.keep(self.session, place, found)
        return found
