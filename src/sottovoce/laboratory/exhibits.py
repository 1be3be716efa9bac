"""Attack the papers' claims: each exhibit prints what is claimed, what is measured, and what is exact.

>>> sorted(available)[:3]
['bambi-controls', 'bambi-hessian', 'bambi-multiclass']
"""

# Importing a module registers its exhibits.
import sottovoce.laboratory.bambi.exhibits
import sottovoce.laboratory.dp_bilevel.exhibits
import sottovoce.laboratory.dpmixsgd.exhibits
import sottovoce.laboratory.floating_point
import sottovoce.laboratory.gradient_tracking.exhibits
import sottovoce.laboratory.ldp_dsbo.exhibits
import sottovoce.laboratory.sound_designs  # noqa: F401
from sottovoce.laboratory.exhibit import HEADS, Exhibit, Measurement, available, cells, run, table

__all__ = ["HEADS", "Exhibit", "Measurement", "available", "cells", "run", "table"]
