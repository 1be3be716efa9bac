"""Write a model to one file that travels, and open it without the code of its author.

The file holds the weights, what computes predictions from them, the declarations of the columns, the privacy statement
and the version. Predictions are computed by a ready-made task, which is named, or by the author's own `predict`, which
is stored as a compiled program (`stored_program`): no Python code is stored, and opening a file runs none. What a file
says is somebody else's text and somebody else's numbers: sizes are compared before arrays are made.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce
from sottovoce.data import Column, Declarations, DeclaredTable
from sottovoce.data.notes import holder_notes, tell_holder
from sottovoce.data.values import as_text
from sottovoce.defused import markdown
from sottovoce.files import write_atomically
from sottovoce.privacy.report import PrivacyReport, units_of
from sottovoce.problems import tasks
from sottovoce.runtime import checkpoint, shapes, stored_program
from sottovoce.runtime.about import About
from sottovoce.runtime.coefficients import WHAT_IT_IS, Coefficients
from sottovoce.runtime.result import TRAIN, Result, handed
from sottovoce.shown import Shown, glance
from sottovoce.trees import Tree

NAME = "model.sv"  # in the folder of a run
_KIND = "travelling model"
_LISTED = 20  # parties that a card lists


@dataclass(frozen=True)
class NamedTask:
    """Name a ready-made task that computes predictions: its name, its options, and the shape it was built for."""

    name: str
    options: Mapping[str, Any]
    shape: tasks.Shape


@dataclass(frozen=True, eq=False, repr=False)
class Travelling(Shown):
    """Hold what a file is written of: a result, the shape of its features, and what its columns are.

    `features` are one row of encoded features, or a list of blocks; `values` are the classes as the rows had them.
    """

    result: Result
    features: Any
    columns: Declarations | None
    label: str
    target: Column | None
    values: Sequence[Any] | None = None
    coefficients: Coefficients | None = None


@dataclass(frozen=True, eq=False, repr=False)
class OpenedModel(Shown):
    """Predict with a model that `load` opened; its statement and the declarations of its columns come with it.

    `columns` are the declared features, in order; `label` and `target` are the label's name and declaration. A model of
    plain arrays has none of them.
    """

    variables: tuple[Tree, ...]
    predictor: Callable[..., Any]
    privacy: PrivacyReport
    releasable: bool
    version: str
    task: str | None = None
    columns: Declarations | None = None
    label: str | None = None
    target: Column | None = None
    values: tuple[Any, ...] | None = None  # the classes as the rows of an estimator had them
    coefficients: Coefficients | None = None  # of linear models whose errors are known, in the columns' own units
    blocks: int | None = None  # for parties with columns and no table: the number of blocks that it predicts from

    def _told(self) -> list[tuple[str, str]]:
        what = ", ".join(self.classes) or ("a number" if self.target is not None else "what the author's predict gives")
        features = "arrays" if self.columns is None else ", ".join(self.columns)
        return [("predicts", what), ("from", features), *handed(self.releasable, self.privacy)]

    def _repr_html_(self) -> str:
        return glance("Model", self._told(), self.privacy.meaning)

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes; none for a numeric label."""
        return () if self.target is None or self.target.numeric else self.target.names

    def raw(self, rows: Any) -> np.ndarray:
        """Return what the problem's `predict` gives: for an array of features, or for the rows of a table."""
        if self.columns is not None and not isinstance(rows, (np.ndarray, jax.Array)):
            read = self.columns.read(rows)
            tell_holder(holder_notes("the table", read))
            rows = self.columns.encode_read(read)
        width = None if self.columns is None else len(self.columns.names)
        if width is not None and np.shape(rows)[1:] != (width,):
            raise ValueError(f"features have shape {np.shape(rows)}: give a table, or {width} encoded columns")
        return np.asarray(self.predictor(*self.variables, self._features(rows)))

    def _features(self, rows: Any) -> Any:
        if self.blocks is None:
            return jnp.asarray(rows.toarray() if hasattr(rows, "toarray") else np.asarray(rows), jnp.float32)
        if not isinstance(rows, (list, tuple)) or len(rows) != self.blocks:
            raise ValueError(f"this model predicts from a list of {self.blocks} blocks of columns, one per party")
        return [jnp.asarray(block, jnp.float32) for block in rows]

    def probabilities(self, rows: Any) -> np.ndarray:
        """Return one line per row and one column per class, in the order of `classes`."""
        if not self.classes:
            raise ValueError("this model predicts a number, it has no classes: call predict")
        found = self.raw(rows)
        return np.stack([1.0 - found, found], axis=1) if found.ndim == 1 else found

    def predict(self, rows: Any) -> np.ndarray:
        """Return the most probable class of each row, or the number in the label's own unit.

        `rows` is any DataFrame, the path of a file, or an array of encoded features. A model of plain arrays returns
        what the problem's `predict` does.
        """
        if self.target is None:
            return self.raw(rows)
        if not self.target.numeric:
            return np.array(self.classes if self.values is None else self.values)[
                self.probabilities(rows).argmax(axis=1)
            ]
        low, high = self.target.bounds
        low, high = (math.log(low), math.log(high)) if self.target.log else (low, high)
        found = low + (np.clip(self.raw(rows), -1.0, 1.0).astype(np.float64) + 1.0) / 2.0 * (high - low)
        return np.exp(found) if self.target.log else found


