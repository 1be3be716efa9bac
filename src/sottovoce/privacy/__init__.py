"""Make private releases, and account for them: releases, the gate, the ledger and the accountants.

`published` holds the bounds that the papers print, `sound` the bounds that are proved. For example, a method makes
releases (`Release`) from batches (`Poisson`); the gate clips and noises them; the accountant turns them into epsilon;
the ledger keeps what was spent, up to a `Budget`.
"""

from sottovoce.privacy import labels, published, sound
from sottovoce.privacy.ledger import Budget, BudgetExceeded, Ledger
from sottovoce.privacy.release import Release
from sottovoce.privacy.report import PrivacyReport
from sottovoce.privacy.sampling import FixedSize, Full, OnePass, Poisson, Stream, WithReplacement

__all__ = [
    "Budget",
    "BudgetExceeded",
    "FixedSize",
    "Full",
    "Ledger",
    "OnePass",
    "Poisson",
    "PrivacyReport",
    "Release",
    "Stream",
    "WithReplacement",
    "labels",
    "published",
    "sound",
]
