"""Store a `predict` function as a compiled program, and read one that somebody else stored.

A program is StableHLO, by `jax.export`. Its operations are arithmetic on arrays, with one exception: a *custom call*
runs a function of the process that opens the file, by its name and with arguments that nobody checks. So the operations
of a program are looked at one by one, when it is stored and when it is read: nested ones, and those of functions that
it calls. What is not on the lists below is refused, before anything is compiled or executed.

A program is stored as text, because MLIR's reader of bytes ends the process for many bytes that are no program; its
reader of text gives an error. All else that JAX stores with a program (shapes as expressions, trees, effects,
derivatives) is not read from a file: it is made here, from plain numbers. What is left may still take long, or ask for
more memory than there is.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters.mlir import make_ir_context

from sottovoce.problems import programs
from sottovoce.problems.objectives import REMEDY
from sottovoce.trees import Tree

_PLATFORMS = ("cpu", "cuda", "tpu")
# Custom calls that are no calls: the compiler replaces them once shapes are known.
_SHAPES = frozenset({"shape_assertion", "stablehlo.dynamic_reduce_window", "stablehlo.dynamic_top_k"})
_WHOLE = frozenset({"builtin.module", "func.func", "func.return", "func.call"})
_OUTWARD = frozenset(  # of StableHLO: what speaks to the host, or to other devices
    f"stablehlo.{name}"
    for name in ("infeed", "outfeed", "send", "recv", "create_token", "after_all", "partition_id", "replica_id",
                 "all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute",
                 "reduce_scatter", "cross-replica-sum")
)  # fmt: skip
_ATTRIBUTES = ("jax.", "mhlo.num_partitions", "mhlo.num_replicas")  # of other dialects; others may direct the compiler
_TOKENS = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->|[\[\](){}<>]')
_CLOSING = {"]": "[", ")": "(", "}": "{", ">": "<"}
_DEEPEST = 50  # brackets inside each other: the reader of text takes a piece of the stack for each
_NOT_OURS = re.compile(r"^\s*[#!][\w$.-]+\s*=|affine_|dense_resource|\{-#", re.MULTILINE)  # `stored` writes none
_SYMBOL = "rows"  # the number of rows, which a program leaves open


def stored(
    predict: Callable[..., Any], variables: tuple[Tree, ...], features: Any, public_constants: bool = False
) -> dict[str, Any]:
    """Return `predict` as a program of (leaves of the variables, features), for any number of rows, as plain facts.

    What it holds besides its arguments would be in the file: arrays are refused, unless the problem declares them
    (`public_constants`).

    >>> program = opened(stored(lambda x, rows: rows @ x, (np.ones(2),), np.zeros((1, 2))), [np.ones(2, np.float32)])
    >>> program([jnp.ones(2)], jnp.ones((3, 2))).tolist()
    [2.0, 2.0, 2.0]
    """
    leaves, structure = jax.tree.flatten(variables)

    def program(leaves: list[Any], features: Any) -> Any:
        return predict(*jax.tree.unflatten(structure, leaves), features)

    blocks = [list(np.shape(block)[1:]) for block in jax.tree.leaves(features)]
    tails = blocks if isinstance(features, (list, tuple)) else blocks[0]
    shapes = _shapes(leaves, tails)
    closed, shape = programs.traced(
        "predict", program, *shapes, remedy=REMEDY, declared=leaves, public=public_constants
    )

    def checked(leaves: list[Any], features: Any) -> Any:  # what was looked at, and no second trace
        found = jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *leaves, *jax.tree.leaves(features))
        return jax.tree.unflatten(jax.tree.structure(shape), found)

    made = _exported(checked, shapes)
    try:
        with make_ir_context():
            text = _text_of(made)
            _read(text, text)
        if made.ordered_effects or made.unordered_effects:
            raise ValueError("it has effects beside its result")
        if len(made.out_avals) != 1:
            raise ValueError(f"it returns {len(made.out_avals)} arrays")
        (out,) = made.out_avals
        if not out.ndim or str(out.shape[0]) != _SYMBOL or not all(type(size) is int for size in out.shape[1:]):
            raise ValueError(f"it returns an array of shape {out.shape}, which has no line per row")
    except ValueError as error:
        raise ValueError(f"predict cannot be stored: {error}; compute this before, and store its result") from None
    return {
        "text": text,
        "features": blocks,
        "blocks": isinstance(features, (list, tuple)),
        "out": [list(out.shape[1:]), str(out.dtype)],
    }


def opened(facts: Mapping[str, Any], leaves: Sequence[np.ndarray]) -> Callable[..., Any]:
    """Return the function that a program computes from such leaves; ValueError if it is not one that may be run.

    >>> opened({**stored(lambda x, rows: rows @ x, (np.ones(2),), np.zeros((1, 2))), "text": "module {}"}, [np.ones(2)])
    Traceback (most recent call last):
    ...
    ValueError: its program cannot be read (...)
    """
    try:
        tail, kind = tuple(map(_count, facts["out"][0])), jnp.dtype(str(facts["out"][1]))
        blocks = [list(map(_count, block)) for block in facts["features"]]
        like = _exported(
            lambda leaves, features: jnp.zeros((jax.tree.leaves(features)[0].shape[0], *tail), kind),
            _shapes(leaves, blocks if facts["blocks"] is True else blocks[0]),
        )  # fmt: skip
        with make_ir_context():
            module = _read(facts["text"], _text_of(like))
            code = stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version())
        made = replace(like, mlir_module_serialized=code)
    except Exception as error:  # made-up bytes may fail anywhere in the readers of JAX and MLIR
        raise ValueError(f"its program cannot be read ({type(error).__name__}: {error!s:.200})") from None
    return made.call


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise ValueError(f"{value!r:.40} is no size")
    return value


def _exported(program: Callable[..., Any], shapes: tuple[list[Any], Any]) -> jax.export.Exported:
    """Export a function of leaves and features."""
    return jax.export.export(jax.jit(program, keep_unused=True), platforms=_PLATFORMS)(*shapes)


def _shapes(leaves: Sequence[Any], tails: list[Any]) -> tuple[list[Any], Any]:
    """Return the shapes of leaves and features; `tails` are the shapes of a row, of one array or of several blocks."""
    (rows,) = jax.export.symbolic_shape(_SYMBOL)
    held = [jax.ShapeDtypeStruct(np.shape(leaf), jnp.asarray(leaf).dtype) for leaf in leaves]
    several = bool(tails) and isinstance(tails[0], list)
    shapes = [jax.ShapeDtypeStruct((rows, *tail), jnp.float32) for tail in (tails if several else [tails])]
    return held, shapes if several else shapes[0]


def _text_of(program: jax.export.Exported) -> str:
    return str(program.mlir_module(serialized=False))


def _read(text: str, like: str) -> Any:
    """Return the module of a text, inside a context; refuse one with an operation that is not on the lists.

    It takes and returns what the program `like` does.
    """
    if _NOT_OURS.search(text):
        raise ValueError("it holds names of types or maps, which no stored program has")
    depth = dict.fromkeys(_CLOSING.values(), 0)
    for token in _TOKENS.finditer(text):
        if (said := token[0]) in depth:
            depth[said] += 1
            if depth[said] > _DEEPEST:
                raise ValueError(f"its brackets are nested more than {_DEEPEST} deep")
        elif said in _CLOSING:
            depth[_CLOSING[said]] = max(0, depth[_CLOSING[said]] - 1)
    module = ir.Module.parse(text)
    for operation in _operations(module):
        _require_one(operation)
    if _main_of(module) != _main_of(ir.Module.parse(like)) or not module.operation.verify():
        raise ValueError("it has no main function, or takes and returns other arrays than the model's")
    return module


def _main_of(module: Any) -> list[str]:
    """Return the type of the main function, in a list."""
    functions = [one for one in module.body.operations if one.operation.name == "func.func"]
    named = [one for one in functions if str(one.attributes["sym_name"]) == '"main"']
    return [str(one.attributes["function_type"]) for one in named]


def _operations(module: Any) -> Iterator[Any]:
    """Yield all operations of a module: of its functions, and of the regions inside operations."""
    waiting = [module.operation]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += [inner.operation for region in one.regions for block in region.blocks for inner in block.operations]


def _require_one(operation: Any) -> None:
    name = str(operation.name)
    if name == "stablehlo.custom_call":
        target = str(operation.attributes["call_target_name"]).strip('"')
        if target not in _SHAPES:
            raise ValueError(f"it calls {target!r:.80}, a function outside of the program")
    elif name not in _WHOLE and not (name.startswith("stablehlo.") and name not in _OUTWARD):
        raise ValueError(f"it holds {name!r:.80}, which is no arithmetic on arrays")
    for attribute in operation.attributes:
        said = attribute if isinstance(attribute, str) else attribute.name
        if "." in said and not said.startswith(_ATTRIBUTES):
            raise ValueError(f"it directs the compiler by {said!r:.80}")
