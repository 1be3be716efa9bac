"""Define the contract of a method: what one agent does in one step."""

import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType, UnionType
from typing import Any, ClassVar, Self, Union, final, get_args, get_origin

from sottovoce.networks import Network
from sottovoce.optimisers import is_plain
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Sampling
from sottovoce.problems import Minimize
from sottovoce.schedules import Schedule, schedule

# Where a calibrated method remembers its target: no field, because it changes nothing of what is computed.
TARGET = "_calibrated_for"
# What a subclass may write anew without changing what a proof is about.
_BESIDE_THE_PROOF = frozenset({"examples", "paper", "published", "caveats", "design_name"})
State = Any  # a pytree with the fields the problem's variables are named after: x, and y where there is one


@dataclass(frozen=True)
class Setting:
    """State what a bound may depend on besides the method: nothing in it comes from a record."""

    sizes: Mapping[str, Sequence[int]]
    steps: int
    network: Network
    delta: float


@dataclass(
    frozen=True, eq=False
)  # a subclass that is no dataclass is compared by identity: equal methods share a trace
class Method(ABC):
    """Define what all methods share. A subclass is a frozen dataclass in a file of its own, and cites its paper there.

    A subclass writes ``init`` and ``step`` for *one* agent, against a handle: an `Agent` for peers with records of
    their own, a `Party` for holders of columns (`ColumnMethod`). It never sees another agent's state,
    and no record except through the gate. Which releases it makes is read off by tracing ``step``, so there is nothing
    to declare. A release is named after the field that holds it.
    """

    solves: ClassVar[tuple[type, ...]] = (Minimize,)
    over: ClassVar[tuple[str, ...]] = ("mix",)  # the network matrices it uses
    public_constants: ClassVar[bool] = False  # set it to declare that arrays which its functions close over are public
    registry: ClassVar[dict[str, type["Method"]]] = {}

    def __init_subclass__(cls, abstract: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not (abstract or cls.__name__.startswith("_")):
            both = {cls.__module__, Method.registry.get(cls.__name__, cls).__module__}
            ours = [name for name in both if name.startswith("sottovoce.")]
            if len(both) > 1 and ours:  # whichever of the two is loaded first
                raise ValueError(f"{ours[0]} has a method {cls.__name__} already: choose another name")
            Method.registry[cls.__name__] = cls

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if callable(getattr(Method, field.name, None)):
                raise TypeError(
                    f"{type(self).__name__} has a field {field.name!r}, a name that all methods use for "
                    "something else: rename it"
                )
            value = getattr(self, field.name)
            _check_kind(field.name, value, field.type)
            if isinstance(value, Release) and not value.name:
                object.__setattr__(self, field.name, dataclasses.replace(value, name=field.name))

    @abstractmethod
    def init(self, problem: Any, agent: Any) -> State:
        """Return the agent's state before the first step."""

    @abstractmethod
    def step(self, problem: Any, state: State, agent: Any) -> State:
        """Return the agent's next state."""

    @classmethod
    def examples(cls) -> Mapping[str, "Method"]:
        """Return named configurations for quadratic problems with curvatures near 1: what the contract suite runs."""
        return {}

    # What a paper's design may add to the account.

    @property
    def design_name(self) -> str:
        """Return "sound", "printed", or "non-private" when a release has no bound or no noise."""
        if not all(release.private for release in self.releases()):
            return "non-private"
        return getattr(self, "design", "sound")

    def published(self, setting: Setting) -> float | None:
        """Return the epsilon that its paper prints for this configuration, if it prints one."""
        return None

    def proved(self, setting: Setting, agent: int) -> float | None:
        """Return a proved epsilon for messages of private state (printed designs); None if there is no proof.

        A proof is about the code of its class. A subclass that writes some of the code anew writes `proved` anew too.
        """
        return None

    @final
    def message_bound(self, setting: Setting, agent: int) -> float | None:
        """Return `proved`, where it is about this method's own code."""
        return None if self.changed_since_proof else self.proved(setting, agent)

    @final
    @property
    def changed_since_proof(self) -> tuple[str, ...]:
        """Name the functions that a subclass wrote anew, while it inherits the `proved` of other code."""
        found: list[str] = []
        for kind in type(self).__mro__:
            if "proved" in vars(kind):
                break
            made = (name for name, held in vars(kind).items() if isinstance(held, _CODE) and not name.startswith("__"))
            found += [name for name in made if name not in _BESIDE_THE_PROOF]
        return tuple(found)

    def caveats(self, setting: Setting) -> Sequence[str]:
        """List what else a reader of the report should know."""
        return ()

    # What follows from the fields.

    def releases(self) -> list[Release]:
        """Return all releases it is configured with."""
        return [value for value in _values(self) if isinstance(value, Release)]

    def schedules(self) -> dict[str, Schedule]:
        """Return the fields that are schedules, or numbers that stand for one."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if Schedule in alternatives(f.type)}
        rates = {name: getattr(value, "rate", value) for name, value in given.items()}  # an optimiser has a rate inside
        return {name: schedule(value) for name, value in rates.items() if value is not None and is_plain(value)}

    def louder(self, factor: float) -> Self:
        """Return the same method with the noise of every release multiplied."""
        return self.map_releases(lambda release: release.louder(factor))

    def without_privacy(self) -> Self:
        """Return the non-private twin: no clipping, no noise."""
        return self.map_releases(lambda release: dataclasses.replace(Release.open(), name=release.name))

    def map_releases(self, fn: Callable[[Release], Release]) -> Self:
        """Return a copy with `fn` applied to every release, also to those inside nested values."""
        return _map_releases(self, fn)


_CODE = (FunctionType, classmethod, staticmethod, property, cached_property)
_KINDS = {Release: "a release, such as sv.Release(clip=1.0, noise=0.1)", Sampling: "a sampling, such as sv.Poisson(50)"}


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the kinds that an annotation allows.

    >>> alternatives(float | None)
    (<class 'float'>, <class 'NoneType'>)
    """
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _check_kind(name: str, value: Any, annotation: Any) -> None:
    """Refuse a number where a release or a sampling belongs, and what is no schedule where one does."""
    allowed = alternatives(annotation)
    for kind, wanted in _KINDS.items():
        if kind in allowed and not isinstance(value, tuple(one for one in allowed if isinstance(one, type))):
            raise TypeError(f"{name} is {value!r}: give {wanted}")
    others = tuple(one for one in allowed if isinstance(one, type) and one is not float)
    if Schedule in allowed and not isinstance(value, others):
        try:
            schedule(value)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None


def _values(value: Any) -> list[Any]:
    """Return the dataclass's field values, depth first."""
    found: list[Any] = []
    inside = value if isinstance(value, tuple) else [getattr(value, field.name) for field in dataclasses.fields(value)]
    for inner in inside:
        found.append(inner)
        if _has_parts(inner):
            found.extend(_values(inner))
    return found


def _has_parts(value: Any) -> bool:
    whole = (Release, Sampling, type)
    return isinstance(value, tuple) or (dataclasses.is_dataclass(value) and not isinstance(value, whole))


def _map_releases(value: Any, fn: Callable[[Release], Release]) -> Any:
    if isinstance(value, Release):
        return fn(value)
    if not _has_parts(value):
        return value
    if isinstance(value, tuple):
        mapped = [_map_releases(inner, fn) for inner in value]
        return type(value)(*mapped) if hasattr(value, "_fields") else tuple(mapped)
    changes = {field.name: _map_releases(getattr(value, field.name), fn) for field in dataclasses.fields(value)}
    return dataclasses.replace(value, **{k: v for k, v in changes.items() if v is not getattr(value, k)})


def summary(cls: type[Method]) -> str:
    """Return the first line of a method's documentation."""
    return (inspect.getdoc(cls) or "").split("\n", 1)[0]
