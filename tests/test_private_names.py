"""A name with an underscore is its file's own: no other file of the package uses it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sottovoce as sv

SOURCE = Path(sv.__file__).parent
PUBLIC = {"_replace", "_asdict", "_fields", "_exit", "_getframe"}  # of Python's own library, by its documentation


def own(tree: ast.AST) -> set[str]:
    """Return the private names that a file defines: functions, classes, variables, and attributes that it sets."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return found


def borrowed(text: str) -> Iterator[str]:
    """Yield the private names that a file uses and does not define, with their lines."""
    tree = ast.parse(text)
    mine = own(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sottovoce"):
            used = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Store):
            inherited = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            used = [] if inherited or node.attr in PUBLIC else [node.attr]
        else:
            continue
        for name in used:
            if name.startswith("_") and not name.endswith("__") and name not in mine:
                yield f"{node.lineno}: {name}"


def test_private_names_are_used_in_their_own_file() -> None:
    found = {file.relative_to(SOURCE).as_posix(): list(borrowed(file.read_text())) for file in SOURCE.rglob("*.py")}
    assert {name: used for name, used in found.items() if used} == {}


@pytest.mark.parametrize(
    "code", ["from sottovoce.privacy.ledger import _head", "ledger._composed([])", "x = other.book._promised"]
)
def test_what_another_file_owns_is_found(code: str) -> None:
    assert list(borrowed(code))
