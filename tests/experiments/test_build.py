"""From tables to things: every type of field, and every unknown name with its nearest."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.data import Levels
from sottovoce.experiments import build
from sottovoce.experiments.construct import construct
from sottovoce.experiments.schema import Data, MethodTable, NetworkTable, TaskTable
from sottovoce.privacy.sampling import Sampling
from sottovoce.problems.tasks import Shape
from sottovoce.schedules import Constant, Decay, Ratio, Scaled, Schedule

SHAPE = Shape((3,), 2, 4)


@dataclass(frozen=True)
class Inner:
    depth: int
    release: sv.Release


@dataclass(frozen=True)
class Everything:
    rate: Schedule | float
    step: Schedule
    sampling: Sampling
    release: sv.Release
    inner: Inner | None = None
    weights: tuple[float, ...] = ()
    design: Literal["sound", "printed"] = "sound"
    flag: bool = False

    @classmethod
    def paper(cls, sigma: float) -> "Everything":
        return cls(1.0, Constant(1.0), sv.Full(), sv.Release(1.0, sigma))


LEAST = {"rate": 1, "step": 2, "sampling": "full", "release": {"clip": 1, "noise": 0.5}}


def make(**table):
    return construct(Everything, {**LEAST, **table}, "[method]")


def test_every_kind_of_field():
    made = make(
        rate=0.5,
        step=[0.1, 0.2],
        sampling={"kind": "fixed-size", "batch": 7},
        release={"clip": 2, "noise": {"value": 1.0, "power": 0.5}, "mechanism": "laplace"},
        inner={"depth": 3, "release": {"clip": 1.0, "noise": [1.0, 2.0]}},
        weights=[1, 2],
        design="printed",
        flag=True,
    )
    assert made.step == Constant((0.1, 0.2))
    assert made.sampling == sv.FixedSize(7)
    assert made.release == sv.Release(2, Decay(1.0, 0.5), "laplace")
    assert made.inner == Inner(3, sv.Release(1.0, Constant((1.0, 2.0))))
    assert (made.weights, made.design, made.flag) == ((1.0, 2.0), "printed", True)


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        (0.5, Constant(0.5)),
        ({"value": 1.0}, Constant(1.0)),
        ({"value": 1.0, "power": 0.5, "offset": 2.0}, Decay(1.0, 0.5, 2.0)),
        ({"value": 1.0, "power": [0.5, 1.0]}, Decay(1.0, (0.5, 1.0))),
        ({"of": {"value": 1.0}, "factor": 2.0}, Scaled(Constant(1.0), 2.0)),
        ({"top": {"value": 1.0}, "bottom": {"value": 1.0, "power": 0.5}}, Ratio(Constant(1.0), Decay(1.0, 0.5))),
        ({"kind": "decay", "value": 1.0, "power": 0.5}, Decay(1.0, 0.5)),
    ],
)
def test_schedules(table, wanted):
    assert make(step=table).step == wanted


@pytest.mark.parametrize("kind", ["poisson", "fixed-size", "with-replacement", "one-pass"])
def test_samplings_by_name(kind):
    assert make(sampling={"kind": kind, "batch": 3}).sampling.batch == 3


def test_a_class_method_can_make_it():
    assert construct(Everything.paper, {"sigma": 2}, "[method]").release == sv.Release(1.0, 2.0)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rte": 1}, r"no key of \[method\] 'rte'; did you mean 'rate'"),
        (
            {"sampling": {"kind": "poison", "batch": 3}},
            r"no kind of \[method\].sampling 'poison'; did you mean 'poisson'",
        ),
        ({"sampling": {"kind": "poisson", "bach": 3}}, "did you mean 'batch'"),
        ({"sampling": {"kind": "poisson"}}, r"\[method\].sampling lacks batch"),
        ({"sampling": {"batch": 3}}, "name its kind"),
        ({"sampling": 5}, r"\[method\].sampling is 5: write a table"),
        ({"release": {"clip": 1.0}}, r"release lacks noise: add it, or set privacy.epsilon"),
        ({"release": {"clp": 1.0}}, r"\[method\].release 'clp'; did you mean 'clip'"),
        ({"release": {"clip": 1.0, "noise": 1.0, "mechanism": "gausian"}}, "mechanism is 'gausian'"),
        ({"inner": 5}, r"\[method\].inner is 5: write a table such as \{depth = ..., release = ...\}"),
        ({"inner": {"depht": 1}}, r"\[method\].inner 'depht'; did you mean 'depth'"),
        ({"inner": {"depth": "deep", "release": {"clip": 1.0, "noise": 1.0}}}, "inner.depth is 'deep'"),
        ({"design": "sond"}, r"\[method\].design is 'sond': input should be 'sound' or 'printed'"),
        ({"step": {"value": 1.0, "powr": 2}}, r"\[method\].step has keys"),
        ({"rate": "fast"}, r"\[method\].rate is 'fast'"),
    ],
)
def test_what_is_wrong_with_a_field_is_named(table, message):
    with pytest.raises(ValueError, match=message):
        make(**table)


def test_unknown_names():
    with pytest.raises(ValueError, match="no method 'DpSdg'; did you mean 'DpSgd'"):
        build.method(MethodTable(name="DpSdg"))
    with pytest.raises(ValueError, match="no class method of DpSgd 'papr'"):
        build.method(MethodTable(name="DpSgd.papr"))
    with pytest.raises(ValueError, match="no network 'rng'; did you mean 'ring'"):
        build.network(NetworkTable(kind="rng"), 4)
    with pytest.raises(ValueError, match=r"no key of \[network\] 'wieght'; did you mean 'weight'"):
        build.network(NetworkTable(kind="ring", wieght=0.3), 4)
    with pytest.raises(ValueError, match="no task 'logistik'"):
        build.task(TaskTable(name="logistik"), SHAPE)
    with pytest.raises(ValueError, match=r"no key of \[task\] 'penlty'; did you mean 'penalty'"):
        build.task(TaskTable(name="logistic", penlty=1.0), SHAPE)
    with pytest.raises(ValueError, match="no data set 'digit'; did you mean 'digits'"):
        build.records(Data(name="digit"))
    with pytest.raises(ValueError, match=r"no key of \[data\] 'dm'; did you mean 'dim'"):
        build.records(Data(name="logistic", n=50, dm=3))


def test_a_release_without_noise_is_for_calibration():
    table = MethodTable(name="DpSgd", rate=1.0, sampling="full", gradient={"clip": 2.0})
    assert build.method(table, calibrated=True).gradient.scale(0) == 2.0
    with pytest.raises(ValueError, match="lacks noise"):
        build.method(table)


@pytest.mark.parametrize(
    ("table", "edges"),
    [
        ({"kind": "ring", "weight": 0.3}, 8),
        ({"kind": "erdos-renyi", "p": 1.0}, 12),
        ({"kind": "erdos_renyi", "p": 1.0}, 12),
        ({"kind": "regular", "degree": 3}, 12),
        ({"kind": "directed", "pull": [[0, 1], [1, 2], [2, 3], [3, 0]], "push": [[0, 1], [1, 2], [2, 3], [3, 0]]}, 4),
    ],
)
def test_networks(table, edges):
    assert len(build.network(NetworkTable(**table), 4).edges) == edges


def test_equal_tasks_are_one_object_so_that_seeds_share_a_program() -> None:
    shape = Shape((4,), classes=3, agents=2)
    first, again, other = (build.task(TaskTable(name="softmax", penalty=p), shape) for p in (0.1, 0.1, 0.2))
    assert first is again
    assert first is not other


def test_networks_must_fit_the_parties():
    assert build.network(None, 4).name == "complete graph of 4"
    with pytest.raises(ValueError, match=r"the network has 1 agents, but there are 4 parties"):
        build.network(NetworkTable(kind="single"), 4)
    assert build.network(None, 1).size == 1


def test_data_options():
    parts, test, shape = build.records(Data(name="digits", agents=3, limit=90, positive=[0, 1], image=True))
    assert [len(part) for part in parts] == [30] * 3
    assert shape == Shape((8, 8, 1), 2, 3)
    assert [set(part.gather()["party"].tolist()) for part in parts] == [{0}, {1}, {2}]
    assert set(np.unique(test["label"])) == {0, 1}
    parts, *_ = build.records(Data(name="digits", agents=3, limit=90, upper=0.2))
    assert isinstance(parts[0], Levels)
    assert len(parts[0].upper) == 6


@pytest.mark.slow
def test_levels_may_hold_the_same_records_and_draw_batches_of_their_own() -> None:
    parts, *_ = build.records(Data(name="digits", agents=3, limit=90, upper="same"))
    assert [len(part.upper) for part in parts] == [len(part.lower) for part in parts] == [30] * 3
    assert sv.Population.of(parts).in_both_levels(0)  # a record pays for both
    # After one step from 0, y is minus the mean number in the lower level's batch, and z the mean in the upper one's.
    held = {"number": np.arange(30, dtype=np.float32)}
    problem = sv.Bilevel(lambda x, y, r: y * r["number"], lambda x, y, r: y * r["number"], 0.0, 0.0)
    method = sv.methods.LdpDsbo(0.1, 1.0, 1.0, *[sv.Release.open()] * 2, sv.FixedSize(2))
    for part, one_batch in ((held, True), (sv.data.Levels(held, held), False)):
        state = sv.run(problem, [part], method, steps=1).agents
        assert (float(state.z[0]) == -float(state.y[0])) == one_batch


def test_a_patient_is_not_in_both_training_and_test():
    parts, test, _ = build.records(Data(name="patients", count=60, agents=2, unit="patient_id"))
    seen = {i for part in parts for i in part.gather()["patient_id"].tolist()}
    assert not seen & set(test["patient_id"].tolist())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"skew": 0.3}, 'data.skew needs data.by = "label"'),
        ({"alpha": 0.3, "by": "label"}, 'data.alpha needs data.by = "dirichlet"'),
        ({"positive": [3, 10]}, "some of the labels 0 to 9"),
        ({"positive": list(range(10))}, "not all"),
        ({"sizes": [3, 3]}, 'data.sizes needs data.by = "sizes"'),
        ({"name": "heterogeneous", "limit": 5}, "data.limit has no effect"),
    ],
)
def test_combinations_that_make_no_sense(table, message):
    with pytest.raises(ValueError, match=message):
        build.records(Data(**{"name": "digits", **table}))
