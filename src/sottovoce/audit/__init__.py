"""Attacks, and what they prove: a measured lower bound on epsilon beside the claimed one.

``sv.audit(method, ...)`` is the function `audit`; the room's other parts are modules of this package.
"""

import sys
from types import ModuleType
from typing import Any

from sottovoce.audit.auditing import audit
from sottovoce.audit.bounds import Finding
from sottovoce.audit.labels import audit_labels

__all__ = ["Finding", "audit", "audit_labels"]


class _Room(ModuleType):
    """Importing any part of this package binds its name in `sottovoce`: calling that must still audit."""

    def __call__(self, *args: Any, **options: Any) -> Finding:
        return audit(*args, **options)


sys.modules[__name__].__class__ = _Room
