"""The smuggler: tries to bring a private array in through every public parameter."""

import ast
import dataclasses
import inspect
import types
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.privacy.labels import Memoised
from sottovoce.problems.linear_model import LinearModel, PartyWeights
from sottovoce.problems.vertical import Vertical, logistic
from sottovoce.runtime.stored_program import stored

from .parameters import TABLE, WAYS

ROWS = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
SECRET = jnp.asarray(ROWS.mean(axis=0))
REFUSED = r"by-pass the privacy gate|calls back to Python|lives outside|rule of its own"
LISTED = {"start": "starting values", "setting": "settings", "declared": "preprocessing"}


def public_parameters():
    """Every parameter of the public names, and of what the modules among them hold: {"file.name": [parameter, ...]}."""
    stub = ast.parse(Path(sv.__file__).with_suffix(".pyi").read_text())
    names = [name.asname for line in stub.body if isinstance(line, ast.ImportFrom) for name in line.names]
    held = [getattr(sv, name) for name in names]
    inside = [getattr(one, name) for one in held if isinstance(one, types.ModuleType) for name in dir(one)
              if not name.startswith("_")]  # fmt: skip
    found = {}
    for one in (*held, *inside, *sv.methods.available.values()):
        own = callable(one) and getattr(one, "__module__", "").startswith("sottovoce.")
        if own and not (isinstance(one, type) and issubclass(one, Exception)):
            left = ("self", "args", "kwargs", "options")
            listed = [name for name in inspect.signature(one).parameters if name not in left]
            if listed:
                found[f"{one.__module__.rsplit('.', 1)[-1]}.{one.__qualname__}"] = listed
    return found


def test_every_public_parameter_has_a_row():
    rows = {owner: [name for names in row.values() for name in names.split()] for owner, row in TABLE.items()}
    found = public_parameters()
    assert {owner: sorted(names) for owner, names in found.items()} == {o: sorted(names) for o, names in rows.items()}
    assert {way for row in TABLE.values() for way in row} <= set(WAYS)


# How an array, or a call back to Python, hides in a function.


def scaled(result, factor):
    return jax.tree.map(lambda leaf: leaf * factor, result)


class _Holder:
    """Keeps an array, and is called as the function is."""

    def __init__(self, function):
        self.function, self.held = function, SECRET

    def __call__(self, *given):
        return scaled(self.function(*given), self.held[0])


def by_closure(function):
    return lambda *given: scaled(function(*given), SECRET[0])


def by_default(function):
    return lambda *given, held=SECRET: scaled(function(*given), held[0])


def by_partial(function):
    return partial(lambda held, *given: scaled(function(*given), held[0]), SECRET)


def by_list(function):
    return lambda *given: scaled(function(*given), jnp.array([0.1, 0.2])[0])


def by_static_argument(function):
    times = jax.jit(lambda result, held: scaled(result, jnp.array(held)[0]), static_argnums=1)
    return lambda *given: times(function(*given), (0.1, 0.2))


def by_rule(function):
    """The derivative holds it, or the function itself where no derivative is taken."""
    made = jax.custom_jvp(lambda value: value)
    made.defjvp(lambda at, along: (at[0], along[0] * jnp.array([0.1, 0.2])[0]))
    return lambda *given: jax.tree.map(lambda leaf: made(jnp.asarray(leaf, jnp.float32)), function(*given))


def by_callback(function):
    def called(leaf):
        leaf = jnp.asarray(leaf, jnp.float32)
        return leaf * jax.pure_callback(lambda: np.float32(2.0), jax.ShapeDtypeStruct((), jnp.float32))

    return lambda *given: jax.tree.map(called, function(*given))


def by_state(function):
    kept = jax.new_ref(jnp.zeros(()))
    return lambda *given: scaled(function(*given), kept[...])


