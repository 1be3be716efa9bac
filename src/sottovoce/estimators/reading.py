"""Read X and y as scikit-learn does, with errors that show no value of a row and name a remedy that costs nothing."""

import re
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

_SCALER = "sv.DeclaredScaler({'age': {'range': (0, 120)}, 'sex': {'categories': ['F', 'M']}})"
_TEXTS = "could not convert string|dtype='numeric' is not compatible|invalid literal|unable to parse"


def validated(estimator: Any, *given: Any, **how: Any) -> Any:
    """Return what scikit-learn's `validate_data` does; its errors on values are said in words of this package.

    Its own words show the value ("could not convert string to float: 'F'"), and recommend an imputer that would learn
    from private rows.

    >>> from sottovoce import DeclaredScaler
    >>> validated(DeclaredScaler(), [["F"], ["M"]])
    Traceback (most recent call last):
    ...
    ValueError: X has texts, and numbers are needed: declare its columns: sv.DeclaredScaler({'age': ...
    """
    try:
        read = validate_data(estimator, *given, **how)
        return (_numbers(read[0]), *read[1:]) if isinstance(read, tuple) else _numbers(read)
    except ValueError as error:
        remedy = _remedy(str(error), type(estimator).__name__)
        if remedy is None:
            raise
    raise ValueError(remedy)  # not from the error, which shows the value


def _numbers(X: Any) -> Any:
    """Return X as numbers: scikit-learn leaves pandas' categories as they are."""
    return np.asarray(X, np.float64) if getattr(getattr(X, "dtype", None), "kind", "") == "O" else X


def _remedy(said: str, name: str) -> str | None:
    beside = "" if name == "DeclaredScaler" else ", in a pipeline before this estimator"
    declare = f"declare its columns{beside}: {_SCALER}"
    if re.search(_TEXTS, said, re.IGNORECASE):
        return f"X has texts, and numbers are needed: {declare}"
    found = re.search(r"Input (\w+) contains (NaN|infinity)", said)
    if found is None:
        return None
    if found[1] == "y":
        return f"y contains {found[2]}: leave these rows out by a rule that is fixed beforehand"
    return (
        f"{found[1]} contains {found[2]}: {declare}. It sets a missing value to the middle of the range, or to what "
        "missing= says. An imputer would learn from private rows, and nothing would charge that"
    )
