"""Make what a table of a run file names: its values are converted to what the parameters are annotated with.

Example: ``sampling = {kind = "poisson", batch = 50}`` becomes ``Poisson(batch=50)``: the parameter is a `Sampling`.
"""

import dataclasses
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from typing import Any

import optax
from pydantic import TypeAdapter, ValidationError

from sottovoce.closed import Closed
from sottovoce.methods.base import alternatives
from sottovoce.naming import unknown
from sottovoce.privacy.release import Release
from sottovoce.schedules import Schedule, schedule


def construct(
    make: Callable[..., Any],
    table: Mapping[str, Any],
    where: str,
    given: Mapping[str, Any] | None = None,
    calibrated: bool = False,
) -> Any:
    """Call `make` with a table's values, converted to what its parameters are annotated with.

    `given` are values from elsewhere, which the table may not set. Values that `make` has no parameter for are dropped.

    >>> from sottovoce.methods import DpSgd
    >>> table = {"rate": 0.1, "gradient": {"clip": 1.0, "noise": 0.5}, "sampling": {"kind": "poisson", "bach": 5}}
    >>> construct(DpSgd, table, "[method]")
    Traceback (most recent call last):
    ...
    ValueError: there is no key of [method].sampling 'bach'; did you mean 'batch'? (batch...)
    """
    parameters = inspect.signature(make).parameters
    hints = typing.get_type_hints(make)
    kept = {key: value for key, value in (given or {}).items() if key in parameters}
    free = [key for key in parameters if key not in kept]
    for key in table:
        if key not in free:
            raise ValueError(unknown(f"key of {where}", key, free))
    missing = [key for key in free if key not in table and parameters[key].default is inspect.Parameter.empty]
    if calibrated and make is Release and missing == ["noise"]:
        table, missing = {**table, "noise": table["clip"]}, []
    if missing:
        hint = ", or set privacy.epsilon, from which it is computed" if make is Release and missing == ["noise"] else ""
        raise ValueError(f"{where} lacks {', '.join(missing)}: add it{hint}")
    values = {key: _convert(value, hints.get(key, Any), f"{where}.{key}", calibrated) for key, value in table.items()}
    return make(**kept, **values)


def _convert(value: Any, hint: Any, where: str, calibrated: bool) -> Any:
    """Convert a TOML value to a parameter of type `hint`."""
    choices = alternatives(hint)
    kinds = {_word(kind): kind for choice in choices for kind in _concrete(choice)}
    if isinstance(value, dict) and kinds:
        return _from_table(value, kinds, where, calibrated)
    if isinstance(value, str) and value in kinds:
        return construct(kinds[value], {}, where, calibrated=calibrated)
    if Schedule in choices and isinstance(value, (int, float, list)):
        return schedule(tuple(value) if isinstance(value, list) else value)
    coded = (types.NoneType, optax.GradientTransformation)  # types that have no TOML value
    plain = tuple(choice for choice in choices if not _concrete(choice) and choice not in coded)
    if not plain:
        raise ValueError(f"{where} is {value!r}: write a table such as {_example(next(iter(kinds.values())))}")
    words = isinstance(value, bool) and bool not in plain and Any not in plain
    words |= isinstance(value, str) and set(plain) <= {int, float}
    if words:  # pydantic would take them for the number that they spell
        raise ValueError(f"{where} is {value!r}: input should be a number")
    try:
        return TypeAdapter(reduce(or_, plain)).validate_python(value)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise ValueError(f"{where} is {value!r}: {message[0].lower()}{message[1:]}") from None


def _from_table(table: dict[str, Any], kinds: dict[str, type], where: str, calibrated: bool) -> Any:
    """Build one of several dataclasses: the one that `kind` names, or the one that these keys fit."""
    options = dict(table)
    if "kind" in table and len(kinds) > 1:
        kind = str(options.pop("kind"))
        if kind not in kinds:
            raise ValueError(unknown(f"kind of {where}", kind, kinds))
        return construct(kinds[kind], options, where, calibrated=calibrated)
    fitting = [kind for kind in kinds.values() if _fits(kind, table)] or list(kinds.values())
    if len(fitting) > 1:
        shapes = "; ".join(_example(kind) for kind in kinds.values())
        raise ValueError(
            f"{where} has keys {sorted(table)}: write one of {shapes}, or name its kind ({', '.join(kinds)})"
        )
    return construct(fitting[0], options, where, calibrated=calibrated)


def _fits(kind: type, table: Mapping[str, Any]) -> bool:
    parameters = inspect.signature(kind).parameters
    required = {key for key, parameter in parameters.items() if parameter.default is inspect.Parameter.empty}
    return required <= set(table) <= set(parameters)


def _concrete(choice: Any) -> list[type]:
    """Return the public dataclasses among a type and its subclasses."""
    if not isinstance(choice, type) or choice.__module__ == "builtins":
        return []
    children: list[type] = choice.__subclasses__()
    family = [choice, *(kind for child in children for kind in _concrete(child))]
    made = [kind for kind in family if dataclasses.is_dataclass(kind) and not inspect.isabstract(kind)]
    listed = [kind for kind in made if not issubclass(kind, Closed) or _stands_in_its_module(kind)]  # else: refused
    return [kind for kind in listed if not kind.__name__.startswith("_")]


def _stands_in_its_module(kind: type) -> bool:
    return any(held is kind for held in vars(sys.modules[kind.__module__]).values())


def _example(kind: type) -> str:
    keys = [f"{key} = ..." for key in inspect.signature(kind).parameters]
    return "{" + ", ".join(keys) + "}"


def _word(kind: type) -> str:
    """Return the word for a class in run files: its `kind`, or its name with hyphens."""
    return vars(kind).get("kind") or re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()
