"""Keep the log of FLARE's processes short: others decide how often FLARE complains, and how long its lines are."""

import logging
import time
from collections import Counter

_LINES, _LETTERS = 100, 1000  # per hour and place in FLARE's code; per line
_HOUR = 3600.0


class Few(logging.Filter):
    """Let each place in the code write a hundred lines per hour, and cut long ones.

    >>> few, line = Few(), logging.LogRecord("nvflare", logging.ERROR, "a.py", 7, "bad frame %s", ("x" * 5000,), None)
    >>> sum(few.filter(line) for _ in range(1000)), len(line.getMessage())
    (100, 1000)
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen, self._since = Counter[tuple[str, int]](), time.monotonic()

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether a line is written."""
        if time.monotonic() - self._since > _HOUR:
            self._seen.clear()
            self._since = time.monotonic()
        place = record.pathname, record.lineno
        self._seen[place] += 1
        if self._seen[place] > _LINES:
            return False
        record.msg, record.args = record.getMessage()[:_LETTERS], ()
        return True
