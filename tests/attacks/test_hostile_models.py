"""A model file that somebody else made: nothing in it runs, or takes more memory than it has; its texts stay texts."""

import csv
import io
import json
import re
import zipfile
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce import archives, defused
from sottovoce.commands.terminal import console, notes, print_json, print_line, say
from sottovoce.problems import tasks
from sottovoce.problems.tasks import Shape
from sottovoce.runtime import checkpoint
from sottovoce.runtime.model_file import NamedTask
from tests.runtime.test_model_file import declared, result

KIND = "travelling model"
CALL = (
    '"stablehlo.custom_call"({0}) {{call_target_name = "{1}", api_version = 4 : i32, has_side_effect = true, '
    "backend_config = {{index = 7 : ui64}}}} : (tensor<2xf32>) -> tensor<2xf32>"
)
MAIN = """module @jit_program attributes {{mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32{module}}} {{
  func.func public @main(%arg0: tensor<i32>, %arg1: tensor<2xf32>, %arg2: tensor<?x2xf32>) -> tensor<?xf32> {{
    {body}
    %out = stablehlo.dot_general %arg2, %0, contracting_dims = [1] x [0] : (tensor<?x2xf32>, tensor<2xf32>)
      -> tensor<?xf32>
    return %out : tensor<?xf32>
  }}
  {beside}
}}
"""
CALLBACK = "xla_ffi_python_cpu_callback"
INSIDE = """
%p = stablehlo.constant dense<true> : tensor<i1>
%0 = "stablehlo.if"(%p) ({{
  %1 = {call}
  stablehlo.return %1 : tensor<2xf32>
}}, {{ stablehlo.return %arg1 : tensor<2xf32> }}) : (tensor<i1>) -> tensor<2xf32>
"""
OTHER = """func.func private @other(%arg0: tensor<2xf32>) -> tensor<2xf32> {{
  %1 = {call}
  return %1 : tensor<2xf32>
}}"""
HARMLESS = "%0 = stablehlo.add %arg1, %arg1 : tensor<2xf32>"


def program(body=HARMLESS, beside="", module=""):
    return MAIN.format(body=body, beside=beside, module=module)


def calling(target=CALLBACK, place="%arg1"):
    return CALL.format(place, target)


HOSTILE = {
    "a callback": program(f"%0 = {calling()}"),
    "a callback of an older kind": program(f"%0 = {calling('xla_python_cpu_callback')}"),
    "a function of a library": program(f"%0 = {calling('lapack_sgetrf_ffi')}"),
    "a kernel of a GPU": program(f"%0 = {calling('__gpu$xla.gpu.triton')}"),
    "a name that ends like an allowed one": program(f"%0 = {calling('my.shape_assertion')}"),
    "a callback in a branch": program(INSIDE.format(call=calling())),
    "a callback in a function that is called": program(
        "%0 = func.call @other(%arg1) : (tensor<2xf32>) -> tensor<2xf32>", OTHER.format(call=calling(place="%arg0"))
    ),
    "a callback in a function that a composite names": program(
        '%0 = stablehlo.composite "my.op" %arg1 {decomposition = @other} : (tensor<2xf32>) -> tensor<2xf32>',
        OTHER.format(call=calling(place="%arg0")),
    ),
    "a callback in a function that nobody calls": program(beside=OTHER.format(call=calling(place="%arg0"))),
    "a callback in a module inside": program(beside=f"module @inner {{ {OTHER.format(call=calling(place='%arg0'))} }}"),
    "what comes from outside": program(
        '%t = stablehlo.create_token : !stablehlo.token\n%i:2 = "stablehlo.infeed"(%t) {infeed_config = ""} : '
        "(!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)\n%0 = stablehlo.add %i#0, %arg1 : tensor<2xf32>"
    ),
    "another device": program("%r = stablehlo.replica_id : tensor<ui32>\n" + HARMLESS),
    "another dialect": program("%m = arith.constant 1 : i32\n" + HARMLESS),
    "an older dialect": program('%0 = "mhlo.add"(%arg1, %arg1) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>'),
    "an unknown operation": program('"my.operation"() : () -> ()\n' + HARMLESS),
    "words to the compiler": program(
        '%0 = stablehlo.add %arg1, %arg1 {mhlo.frontend_attributes = {_xla_compute_type = "host"}} : tensor<2xf32>'
    ),
    "words to the compiler about all": program(module=", mhlo.cross_program_prefetches = []"),
    "another type": program().replace("tensor<?xf32>", "tensor<?xf64>"),
    "no main": program().replace("@main", "@other"),
    "brackets": program(module=", jax.deep = " + "[" * 100_000 + "]" * 100_000),
    "brackets behind a string": program(module=', jax.deep = ["' + "]" * 999 + '", ' + "[" * 5000 + "]" * 5001),
    "names of types": "!a = tuple<i32, i32>\n" + program(),
    "no text": 7,
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """What an honest file says, and its arrays."""
    made = result(jnp.ones(2), lambda x, rows: rows @ (x + x))
    return checkpoint.read(sv.save(made, tmp_path_factory.mktemp("m") / "m.sv", features=np.zeros((1, 2))), KIND)


@pytest.mark.parametrize("case", HOSTILE)
def test_a_program_that_leaves_arithmetic_is_refused_when_it_is_opened(honest, tmp_path, case, monkeypatch):
    path, (facts, leaves) = tmp_path / "m.sv", honest
    checkpoint.save(path, leaves, {**facts, "program": {**facts["program"], "text": HOSTILE[case]}}, kind=KIND)
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *given, **how: pytest.fail("something was compiled"))
    with pytest.raises(ValueError, match="program"):
        sv.load(path)