def save(
    result: Any,
    path: str | Path,
    *,
    table: DeclaredTable | None = None,
    task: NamedTask | None = None,
    features: Any = None,
    holders: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Write a model to one file, and its card (Markdown) and statement (JSON) beside it.

    Args:
        result: of a run whose problem has `predict`; or a fitted private estimator, or a pipeline of `DeclaredScaler`
            and one, which need no other argument.
        path: of the file, by custom with the ending .sv.
        table: whose columns the model was trained on; then it predicts from tables with the same columns.
        task: the ready-made task that predicts; without one, the problem's own `predict` is stored as a program.
        features: an array of features as `predict` takes them (a list of blocks, for parties with columns), if there is
            no table: only shapes are used.
        holders: for parties with columns, who held which columns of the table, as for `DeclaredTable.blocks`. The file
            then has the parts of all parties, and predicts from the whole table.

    >>> import tempfile, sottovoce as sv
    >>> problem = sv.Minimize(lambda x, r: jnp.sum((x - r) ** 2), jnp.zeros(2), predict=lambda x, rows: rows @ x)
    >>> method = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.1), sampling=sv.Full())
    >>> result = sv.run(problem, [np.ones((100, 2), np.float32)], method, steps=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = sv.load(sv.save(result, folder + "/model.sv", features=np.zeros((1, 2))))
    >>> model.predict(np.ones((5, 2))).shape, model.privacy.epsilon == result.privacy.epsilon
    ((5,), True)
    """
    return save_with(None, result, path, table, task, features, holders)


def save_with(
    coefficients: Coefficients | None,
    result: Any,
    path: str | Path,
    table: DeclaredTable | None = None,
    task: NamedTask | None = None,
    features: Any = None,
    holders: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Write a model as `save` does, with coefficients that the caller computed from what this run released."""
    path = Path(path)
    if not isinstance(result, Result):
        if table is not None or task is not None or features is not None or holders is not None:
            raise TypeError("an estimator knows its columns and its task: give sv.save(model, path)")
        return _write(_of_estimator(result), path, {})
    if result.predictor is None:
        raise ValueError("the problem was stated without predict=: give it predict(x, features), or with y too")
    if table is None and features is None:
        raise ValueError("a model needs to know its features: give table=, or an array features= of the right shape")
    if holders is not None:
        if table is None:
            raise ValueError("holders name columns of a table: give table= too")
        held = [own.tolist() for own in table.columns.held_by(holders)]
        result = replace(result, predictor=_joint(result.predictor, held))
    if table is not None:
        result = replace(result, privacy=_stated(result.privacy, table))
    rows = np.zeros((1, len(table.names))) if table is not None else features
    columns, label, target = (None, "", None) if table is None else (table.columns, table.label, table.target)
    named = (
        {}
        if task is None
        else {"task": {"name": task.name, "options": dict(task.options), "shape": asdict(task.shape)}}
    )
    return _write(Travelling(result, rows, columns, label, target, coefficients=coefficients), path, named)


def _of_estimator(model: Any) -> Travelling:
    """Return an estimator as it travels, alone or at the end of a pipeline."""
    *before, last = [step for _, step in model.steps] if hasattr(model, "named_steps") else [model]
    if not hasattr(last, "travelling"):
        raise TypeError(
            f"a {type(last).__name__} has no privacy statement to travel with: give what sv.run returned, a fitted "
            "private estimator, or a pipeline that ends with one"
        )
    found: Travelling = last.travelling(before)
    return found


def _write(made: Travelling, path: Path, named: dict[str, Any]) -> Path:
    """Write the file, the card and the statement; without a task that is `named`, `predict` is stored as a program."""
    result = made.result
    variables = (result.x,) if result.y is None else (result.x, result.y)
    facts: dict[str, Any] = {
        "privacy": result.privacy.to_dict(),
        "releasable": result.releasable,
        "sottovoce": sottovoce.__version__,
        "variables": len(variables),
    }
    if named:
        facts |= named
    else:
        assert result.predictor is not None
        facts["program"] = stored_program.stored(result.predictor, variables, made.features, result.public_constants)
    if isinstance(made.features, (list, tuple)):
        facts["blocks"] = len(made.features)
    if made.columns is not None:
        facts["columns"] = made.columns.to_dict()
    if made.target is not None:
        facts["label"] = {"name": made.label, **made.target.to_dict()}
    if made.values is not None:
        facts["values"] = list(made.values)
    if made.coefficients is not None:
        facts["coefficients"] = made.coefficients.to_dict()
    checkpoint.save(path, variables, facts, kind=_KIND)
    statement = json.dumps({"releasable": result.releasable, **result.privacy.to_dict()}, indent=1)
    write_atomically(path.with_suffix(".statement.json"), statement.encode())
    if made.coefficients is not None and made.coefficients.shapes:
        drawn = shapes.picture(made.coefficients.shapes)
        write_atomically(path.with_suffix(".curves.svg"), drawn.encode())
    write_atomically(path.with_suffix(".md"), card(load(path), result, path.with_suffix(".curves.svg").name).encode())
    return path


def load(path: str | Path) -> OpenedModel:
    """Open a model file, or the one in the folder of a run; the code of its author is not needed.

    >>> load("nothing.sv")
    Traceback (most recent call last):
    ...
    ValueError: there is no model nothing.sv: give the file that sv.save wrote, or the folder of a run
    """
    path = Path(path)
    path = path / NAME if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"there is no model {path}: give the file that sv.save wrote, or the folder of a run")
    facts, leaves = checkpoint.read(path, _KIND)
    try:
        return _opened(facts, leaves, path)
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"{path} lacks something a model has ({type(error).__name__}: {error}): save it again"
        ) from error


