"""Handle the tables of a run file as plain dictionaries: merge them, override them, write them as TOML.

>>> merge({"run": {"steps": 3, "every": 1}}, parse_sets(["run.steps=100"]))
{'run': {'steps': 100, 'every': 1}}
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

TomlTable = dict[str, Any]
_DEEPEST = 20
_TO_FILL = re.compile(r"""(?<!["'\w])(LOW|HIGH)(?!["'\w])""")
_DECIMAL_COMMA = re.compile(r"=\s*[+-]?\d+,\d+\s*(#|$)")
_NOT_SETTINGS = ("title", "about", "takes", "printed", "reduced", "quick")
_TOO_DEEP = f"tables or lists are nested more than {_DEEPEST} deep: `sottovoce run --help` shows a whole file"


def merge(base: TomlTable, change: TomlTable) -> TomlTable:
    """Apply `change` to `base`, table by table; a table whose `name` or `kind` changes is replaced as a whole.

    `ranges`, what a search draws, is replaced too: a variant with another method has other ranges.

    >>> merge({"a": {"x": 1, "y": 2}, "b": {"kind": "ring", "weight": 0.3}}, {"a": {"y": 3}, "b": {"kind": "star"}})
    {'a': {'x': 1, 'y': 3}, 'b': {'kind': 'star'}}
    """
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and key != "ranges" and not _renamed(old, value):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def _renamed(old: TomlTable, new: TomlTable) -> bool:
    return any(new.get(word, old.get(word)) != old.get(word) for word in ("name", "kind"))


def read(text: str) -> TomlTable:
    """Read a TOML text, and refuse one that is nested more deeply than any run file.

    >>> read("run.steps = 3")
    {'run': {'steps': 3}}
    >>> read("a" + ".a" * 50 + " = 1")
    Traceback (most recent call last):
    ...
    ValueError: tables or lists are nested more than 20 deep: `sottovoce run --help` shows a whole file
    """
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    inside: list[Any] = [document]
    for _ in range(_DEEPEST):
        values = (list(one.values()) if isinstance(one, dict) else one for one in inside)
        inside = [value for held in values for value in held if isinstance(value, dict | list)]
    if inside:
        raise ValueError(_TOO_DEEP)
    return document


def not_toml(text: str, error: tomllib.TOMLDecodeError) -> str:
    """Say where a text is no TOML, with the line; a place that `init` left to be filled in is named as such.

    >>> not_toml("[data.columns]\\nage = {range = [LOW, HIGH]}", tomllib.TOMLDecodeError("Invalid value (at line 2)"))
    'line 2 is to be filled in: age = {range = [LOW, HIGH]}. Write what everybody may know, such as [0, 120], ...'
    """
    said, lines = str(error), text.splitlines()
    for number, line in enumerate(lines, 1):
        setting = line.partition("#")[0].strip()
        if _TO_FILL.search(setting):
            return (
                f"line {number} is to be filled in: {setting}. Write what everybody may know, such as [0, 120], in the "
                "place of LOW and HIGH, or put # before the line to leave the column out"
            )
    found = re.search(r"at line (\d+)", said)
    at = int(found[1]) if found else len(lines)  # some faults are found at the end of the text
    line = lines[at - 1].strip() if 0 < at <= len(lines) else ""
    remedy = 'A text stands in quotation marks, as in "age"; `sottovoce run --help` shows a whole file'
    if _DECIMAL_COMMA.search(line):
        remedy = "A number is written with a point, as in 1.5"
    return f"this is not TOML: {said}" + (f": {line[:80]}. {remedy}" if line else "")


def parse_sets(sets: Sequence[str]) -> TomlTable:
    """Read tables from ``key=value`` lines; a value is TOML, or a word without quotation marks.

    >>> parse_sets(["run.steps=100", "network.kind=star"])
    {'run': {'steps': 100}, 'network': {'kind': 'star'}}
    """
    overrides: TomlTable = {}
    for line in sets:
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not key:
            raise ValueError(f"--set {line!r}: write key=value, for example --set run.steps=100")
        try:
            parsed = read(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value  # a word without quotation marks
        if key.count(".") > _DEEPEST:
            raise ValueError(f"--set {key:.40}: {_TOO_DEEP}")
        for part in reversed(key.split(".")):
            parsed = {part: parsed}
        overrides = merge(overrides, parsed)
    return overrides


def changes(base: TomlTable, change: TomlTable, above: str = "") -> list[str]:
    """Say what a change replaces, one line per key.

    >>> changes({"run": {"steps": 3}}, {"run": {"steps": 100, "every": 5}})
    ['run.steps = 100 (was 3)', 'run.every = 5 (was not set)']
    """
    lines = []
    for key, value in change.items():
        old = base.get(key) if isinstance(base, dict) else None
        if isinstance(value, dict):
            lines += changes(old if isinstance(old, dict) else {}, value, f"{above}{key}.")
        else:
            was = "was not set" if old is None else f"was {old!r}"
            lines.append(f"{above}{key} = {value!r} ({was})")
    return lines


def differences(old: TomlTable, new: TomlTable, above: str = "") -> list[str]:
    """Say what differs between two run files, one line per key; titles and sizes that are not in use do not count.

    >>> differences({"privacy": {"epsilon": 1.0}, "title": "a"}, {"privacy": {"epsilon": 2.0}, "title": "b"})
    ['privacy.epsilon was 1.0 and is 2.0']
    """
    lines = []
    for key in {**old, **new}:
        was, now = old.get(key), new.get(key)
        if was == now or key in _NOT_SETTINGS:
            continue
        if isinstance(was, dict) and isinstance(now, dict):
            lines += differences(was, now, f"{above}{key}.")
        elif _is_list_of_tables(was) and _is_list_of_tables(now) and len(was) == len(now):  # type: ignore[arg-type]
            for one, other in zip(was, now):  # type: ignore[arg-type]
                lines += differences(one, other, f"{above}{key} {other.get('name', '')!r}: ")
        else:
            said = ["not set" if one is None else f"{one!r:.60}" for one in (was, now)]
            lines.append(f"{above}{key} was {said[0]} and is {said[1]}")
    return lines


def dump(table: Mapping[str, Any]) -> str:
    """Write a run file's text from its tables: plain values first, then one section per table.

    Lists of tables come last, one ``[[section]]`` per entry: tomli-w alone would write short ones on one line.

    >>> print(dump({"title": "one", "variant": [{"name": "a", "run": {"steps": 4}}], "run": {"steps": 3}}))
    title = "one"
    <BLANKLINE>
    [run]
    steps = 3
    <BLANKLINE>
    [[variant]]
    name = "a"
    <BLANKLINE>
    [variant.run]
    steps = 4
    <BLANKLINE>
    """
    listed = {key: value for key, value in table.items() if _is_list_of_tables(value)}
    texts = [tomli_w.dumps({key: value for key, value in table.items() if key not in listed})]
    for key, entries in listed.items():
        for entry in entries:
            head = tomli_w.dumps({key: {}}).strip()  # "[key]", in quotation marks where the key needs them
            texts.append(f"[{head}]\n" + tomli_w.dumps({key: entry}).removeprefix(f"{head}\n"))
    return "\n".join(text for text in texts if text)


def _is_list_of_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, Mapping) for entry in value)
