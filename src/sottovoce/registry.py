"""Find the methods: each module of `sottovoce.methods` and `sottovoce.papers` is imported, so none needs an entry.

One entry there is: of the methods over columns, the one that is taken where nobody names one.

>>> available["DpSgd"].__name__, available["LdpDsbo"].__name__
('DpSgd', 'LdpDsbo')
"""

import importlib
import pkgutil

from sottovoce import methods, papers
from sottovoce.methods.base import Method
from sottovoce.methods.column_method import ColumnMethod
from sottovoce.naming import unknown


def _discover() -> dict[str, type[Method]]:
    for folder in (methods, papers):
        for module in pkgutil.walk_packages(folder.__path__, prefix=f"{folder.__name__}."):
            importlib.import_module(module.name)
    ours = (f"{methods.__name__}.", f"{papers.__name__}.")
    return {name: kind for name, kind in sorted(Method.registry.items()) if kind.__module__.startswith(ours)}


available: dict[str, type[Method]] = _discover()
over_columns: dict[str, type[ColumnMethod]] = {
    name: kind for name, kind in available.items() if issubclass(kind, ColumnMethod)
}
usual_over_columns = over_columns["Bambi"]  # what method = "auto" and the estimator take: it tunes


def find(name: str) -> type[Method]:
    """Return a method by its name, also one of a user's own; for an unknown name, the error names the nearest one.

    >>> find("DpSgb")
    Traceback (most recent call last):
    ...
    AttributeError: there is no method 'DpSgb'; did you mean 'DpSgd'? (...)
    """
    if name not in Method.registry:
        raise AttributeError(unknown("method", name, available))
    return Method.registry[name]