WITHOUT_DERIVATIVE = ("project_x", "project_y", "predict", "alter", "features", "target", "best")
HIDING = (by_closure, by_default, by_partial, _Holder, by_list, by_static_argument, by_rule, by_callback, by_state)


# The functions of problems, as they are without anything hidden.

X, Y = {"weights": jnp.zeros(2), "bias": jnp.zeros(())}, jnp.zeros(1)
SGD = sv.methods.DpSgd(0.1, sv.Release(1.0, 1.0), sv.Full())
NEWTON = sv.methods.DpNewton(sv.Release(1.25, 0.1), sv.Release(1.0, 0.1))
SADDLE = sv.methods.DpNewton(sv.Release(1.25, 0.1), sv.Release(1.0, 0.1), losses=sv.Release(1.0, 0.1))
SGDA = sv.methods.DpSgda(0.1, 0.1, sv.Full(), sv.Release(1.0, 1.0), sv.Release(1.0, 1.0))
F2SA = next(iter(sv.methods.F2sa.examples().values()))
BAMBI = sv.methods.Bambi(1, 20, 0.1, 0.1, Memoised(0.1))


def score(x, r):
    return r @ x["weights"] + x["bias"]


def squared(x):
    return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(x))


MODEL = {"features": lambda r: r, "loss": lambda s, r: jnp.sum(s**2), "target": lambda r: r[0]}
PLAIN = {
    "objectives.Minimize": {
        "loss": lambda x, r: score(x, r) ** 2, "public": squared, "project_x": lambda x: x,
        "predict": lambda x, f: f @ x["weights"],
    },
    "objectives.MinMax": {
        "loss": lambda x, y, r: score(x, r) * jnp.sum(y), "public": lambda x, y: squared(x) - squared(y),
        "project_x": lambda x: x, "project_y": lambda y: y, "predict": lambda x, y, f: f @ x["weights"],
    },
    "objectives.Bilevel": {
        "upper": lambda x, y, r: score(x, r) ** 2 * jnp.sum(y),
        "lower": lambda x, y, r: jnp.sum((y - score(x, r)) ** 2),
        "public_upper": lambda x, y: squared(x), "public_lower": lambda x, y: squared(y),
        "project_x": lambda x: x, "predict": lambda x, y, f: f @ x["weights"],
    },
    "vertical.Vertical": {
        "embed": lambda x, a: a * jnp.exp(x), "head": lambda y, e: e @ y, "losses": logistic,
        "penalty": lambda x, y: jnp.sum(y**2), "alter": lambda key, a: a,
    },
}  # fmt: skip
INSIDE = {"linear": tuple(MODEL), "weighted": ("features", "loss")}  # functions inside of an argument


def account_with(owner, name, hide):
    """Account for a problem with something hidden in one of its functions."""
    given = dict(PLAIN[owner])
    if name in INSIDE or name in MODEL:
        inner = {**MODEL, name: hide(MODEL[name])}
        if owner == "objectives.MinMax":
            inner.pop("target")
        model = LinearModel(**inner, curvature=1.0, residual=1.0)
        known = {"linear": model} if owner == "objectives.Minimize" else {"weighted": PartyWeights(model, 1.0)}
    else:
        given[name], known = hide(given[name]), {}
    if owner == "vertical.Vertical":
        problem = Vertical(**given, x0=[jnp.zeros(())] * 2, y0=[jnp.zeros((2, 1))] * 2)
        table = sv.Table(sv.Columns([ROWS, ROWS]), sv.Labels(np.arange(40) % 2, classes=2))
        return sv.account(BAMBI, table, steps=1, problem=problem)
    kind = {"Minimize": sv.Minimize, "MinMax": sv.MinMax, "Bilevel": sv.Bilevel}[owner.split(".")[1]]
    method = {sv.Minimize: NEWTON if known else SGD, sv.MinMax: SADDLE if known else SGDA, sv.Bilevel: F2SA}[kind]
    starts = (X,) if kind is sv.Minimize else (X, Y)
    if name == "predict":
        return stored(given[name], starts, np.zeros((1, 2)))
    names = dict(zip(("x0", "y0"), starts))
    return sv.account(method, [ROWS], steps=1, problem=kind(**given, **names, **known))


