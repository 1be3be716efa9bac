"""Tables of a run file as plain dictionaries: merged, overridden from the command line, and written as TOML."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

Table = dict[str, Any]


def merge(base: Table, change: Table) -> Table:
    """`change` over `base`, table by table; a table whose `name` or `kind` changes is replaced.

    >>> merge({"a": {"x": 1, "y": 2}, "b": {"kind": "ring", "weight": 0.3}}, {"a": {"y": 3}, "b": {"kind": "star"}})
    {'a': {'x': 1, 'y': 3}, 'b': {'kind': 'star'}}
    """
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and not _renamed(old, value):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def _renamed(old: Table, new: Table) -> bool:
    return any(new.get(word, old.get(word)) != old.get(word) for word in ("name", "kind"))


def parse_sets(sets: Sequence[str]) -> Table:
    """Tables from ``key=value`` lines; a value is TOML, or a word.

    >>> parse_sets(["run.steps=100", "network.kind=star"])
    {'run': {'steps': 100}, 'network': {'kind': 'star'}}
    """
    overrides: Table = {}
    for line in sets:
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not key:
            raise ValueError(f"--set {line!r}: write key=value, for example --set run.steps=100")
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value  # a word without quotation marks
        for part in reversed(key.split(".")):
            parsed = {part: parsed}
        overrides = merge(overrides, parsed)
    return overrides


def dump(table: Mapping[str, Any]) -> str:
    """A run file's text from its tables: scalars first, then a section for each table.

    >>> print(dump({"title": "one", "run": {"steps": 3, "seeds": [0, 1]}, "variant": [{"name": "a"}]}))
    title = "one"
    <BLANKLINE>
    [run]
    steps = 3
    seeds = [0, 1]
    <BLANKLINE>
    [[variant]]
    name = "a"
    <BLANKLINE>
    """
    lines = [f"{_key(key)} = {_value(value)}" for key, value in table.items() if not _is_section(value)]
    for key, value in table.items():
        if _is_section(value):
            head = f"[{_key(key)}]" if isinstance(value, Mapping) else f"[[{_key(key)}]]"
            for section in [value] if isinstance(value, Mapping) else value:
                lines += ["", head, *(f"{_key(name)} = {_value(inner)}" for name, inner in section.items())]
    return "\n".join(lines).lstrip() + "\n"


def _is_section(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and bool(value) and isinstance(value[0], Mapping))


def _key(key: str) -> str:
    bare = key.replace("_", "").replace("-", "")
    return key if bare.isascii() and bare.isalnum() else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON's strings, and DEL, are TOML's
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(inner) for inner in value) + "]"
    return repr(value)