def coefficients_of(path: str | Path) -> Coefficients | None:
    """Return the coefficients that a model file tells, if it is there and tells any; nothing else of it is opened.

    >>> coefficients_of("nothing.sv") is None
    True
    """
    try:
        told = checkpoint.read_meta(Path(path), _KIND).get("coefficients")
        return None if told is None else Coefficients.from_dict(told)
    except (ValueError, TypeError, KeyError):  # a damaged model is no reason to show no report
        return None


def _opened(facts: Mapping[str, Any], leaves: list[np.ndarray], path: Path) -> OpenedModel:
    about: dict[str, Any] = {"blocks": facts.get("blocks")}
    if "columns" in facts:
        about["columns"] = Declarations(facts["columns"])
    if "label" in facts:
        label = dict(facts["label"])
        about |= {"label": label.pop("name"), "target": Column.of(label)}
    if "values" in facts:
        about["values"] = tuple(facts["values"])
    if "coefficients" in facts:
        about["coefficients"] = Coefficients.from_dict(facts["coefficients"])
    if "task" in facts:
        named = facts["task"]
        shape = dict(named["shape"], features=tuple(named["shape"]["features"]))
        build = partial(tasks.get(named["name"]), tasks.Shape(**shape), **named["options"])
        variables, predictor = checkpoint.unflatten(leaves, tasks.start(build), path), build().problem.predict
        about["task"] = named["name"]
    else:
        variables, predictor = (leaves,), stored_program.opened(facts["program"], leaves)
    return OpenedModel(
        variables=variables,
        predictor=predictor,  # type: ignore[arg-type]
        privacy=PrivacyReport.from_dict(facts["privacy"], path),
        releasable=bool(facts["releasable"]),
        version=str(facts["sottovoce"]),
        **about,
    )


def _stated(report: PrivacyReport, table: DeclaredTable) -> PrivacyReport:
    """Return the statement with all that the file will tell of a table: its declarations go into the file too."""
    untold = tuple(line for line in table.facts.words if line not in report.caveats)
    if untold and table.facts.bought:
        raise ValueError(
            f"ranges or lists of {table.source} were bought with noisy counts, which this statement does not charge: "
            "train on the parts of this table, or declare it"
        )
    return replace(report, caveats=(*report.caveats, *untold))


def _joint(predict: Callable[..., Any], held: Sequence[Sequence[int]]) -> Callable[..., Any]:
    """Return `predict` for rows of the whole table, of which each party holds some columns."""

    def block(rows: Any, own: Sequence[int]) -> Any:  # one column at a time: a list of them would be an array
        return jnp.stack([rows[:, column] for column in own], axis=1)

    return lambda x, y, rows: predict(x, y, [block(rows, own) for own in held])


