"""Releases, the gate, the ledger and the accountants; `published` and `sound` hold the papers' and our bounds."""

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
