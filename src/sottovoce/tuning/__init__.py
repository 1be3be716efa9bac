"""Choose what a user would have to guess: settings from public facts (`auto`), and variants by a private score (`select`).

>>> from sottovoce.tuning import auto
>>> auto.__name__
'auto'
"""

from sottovoce.tuning.auto import Plan, auto

__all__ = ["Plan", "auto"]
