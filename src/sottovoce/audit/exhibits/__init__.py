"""The papers' claims under attack: each exhibit prints what is claimed, what is measured, and what is exact.

>>> sorted(available)[:3]
['bambi-controls', 'bambi-multiclass', 'bambi-reuse']
"""

from sottovoce.audit.exhibits import bambi, dp_bilevel, dpmixsgd, gradient_tracking, ldp_dsbo, machine, sound_designs
from sottovoce.audit.exhibits.base import Exhibit, Row, available, run, table

__all__ = [
    "Exhibit",
    "Row",
    "available",
    "bambi",
    "dp_bilevel",
    "dpmixsgd",
    "gradient_tracking",
    "ldp_dsbo",
    "machine",
    "run",
    "sound_designs",
    "table",
]
