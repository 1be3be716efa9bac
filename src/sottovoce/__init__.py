"""sottovoce: train and tune models across parties that may not pool their data, with differential privacy."""

from sottovoce import data, methods, networks, privacy, problems, schedules
from sottovoce.accounting import account, calibrate
from sottovoce.privacy import (
    Budget,
    FixedSize,
    Full,
    Ledger,
    OnePass,
    Poisson,
    PrivacyReport,
    Release,
    Stream,
    WithReplacement,
)
from sottovoce.problems import Bilevel, Minimize, MinMax
from sottovoce.runtime.result import Model, Result
from sottovoce.runtime.run import run
from sottovoce.schedules import Decay

__all__ = [
    "Bilevel",
    "Budget",
    "Decay",
    "FixedSize",
    "Full",
    "Ledger",
    "MinMax",
    "Minimize",
    "Model",
    "OnePass",
    "Poisson",
    "PrivacyReport",
    "Release",
    "Result",
    "Stream",
    "WithReplacement",
    "account",
    "calibrate",
    "data",
    "methods",
    "networks",
    "privacy",
    "problems",
    "run",
    "schedules",
]
__version__ = "0.1.0"
