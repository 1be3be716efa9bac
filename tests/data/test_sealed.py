"""Who reads records and true labels: a written list, so that a new reader does not go unnoticed."""

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from sottovoce.data.sealed import Sealed
from sottovoce.runtime.layout import lay_out

PACKAGE = Path(sv.__file__).parent

# Every call of `Sealed.unseal`, and why it may read records.
UNSEAL = {
    "audit/adversaries.py: Instance.known",  # shapes only
    "audit/adversaries.py: neighbours",  # an audit changes one record of its own instance
    "audit/adversaries.py: without",  # the same
    "privacy/exact_gate.py: _slopes.slopes",  # the gate as deployed
    "privacy/gate.py: clipped_mean.partial",  # the gate
    "runtime/checks.py: finite",  # a warning on the holder's own machine
    "runtime/layout.py: own_digests",  # for the keys of noise, in memory only; keyed digests go to the run's folder
    "runtime/layout.py: alone",  # hands an agent its own records, sealed again
    "runtime/layout.py: shard",  # the same for a device
}
# Every use of the true labels, all inside their store.
LABELS = {
    "privacy/label_store.py: Labels.__init__",
    "privacy/label_store.py: Labels.__len__",
    "privacy/label_store.py: Labels._refuse_second",  # finds a second store of the same labels, in one process
    "privacy/label_store.py: Labels._save",  # a salted mark, in a file that only its owner can read
    "privacy/label_store.py: Labels.memo",  # randomised response
    "privacy/label_store.py: Labels.accuracy",  # a noisy count, charged
    "privacy/label_store.py: Labels.open",
}


def found(name: str, wanted: Callable[[ast.AST], bool]) -> set[str]:
    """Every function of the package with a node of this kind in it, which has this name."""
    places = set()

    def visit(node: ast.AST, inside: str, path: str) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inside = f"{inside}.{node.name}" if inside else node.name
        if wanted(node):
            places.add(f"{path}: {inside or 'module'}")
        for child in ast.iter_child_nodes(node):
            visit(child, inside, path)

    for file, text in sources().items():
        if f".{name}" in text:  # a file is parsed only where it may be found
            visit(ast.parse(text), "", file.relative_to(PACKAGE).as_posix())
    return places


@cache
def sources() -> dict[Path, str]:
    return {file: file.read_text() for file in sorted(PACKAGE.rglob("*.py"))}


def uses(name: str) -> set[str]:
    """Every function with `something.name` in it, called or not."""
    return found(name, lambda node: isinstance(node, ast.Attribute) and node.attr == name)


def opens_labels(node: ast.AST) -> bool:
    """`something.open()` without arguments, where something is no `Release` class."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "open"):
        return False
    return not node.args and not node.keywords and ast.unparse(node.func.value) != "Release"


def test_records_are_read_by_the_listed_functions_and_no_other():
    assert uses("unseal") == UNSEAL


def test_sealed_arrays_have_no_other_way_out():
    for name in ("_pool", "_filled"):
        assert {use.split(":")[0] for use in uses(name)} <= {"data/sealed.py"}


def test_true_labels_are_read_by_the_listed_functions_and_no_other():
    assert uses("_label") == LABELS
    assert found("open", opens_labels) == {"privacy/labels.py: LaplaceGate.vectors", "privacy/labels.py: Open.vectors"}


def test_an_agent_sees_its_own_rows_and_units_as_a_whole():
    part = sv.data.Part(np.arange(5.0), np.array([4, 1, 3]), unit=np.array([0, 7, 0, 7, 9]))
    sealed = lay_out([part, sv.data.Part(np.arange(5.0), np.array([2, 0]), unit=part.unit)]).sealed["records"]
    records, filled = sealed.of(0).unseal(jnp.arange(2))
    assert [sorted(set(unit[there].tolist())) for unit, there in zip(np.asarray(records), np.asarray(filled))] == [
        [1.0, 3.0],
        [4.0],
    ]
    records, filled = sealed.of(1).unseal(jnp.arange(1))
    assert sorted(np.asarray(records[0])[np.asarray(filled[0])].tolist()) == [0.0, 2.0]


def test_a_sealed_set_shows_no_record_when_it_is_printed():
    assert "5.0" not in repr(Sealed(jnp.asarray([5.0]), jnp.asarray([0]), None, jnp.asarray([0])))


def test_the_loss_of_a_unit_is_the_mean_over_its_records():
    sealed = Sealed(jnp.zeros(1), jnp.zeros((1, 3), int), jnp.asarray([[True, True, False]]), jnp.zeros(1, int))
    lifted = sealed.lift(lambda at, r: at * r)
    assert float(lifted(2.0, (jnp.asarray([1.0, 3.0, 99.0]), jnp.asarray([True, True, False])))) == 4.0
