"""Run F2SA: first-order bilevel optimisation without privacy, the ceiling of what a penalty method reaches.

Kwon, Kwon, Wright and Nowak, "A fully first-order method for stochastic bilevel optimization", ICML 2023.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sottovoce.methods.base import Method
from sottovoce.papers.dp_bilevel.method import Descent, DpBilevel
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling
from sottovoce.schedules import Decay, Schedule

_OPEN, _FULL = Release.open(), Full()
_FIVE_STEPS = Descent(5, 0.3, averaged=False)
_GROWING = Decay(10.0, -1 / 3)


@dataclass(frozen=True)
class F2sa(DpBilevel):
    """Run F2SA: `DpBilevel` without clipping and noise, with separate steps for yg and yl and a growing penalty.

    >>> F2sa(step_x=0.1).design_name
    'non-private'
    """

    inner: Descent = _FIVE_STEPS
    release_y: Release = _OPEN
    release_penalised: Release = _OPEN
    sampling: Sampling = _FULL
    release_x: Release | None = _OPEN
    penalty: Schedule | float = _GROWING
    solve: Literal["gap", "apart"] = "apart"

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return the defaults: after 600 steps the penalty is 84."""
        return {"growing penalty": cls(step_x=0.2)}
