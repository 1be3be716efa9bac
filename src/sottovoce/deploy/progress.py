"""Read what a site says about how far it is: other people's words and numbers, of a known form or none.

A site may leave out a field, send another thing in its place, or a text of a million letters; so may the server, which
hands it on. What does not fit is left out, and nobody's program ends because of it.
"""

from collections.abc import Mapping
from typing import Any

from sottovoce.defused import visible

STATES = ("starting", "running", "done", "failed", "paused", "stopped", "not reached")
_LONGEST = 300  # letters of a reason
_MOST = 10**9  # steps


def understood(said: Any) -> dict[str, Any]:
    """Return what a site says, as far as it has a known form.

    >>> understood({"state": "running", "round": 3, "steps": "\\x1b[2J", "waits for": ["south"], "more": "x" * 10**6})
    {'state': 'running', 'round': 3}
    >>> understood({"state": "failed"}), understood(None)
    ({'state': 'failed', 'why': 'it does not say why'}, {'state': 'not reached'})
    """
    told: Mapping[Any, Any] = said if isinstance(said, Mapping) else {}
    state = told.get("state")
    found: dict[str, Any] = {"state": state if isinstance(state, str) and state in STATES else "not reached"}
    for name in ("round", "steps"):
        if type(value := told.get(name)) is int and 0 <= value <= _MOST:
            found[name] = value
    for name in ("since", "seen"):
        if isinstance(value := told.get(name), int | float) and 0 <= value < 1e12:
            found[name] = value
    for name in ("why", "waits for"):
        if isinstance(value := told.get(name), str):
            found[name] = visible(" ".join(value[:_LONGEST].split()))
    if found["state"] in ("failed", "paused", "stopped"):
        found.setdefault("why", "it does not say why")
    return found
