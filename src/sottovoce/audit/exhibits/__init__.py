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
from sottovoce.audit.exhibits.base import HEADS, Exhibit, Measurement, available, cells, run, table

__all__ = [
    "HEADS",
    "Exhibit",
    "Measurement",
    "available",
    "bambi",
    "cells",
    "dp_bilevel",
    "dpmixsgd",
    "floating_point",
    "gradient_tracking",
    "ldp_dsbo",
    "run",
    "sound_designs",
    "table",
]
