"""Attack the papers' claims: each exhibit prints what is claimed, what is measured, and what is exact.

>>> sorted(available)[:3]
['bambi-controls', 'bambi-hessian', 'bambi-multiclass']
"""

from sottovoce.audit.exhibits import (
    bambi,
    dp_bilevel,
    dpmixsgd,
    floating_point,
    gradient_tracking,
    ldp_dsbo,
    sound_designs,
)
from sottovoce.audit.exhibits.base import Exhibit, Measurement, available, run, table

__all__ = [
    "Exhibit",
    "Measurement",
    "available",
    "bambi",
    "dp_bilevel",
    "dpmixsgd",
    "floating_point",
    "gradient_tracking",
    "ldp_dsbo",
    "run",
    "sound_designs",
    "table",
]
