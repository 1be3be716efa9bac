"""Choose what a user would have to guess: settings by public facts (`auto`), variants by a private score (`select`).

>>> from sottovoce.tuning import auto
>>> auto.__name__
'auto'
"""

from sottovoce.tuning.auto import Plan, auto
from sottovoce.tuning.select import Selected, select

__all__ = ["Plan", "Selected", "auto", "select"]
