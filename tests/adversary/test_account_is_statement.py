"""The account is the run's own statement: random methods, problems, structures, sizes and networks.

A run is taken up to the point where it would draw something; what it would hand out with its result is compared.
"""

from collections import Counter
from dataclasses import dataclass
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.privacy.labels import Fresh, Memoised, Open, Printed
from sottovoce.problems.vertical import Vertical, cross_entropy, logistic
from tests.methods.contract import network_for, noisy

SAME = ("epsilon", "delta", "per_agent", "per_level", "published", "design", "adjacency", "unit", "accountant",
        "method", "steps", "events")  # fmt: skip
METHODS = {
    f"{kind.__name__}-{label}": noisy(method)
    for kind in sv.methods.available.values()
    for label, method in kind.examples().items()
    if Vertical not in method.solves
}
GATES = (Memoised(1.0), Memoised(0.5, "debiased"), Fresh(30.0), Fresh(30.0, shared=True), Printed(30.0), Open())
RUN = import_module("sottovoce.runtime.run")
COUNTS: Counter[str] = Counter()


class _Stated(Exception):
    """Ends a run where it would begin."""


def statement_of_run(*given, **options):
    """The statement that a run would hand out, without its steps."""

    def drive_all(runs):
        raise _Stated(runs[0].job.report)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RUN, "drive_all", drive_all)
        try:
            sv.run(*given, **options)
        except _Stated as stopped:
            return stopped.args[0]
    raise AssertionError("the run did not begin")


def require_same(stated, run):
    """One statement, whoever makes it; a run adds how its noise is drawn."""
    assert {name: getattr(stated, name) for name in SAME} == {name: getattr(run, name) for name in SAME}
    assert set(stated.caveats) <= set(run.caveats)


def total(tree):
    return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree))


def start_of(shapes):
    """A tree with leaves of these shapes; alone, or nested."""
    leaves = [np.full(shape, 0.1, np.float32) for shape in shapes]
    return leaves[0] if len(leaves) == 1 else {"first": leaves[0], "rest": tuple(leaves[1:])}


def problem_of(kind, x, y):
    if kind is sv.Minimize:
        return sv.Minimize(lambda x, r: total(x) * jnp.sum(r["a"]) + r["b"], x, public=total)
    if kind is sv.MinMax:
        return sv.MinMax(lambda x, y, r: (total(x) - total(y)) * jnp.sum(r["a"]), x, y)
    return sv.Bilevel(
        lambda x, y, r: total(y) * r["b"], lambda x, y, r: total(y) * jnp.sum(r["a"]), x, y,
        public_lower=lambda x, y: total(x) + total(y),
    )  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """One configuration of parties with rows."""

    method: str
    shapes: tuple
    sizes: tuple
    width: int
    steps: int
    delta: float
    adjacency: str | None
    spread: float


shapes = st.lists(st.sampled_from([(), (1,), (3,), (2, 2), (1, 4, 2)]), min_size=1, max_size=4).map(tuple)
configurations = st.builds(
    Setting,
    method=st.sampled_from(sorted(METHODS)),
    shapes=shapes,
    sizes=st.lists(st.integers(8, 40), min_size=1, max_size=4).map(tuple),
    width=st.integers(1, 5),
    steps=st.integers(1, 4),
    delta=st.sampled_from([1e-6, 1e-3]),
    adjacency=st.sampled_from([None, "zero-out", "replace-one"]),
    spread=st.sampled_from([0.0, 0.5]),
)


def compare(setting):
    """The statements of a run, and of accounts with the problem, with the parts alone, and with the sizes alone."""
    method = METHODS[setting.method]
    x, y = start_of(setting.shapes), start_of(setting.shapes[::-1])
    problem = problem_of(method.solves[0], x, y)
    parts = [{"a": np.ones((n, setting.width), np.float32), "b": np.arange(n, dtype=np.float32)} for n in setting.sizes]
    common = {
        "steps": setting.steps,
        "network": network_for(method, len(parts)),
        "delta": setting.delta,
        "adjacency": setting.adjacency,
    }
    try:
        stated = sv.account(method, parts, problem=problem, **common)
    except (TypeError, ValueError) as refused:
        COUNTS["refused"] += 1
        with pytest.raises(type(refused)):
            sv.run(problem, parts, method, **common)
        return
    COUNTS["compared"] += 1
    require_same(stated, statement_of_run(problem, parts, method, **common))
    one = jax.tree.map(lambda leaf: leaf[0], parts[0])
    require_same(sv.account(method, sv.Population(setting.sizes, record=one), problem=problem, **common), stated)
    for data in (parts, sv.Population(setting.sizes)):
        require_same(sv.account(method, data, **common), stated)


PLAIN = {"deadline": None, "suppress_health_check": list(HealthCheck), "phases": [Phase.generate]}  # nothing to shrink
quick = settings(max_examples=4, derandomize=True, **PLAIN)


@pytest.mark.filterwarnings("ignore")
@quick
@given(configurations)
def test_an_account_of_rows_is_the_statement_of_the_run(setting):
    compare(setting)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=150, **PLAIN)
@given(configurations)
def test_an_account_of_rows_is_the_statement_of_the_run_often(setting):
    compare(setting)


def compare_tables(gate, width, classes, steps, inner_steps, draw, hidden):
    blocks = [np.full((24, width + m), 0.5, np.float32) for m in range(2)]
    labels = np.arange(24) % classes
    outputs = 1 if classes == 2 else classes
    problem = Vertical(
        embed=lambda x, a: jnp.tanh(a @ x),
        head=lambda y, e: e @ y,
        losses=logistic if classes == 2 else cross_entropy,
        x0=[np.full((width + m, hidden), 0.1, np.float32) for m in range(2)],
        y0=[np.zeros((hidden, outputs), np.float32)] * 2,
    )
    method = sv.methods.Bambi(inner_steps, 8, 0.1, 0.1, gate, directions=steps, draw=draw)

    def table():
        return sv.Table(sv.Columns(blocks), sv.Labels(labels, classes=classes, seed=3))

    stated = sv.account(method, table(), steps=steps, problem=problem)
    require_same(stated, statement_of_run(problem, table(), method, steps=steps))


tables = {
    "gate": st.sampled_from(GATES),
    "width": st.integers(1, 3),
    "classes": st.integers(2, 3),
    "steps": st.integers(1, 3),
    "inner_steps": st.integers(1, 3),
    "draw": st.sampled_from(["passes", "uniform"]),
    "hidden": st.integers(1, 3),
}


@quick
@given(**tables)
def test_an_account_of_columns_is_the_statement_of_the_run(**setting):
    compare_tables(**setting)


@pytest.mark.slow
@settings(max_examples=100, **PLAIN)
@given(**tables)
def test_an_account_of_columns_is_the_statement_of_the_run_often(**setting):
    compare_tables(**setting)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in sorted(METHODS) if "sound" in name or "full" in name])
def test_what_a_finished_run_hands_out_is_its_account(name):
    method = METHODS[name]
    problem = problem_of(method.solves[0], start_of([(2,), ()]), start_of([(3,)]))
    parts = [{"a": np.ones((12, 2), np.float32), "b": np.arange(12, dtype=np.float32)}] * 2
    common = {"steps": 2, "network": network_for(method, 2)}
    require_same(sv.account(method, parts, problem=problem, **common), sv.run(problem, parts, method, **common).privacy)
