"""sottovoce: train and tune models across parties that may not pool their data, with differential privacy.

Names are loaded when they are first used, so that the command line answers at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sottovoce import data, methods, networks, privacy, problems, schedules
    from sottovoce.accounting import account, calibrate
    from sottovoce.audit import audit
    from sottovoce.data.population import Population
    from sottovoce.estimator import PrivateLogisticRegression
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
    from sottovoce.privacy.labels import Labels
    from sottovoce.privacy.table import Table
    from sottovoce.problems import Bilevel, Minimize, MinMax
    from sottovoce.problems.columns import Columns
    from sottovoce.problems.vertical import Vertical
    from sottovoce.runtime.performance import Performance
    from sottovoce.runtime.result import Model, Result
    from sottovoce.runtime.run import run
    from sottovoce.schedules import Decay

_HOMES = {
    "account": "accounting",
    "calibrate": "accounting",
    "Model": "runtime.result",
    "Result": "runtime.result",
    "run": "runtime.run",
    "Performance": "runtime.performance",
    "Population": "data.population",
    "Table": "privacy.table",
    "PrivateLogisticRegression": "estimator",
    "Labels": "privacy.labels",
    "Columns": "problems.columns",
    "Vertical": "problems.vertical",
    "Decay": "schedules",
    **dict.fromkeys(("Bilevel", "MinMax", "Minimize"), "problems"),
    **dict.fromkeys(("Budget", "FixedSize", "Full", "Ledger", "OnePass", "Poisson"), "privacy"),
    **dict.fromkeys(("PrivacyReport", "Release", "Stream", "WithReplacement"), "privacy"),
}

__all__ = [
    "Bilevel",
    "Budget",
    "Columns",
    "Decay",
    "FixedSize",
    "Full",
    "Labels",
    "Ledger",
    "MinMax",
    "Minimize",
    "Model",
    "OnePass",
    "Performance",
    "Poisson",
    "Population",
    "PrivacyReport",
    "PrivateLogisticRegression",
    "Release",
    "Result",
    "Stream",
    "Table",
    "Vertical",
    "WithReplacement",
    "account",
    "audit",
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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        from sottovoce.naming import unknown

        raise AttributeError(unknown("name in sottovoce", name, __all__))
    value = (
        getattr(import_module(f"sottovoce.{_HOMES[name]}"), name)
        if name in _HOMES
        else import_module(f"sottovoce.{name}")
    )
    globals()[name] = value  # found once
    return value


def __dir__() -> list[str]:
    return __all__