def test_the_same_program_without_a_call_is_opened(honest, tmp_path):
    """So the refusals above are for what they name."""
    path, (facts, leaves) = tmp_path / "m.sv", honest
    checkpoint.save(path, leaves, {**facts, "program": {**facts["program"], "text": program()}}, kind=KIND)
    assert sv.load(path).predict(np.ones((3, 2))).tolist() == [4.0, 4.0, 4.0]
    found = [calls for text in HOSTILE.values() for calls in re.findall("custom_call", str(text))]
    assert len(found) >= 10


@pytest.mark.parametrize(
    "wrong",
    [
        {"features": [[3]]}, {"features": []}, {"features": [[2], [2]], "blocks": True}, {"features": [[-1]]},
        {"features": [["rows^100000000"]]}, {"out": [[5], "float32"]}, {"out": [[], "object"]}, {"out": [[], "int32"]},
        {"blocks": "yes", "features": {}},
    ],
    ids=str,
)  # fmt: skip
def test_facts_that_do_not_fit_a_program_are_an_error(honest, tmp_path, wrong):
    path, (facts, leaves) = tmp_path / "m.sv", honest
    checkpoint.save(path, leaves, {**facts, "program": {**facts["program"], **wrong}}, kind=KIND)
    with pytest.raises(ValueError, match="program"):
        sv.load(path)


def test_what_could_not_be_opened_is_not_stored(tmp_path):
    for predict in (
        lambda x, rows: jnp.linalg.solve(x, rows.T).T.sum(axis=1),
        lambda x, rows: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((), jnp.float32), x[0, 0]) * rows[:, 0],
    ):
        with pytest.raises(
            (ValueError, NotImplementedError),
            match=r"predict cannot be stored|multi-platform|calls back",
        ):
            sv.save(result(jnp.eye(2), predict), tmp_path / "m.sv", features=np.zeros((1, 2)))