CASES = [
    (owner, inner)
    for owner, row in TABLE.items()
    for name in row.get("function", "").split()
    for inner in INSIDE.get(name, (name,))
]
ATTEMPTS = [(owner, name, hide) for owner, name in CASES for hide in HIDING]


def attempt(owner, name, hide):
    """Refused, or nothing was brought in: a rule for a derivative that nobody takes."""
    if hide is by_rule and name in WITHOUT_DERIVATIVE:
        return
    with pytest.raises(ValueError, match=REFUSED):
        account_with(owner, name, hide)


def test_the_table_names_every_function():
    """A function of a problem that the attempts do not know fails here."""
    for owner, name in CASES:
        assert name in PLAIN[owner] or name in MODEL, (owner, name)


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: ".".join(CASES[number]))
def test_a_function_brings_nothing_along(number):
    """One way of hiding for each function; all of them in the slow test."""
    owner, name = CASES[number]
    hide = HIDING[number % len(HIDING)]
    attempt(owner, name, by_list if hide is by_rule and name in WITHOUT_DERIVATIVE else hide)


@pytest.mark.slow
@pytest.mark.parametrize(("owner", "name", "hide"), ATTEMPTS, ids=str)
def test_a_function_brings_nothing_along_in_any_way(owner, name, hide):
    attempt(owner, name, hide)


def settings_of_methods():
    for kind in sv.methods.available.values():
        owner = f"{kind.__module__.rsplit('.', 1)[-1]}.{kind.__qualname__}"
        for name in TABLE[owner]["setting"].split() if owner in TABLE else ():
            yield next(iter(kind.examples().values())), name


@pytest.mark.filterwarnings("ignore")
def test_an_array_is_no_setting_of_a_method():
    """An array is refused where a number, a release, a sampling or a choice belongs."""
    population, network = sv.Population([30, 40]), sv.networks.ring(2)
    tried, refused = 0, (TypeError, ValueError, AttributeError)
    for method, name in settings_of_methods():
        tried += 1
        with pytest.raises(refused):
            sv.account(dataclasses.replace(method, **{name: SECRET}), population, steps=1, network=network)
    assert tried > 100


@pytest.mark.parametrize(
    "made",
    [
        lambda: sv.Release(SECRET, 1.0), lambda: sv.Release(1.0, SECRET), lambda: sv.Release(1.0, 1.0, SECRET),
        lambda: sv.Release(1.0, 1.0, name=SECRET), lambda: sv.Poisson(SECRET), lambda: sv.Poisson(5, cut=SECRET),
        lambda: sv.FixedSize(SECRET), lambda: sv.OnePass(SECRET), lambda: sv.Stream(SECRET),
        lambda: sv.WithReplacement(SECRET), lambda: sv.schedules.schedule(SECRET),
    ],
)  # fmt: skip
def test_an_array_is_no_setting_of_a_release_or_a_sampling(made):
    with pytest.raises((TypeError, ValueError)):
        made()


def test_what_is_taken_as_public_is_in_the_statement():
    rows = sv.account(SGD, sv.Population([40]), steps=1).caveats
    assert all(any("taken as public" in line and word in line for line in rows) for word in LISTED.values())
    problem = Vertical(**PLAIN["vertical.Vertical"], x0=[jnp.zeros(())], y0=[jnp.zeros((2, 1))])
    table = sv.Table(sv.Columns([ROWS]), sv.Labels(np.arange(40) % 2, classes=2))
    columns = sv.account(BAMBI, table, steps=1, problem=problem).caveats
    words = ("starting values", "settings", "plain numbers")
    assert all(any("taken as public" in line and word in line for line in columns) for word in words)
