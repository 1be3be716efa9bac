"""Write counts in words, and error messages for common mistakes: unknown names, wrong counts, missing packages."""

import difflib
import importlib
from collections.abc import Iterable
from numbers import Integral
from typing import Any


def how_often(count: int) -> str:
    """Say how often.

    >>> how_often(1), how_often(20)
    ('once', '20 times')
    """
    return "once" if count == 1 else f"{count} times"


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message for a wrong name: the nearest known name, and all known names.

    >>> unknown("task", "sofmax", ["softmax", "logistic"])
    "there is no task 'sofmax'; did you mean 'softmax'? (logistic, softmax)"
    >>> unknown("task", "zzz", ["softmax", "logistic"])
    "there is no task 'zzz'; choose from logistic, softmax"
    """
    names = sorted(known)
    folded = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.55)
    if close:
        return f"there is no {what} {name!r}; did you mean {folded[close[0]]!r}? ({', '.join(names)})"
    return f"there is no {what} {name!r}; choose from {', '.join(names)}" if names else f"there is no {what} {name!r}"


def optional(module: str, extra: str, what: str) -> Any:
    """Import a package that few uses need; where it is missing, the error names the extra that brings it.

    >>> optional("no_such_package", "events", "an event")
    Traceback (most recent call last):
    ...
    ValueError: an event needs the package no_such_package: pip install 'sottovoce[events]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:  # it is here, and broken
            raise
        raise ValueError(f"{what} needs the package {package}: pip install 'sottovoce[{extra}]'") from None


def check_count(name: str, value: Any) -> None:
    """Raise a ValueError unless the value is a whole number of at least 1.

    >>> check_count("steps", 2.5)
    Traceback (most recent call last):
    ...
    ValueError: steps is 2.5: it must be a whole number of at least 1
    """
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} is {value!r}: it must be a whole number of at least 1")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse what is not one of the choices.

    >>> check_choice("solve", "both", ("gap", "apart"))
    Traceback (most recent call last):
    ...
    ValueError: solve is 'both': choose 'gap' or 'apart'
    """
    known = tuple(choices)
    if value not in known:
        raise ValueError(f"{name} is {value!r}: choose {' or '.join(map(repr, known))}")