def written(entries, how=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return buffer.getvalue()


def entry(shape, kind="<f4", data=b""):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


def overlapping():
    """Two names for the same bytes: the list at the end of the file is all that grows."""
    data = written([("leaf0.npy", entry((1 << 18,), data=bytes(1 << 20))), ("leaf1.npy", b"")])
    at = data.rindex(b"PK\x01\x02")
    first = data.index(b"PK\x01\x02")
    second = bytearray(data[first:at])
    second[46 : 46 + 9] = b"leaf1.npy"
    return data[:at] + bytes(second) + data[at + len(second) :]


ARCHIVES = {
    "compressed": lambda: written([("leaf0.npy", entry((1 << 20,), data=bytes(1 << 22)))], zipfile.ZIP_DEFLATED),
    "compressed by another way": lambda: written([("leaf0.npy", entry((9,), data=bytes(36)))], zipfile.ZIP_BZIP2),
    "overlapping": overlapping,
    "a head of a million millions": lambda: written([("leaf0.npy", entry((10**12,), data=bytes(36)))]),
    "a head with a shape that overflows": lambda: written([("leaf0.npy", entry((2**62, 8), data=bytes(36)))]),
    "a negative axis": lambda: written([("leaf0.npy", entry((-9, -1), data=bytes(36)))]),
    "objects": lambda: written([("leaf0.npy", entry((1,), "|O", b"\x80\x04N."))]),
    "a path": lambda: written([("../leaf0.npy", entry((9,), data=bytes(36)))]),
    "a name twice": lambda: written([("leaf0.npy", entry((9,), data=bytes(36)))] * 2),
    "many entries": lambda: written([(f"leaf{n}.npy", b"") for n in range(99)]),
    "no array": lambda: written([("leaf0.npy", b"nothing")]),
    "nothing": lambda: b"",
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("case", ARCHIVES)
def test_an_archive_that_asks_for_more_than_it_has_is_refused(tmp_path, monkeypatch, case):
    data = ARCHIVES[case]()
    taken = []
    monkeypatch.setattr(archives, "_MOST", 50)
    monkeypatch.setattr(zipfile.ZipFile, "read", _counting(zipfile.ZipFile.read, taken))
    with pytest.raises(ValueError):
        archives.unpacked(data, "leaf[0-9]+")
    assert sum(taken) <= len(data)
    path = tmp_path / "m.sv"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"m\.sv is damaged"):
        sv.load(path)


def _counting(read, taken):
    def counted(self, one):
        taken.append(one.file_size)
        return read(self, one)

    return counted


def test_a_task_of_another_size_than_its_arrays_is_not_built(honest, tmp_path):
    """A megabyte of file could name a model of many gigabytes."""
    path, (facts, leaves) = tmp_path / "m.sv", honest
    facts = {name: value for name, value in facts.items() if name != "program"}
    shape = {"features": [10**6], "classes": 10**5, "agents": 1, "prior": None, "widths": None}
    for name, options in (("softmax", {}), ("mlp", {"hidden": [10**5, 10**5]})):
        task = {"name": name, "options": options, "shape": shape}
        checkpoint.save(path, leaves, {**facts, "task": task}, kind=KIND)
        with pytest.raises(ValueError, match="other shapes or types"):
            sv.load(path)


EVIL = "<script>alert(1)</script>\n# [x](https://evil.example) ![i](//e) `|\x1b[2J\u202e www.evil.example"


def test_the_card_shows_names_as_they_are(tmp_path):
    """Titles, columns, parties, classes, figures: no tag, no heading, no link, no control character."""
    table = sv.data.table(
        {EVIL: [1.0, 2.0], "y": ["a", "b"]}, "y", columns={EVIL: {"range": [0, 3]}, "y": {"categories": ["a", EVIL]}}
    )
    made = result({"weights": jnp.zeros(1), "bias": jnp.asarray(0.0)}, lambda x, rows: None)
    privacy = replace(made.privacy, parties=(EVIL, "south"), per_agent=(1.0, 1.0), events=(EVIL,), caveats=(EVIL,))
    made = replace(made, privacy=privacy, history={**made.history, EVIL: np.array([0.5])})
    sv.save(made, tmp_path / "m.sv", table=table, task=NamedTask("logistic", {}, Shape((1,), 2, 1)))
    card = (tmp_path / "m.md").read_text()
    assert not re.search(r"(?<!\\)<script|(?<!\\)\[x|(?<!\\)`|https?:/|www\.|[\x00-\x09\x0b-\x1f\u202e]", card)
    assert [line for line in card.splitlines() if line.startswith("#")] == [
        "# Model card", "## Privacy", "## Figures", "## Use",
    ]  # fmt: skip


def test_a_csv_of_predictions_holds_no_formula(tmp_path, capsys):
    from sottovoce.commands.table import predict

    table = declared({"categories": {10: "=1+1", 1000: "@sum\x1b[2J"}}, label="=cmd()")
    x = {"weights": jnp.asarray([2.0, 0.0, 0.0, 1.0]), "bias": jnp.asarray(-0.5)}
    task = NamedTask("logistic", {}, Shape((4,), 2, 3))
    path = sv.save(result(x, lambda x, rows: None), tmp_path / "m.sv", table=table, task=task)
    new = tmp_path / "new.csv"
    new.write_text("age,sex,pay\n20,F,10\n90,M,1000\n")
    predict(path, new)
    predict(path, new, tmp_path / "out.csv")
    for text in (capsys.readouterr().out, (tmp_path / "out.csv").read_text()):
        cells = [cell for line in csv.reader(io.StringIO(text)) for cell in line]
        assert len(cells) == 9
        assert not any(cell.startswith(("=", "@", "+")) or "\x1b" in cell for cell in cells)


def test_numbers_in_a_csv_stay_numbers():
    assert [defused.cell(one) for one in ("-1", "+1", "-1e-3", -2, "=1", " =1", "\uff1d1", "-1+1", "\n=1")] == [
        "-1", "+1", "-1e-3", -2, "'=1", "' =1", "'\uff1d1", "'-1+1", "'\n=1",
    ]  # fmt: skip


def test_a_terminal_obeys_no_name(capsys):
    evil = "north\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e\r"
    print_line(evil)
    say(evil)
    print_json({"name": evil})
    from rich.table import Table

    table = Table(evil, title=evil)
    table.add_row(evil)
    console.print(table)
    notes.print(evil)
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert "north" in text
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    document = shown.out[shown.out.index("{") : shown.out.index("}") + 1]
    assert json.loads(document)["name"] == evil


def test_the_shapes_of_tasks_are_known_before_they_are_built():
    for name in ("softmax", "mlp", "tuned-logistic", "robust-logistic", "vertical-representation"):
        build, shape = tasks.available[name], Shape((6,), 2, 2, prior=0.3, widths=(3, 3))
        made, found = build(shape).problem, tasks.start(partial(build, shape))
        wanted = [getattr(made, f"{variable}0") for variable in made.variables]
        assert [one.shape for one in jax.tree.leaves(found)] == [np.shape(one) for one in jax.tree.leaves(wanted)]