def card(model: OpenedModel, result: Result, picture: str = "") -> str:
    """Write the model card: what is predicted from what, what is guaranteed, and what was measured.

    `picture` is the file beside it that has the curves.
    """
    lines = ["# Model card", "", _handing_out(model), ""]
    if model.columns is not None and model.target is not None:
        kind = f"classes {markdown(', '.join(model.classes))}" if model.classes else "a number"
        lines += [f"Predicts {markdown(str(model.label))} ({kind}) from {len(model.columns)} columns.", ""]
        lines += ["| column | declared as | a missing value counts as |", "|---|---|---|"]
        listed = [(name, _declared(column), _missing(column)) for name, column in model.columns.items()]
        lines += [f"| {' | '.join(map(markdown, cells))} |" for cells in listed]
        lines.append("")
    statement, *told = map(markdown, model.privacy.lines())
    lines += ["## Privacy", "", statement, "", *(f"- {line}" for line in told), ""]
    lines += _of_coefficients(model)
    lines += shapes.section(model.coefficients.shapes if model.coefficients else (), picture)
    lines += _figures(result)
    if result.about is not None and result.about.parties:
        lines += ["## Data", "", *_made_from(result.about), ""]
    how = f"task {model.task}" if model.task else "a stored program"
    lines += [
        "## Use",
        "",
        "    sottovoce predict MODEL.sv new.csv" if model.columns else "    sv.load('MODEL.sv').predict(X)",
        "",
        f"Made by sottovoce {markdown(model.version)}, {markdown(how)}.",
        "",
    ]
    return "\n".join(lines)


def _of_coefficients(model: OpenedModel) -> list[str]:
    """Return the table of coefficients: computed from what was released, so it may be seen where the model may."""
    if model.coefficients is None:
        return []
    heads, cells = model.coefficients.table()
    lines = [f"| {' | '.join(map(markdown, line))} |" for line in (heads, *cells)]
    return [
        "## Coefficients",
        "",
        f"Effects on {markdown(model.coefficients.on)}. {WHAT_IT_IS}",
        "",
        lines[0],
        "|---" * len(heads) + "|",
        *lines[1:],
        "",
    ]


def _figures(result: Result) -> list[str]:
    """Return what was measured: no figure of private rows leaves with a model that may be handed out."""
    final = {name: values[-1] for name, values in result.history.items() if np.ndim(values) == 1 and len(values)}
    figures = [
        f"- {markdown(name)}: {value:.4g}"
        for name, value in final.items()
        if not name.startswith((TRAIN, "bytes ")) and name not in ("step", "seconds", "consensus")
    ]
    if not figures:
        return []
    if result.public_test:
        return ["## Figures", "", "Measured without noise, on rows that were declared public.", "", *figures, ""]
    if result.releasable:
        return ["## Figures", "", "Left out: nobody declared that the rows they were measured on are public.", ""]
    return ["## Figures", "", "Measured on test rows, without noise: no statement covers them.", "", *figures, ""]


def _handing_out(model: OpenedModel) -> str:
    """Say first whether the model may leave."""
    if model.releasable and model.privacy.unit == "label":
        return (
            "**As far as labels go, this model may be handed out**, with this card. Nothing protects the features that "
            "it was computed from: their holders decide."
        )
    if model.releasable:
        return "**This model may be handed out**, with this card."
    if not model.privacy.private:
        why = "Nothing is guaranteed."
    elif model.privacy.drawn == "simulated":
        why = "Its noise was simulated: it comes from a seed, and anybody who knows the seed can remove it."
    else:
        why = "Its noise was not drawn as deployed, or the statement does not cover the model: see its notes."
    return f"**Do not hand this model out.** {why}"


def _made_from(about: About) -> list[str]:
    """Say whose data the model was made from, and when."""
    alone = len(about.parties) == 1
    listed = [
        markdown(
            f"{units_of(what)}: "
            + ", ".join(f"{n}" if alone else f"{who} {n}" for who, n in zip(about.parties, counts[:_LISTED]))
        )
        for what, counts in about.sizes.items()
    ]
    more = len(about.parties) - _LISTED
    rest = [f"- and {more} more parties"] if more > 0 else []
    every = "One party" if alone else f"{len(about.parties)} parties"
    return [f"{every}; the run ended {about.date}.", "", *(f"- {line}" for line in listed), *rest]


def _declared(column: Column) -> str:
    if column.numeric:
        return (
            f"{column.range[0]} to {column.range[1]}"
            + (", logarithm" * column.log)
            + (", with a curve" * (column.curve is not None))
        )
    return ", ".join(column.names) + ", other"


def _missing(column: Column) -> str:
    default = "middle" if column.numeric else "other"
    return default if column.missing is None else as_text(column.missing)
