"""Keep lists closed: an accountant covers the kinds that it knows, and nothing that calls itself one of them.

Example: a subclass of `Poisson` may draw the batches of an epoch in turn and still say that each record is drawn by
chance. So kinds are compared exactly, and no class of another module may join a list. Replacing a function of this
package's own classes at run time is a change of the package itself, and nothing here can notice it.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

Value = TypeVar("Value")


class Closed:
    """Define what the kinds of a closed list share: all of them stand in the module of their first class.

    >>> class Kind(Closed): pass
    >>> class Other(Kind): __module__ = "elsewhere"
    Traceback (most recent call last):
    ...
    TypeError: Other cannot derive from Kind: the kinds of Kind are a closed list, because an account covers these alone
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        above = [kind for kind in cls.__mro__[1:] if issubclass(kind, Closed) and kind is not Closed]
        if above and cls.__module__ != above[-1].__module__:
            raise TypeError(
                f"{cls.__name__} cannot derive from {above[0].__name__}: the kinds of {above[-1].__name__} are a "
                "closed list, because an account covers these alone"
            )


def exact(what: str, value: Value, kinds: Sequence[type]) -> Value:
    """Return a copy of a value that is of one of these kinds, made and checked anew from its fields alone.

    A subclass is refused, and so is what was put into a value beside its fields, where it could stand for a method.

    >>> from sottovoce.privacy.sampling import KINDS, Full
    >>> exact("sampling", Full(), KINDS)
    Full()
    >>> exact("sampling", 50, KINDS)
    Traceback (most recent call last):
    ...
    TypeError: sampling is of type int: the closed list is Full, Poisson, ...
    """
    require(what, value, kinds)
    beside = sorted(vars(value).keys() - {field.name for field in fields(value)})  # type: ignore[arg-type]
    if beside:
        raise TypeError(f"{what} holds {', '.join(beside)} beside its fields: make a new {type(value).__name__}")
    return replace(value)  # type: ignore[type-var]


def require(what: str, value: Any, kinds: Sequence[type]) -> None:
    """Refuse a value that is not of one of these kinds itself.

    >>> require("network", 3, (float,))
    Traceback (most recent call last):
    ...
    TypeError: network is of type int: the closed list is float
    """
    if not any(type(value) is kind for kind in kinds):  # `in` would ask a metaclass
        listed = ", ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{what} is of type {type(value).__name__}: the closed list is {listed}")
