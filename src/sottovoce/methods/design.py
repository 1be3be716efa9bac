"""Define the two designs of a method: "sound", which is private as it stands, and "printed", the paper's text.

They differ in two places: how an agent reads its records, and what it sends. Example: in LDP-DSBO a sound agent
releases a clipped and noised gradient, and may then send its state as it is. A printed agent computes an un-noised
gradient, keeps its state to itself, and sends a copy of the state with noise.
"""

from collections.abc import Callable
from typing import Literal, get_args

from sottovoce.methods.agent import Agent
from sottovoce.naming import check_choice
from sottovoce.privacy.release import Release
from sottovoce.trees import Tree

Design = Literal["sound", "printed"]
Reader = Callable[..., Tree]  # agent.release or agent.mean
Average = Callable[[Release | None, Tree], Tree]


def check_design(design: str) -> None:
    """Raise ValueError unless it is one of the two.

    >>> check_design("sound")
    """
    check_choice("design", design, get_args(Design))


def channels(agent: Agent, design: Design) -> tuple[Reader, Average]:
    """Return `(read, average)`: how this design reads records, and how it averages a variable with its neighbours.

    sound:   read = agent.release (clipped and noised); the state is public and is sent as it is.
    printed: read = agent.mean (clipped, not noised, hence private); the state is sent with the release's noise, and the
             agent's own weight is put on its un-noised copy.
    """
    if design == "sound":
        return agent.release, lambda release, value: agent.mix(value)
    return agent.mean, lambda release, value: agent.mix(agent.tell(release, value), own=value)


def unproved(design: Design) -> tuple[str, ...]:
    """Return the caveat of a printed design without a proof; nothing for a sound one.

    >>> unproved("sound")
    ()
    """
    if design == "sound":
        return ()
    return ("gradients are taken at private states, which drift apart: no epsilon is proved for the messages",)
