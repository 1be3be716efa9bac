"""`sv.auto` beside hand-tuned settings, at the same epsilon, network and split of the records.

    SOTTOVOCE_DATA=... python -m benchmarks.auto a9a | a9a-search | mnist | mnist-search | useless-features

Hand-tuned: the run files dp-bilevel/a9a (its best variant), dp-sgd/mnist and ldp-dsbo/useless-features (its best
variant), with the settings as shipped. `auto` knows sizes, epsilon, the network and the declared norm of a row.
`a9a-search` and `mnist-search` are random searches over rates and clips of DP-SGD that `sv.select` charges, with the
same total epsilon.
"""

import math
import sys
import time
from typing import Any

import numpy as np

import sottovoce as sv
from sottovoce.problems.tasks import Shape, get
from sottovoce.schedules import Linear

QUIET = sv.Performance(progress=False, chunk=4096)
SEEDS = range(3)


def report(name: str, metric: str, problem: Any, parts: Any, evaluate: Any, plans: dict[str, dict[str, Any]]) -> None:
    for who, settings in plans.items():
        found, start = [], time.perf_counter()
        for seed in SEEDS:
            result = sv.run(
                problem, parts, **settings, seed=seed, evaluate=evaluate, every=settings["steps"], performance=QUIET
            )
            found.append(float(result.history[metric][-1]))
        spent = time.perf_counter() - start
        print(
            f"{name}, {who}: {metric} {np.mean(found):.4f} ({min(found):.4f} to {max(found):.4f}), {spent:.0f} s",
            flush=True,
        )


def a9a() -> None:
    train, test = sv.data.load("a9a")
    task = get("logistic")(Shape((train["features"].shape[1],), 2, 1))
    parts = sv.data.split(train, 1)
    plan = sv.auto(task.problem, parts, epsilon=1.0, norm=math.sqrt(14))  # 14 columns, one category each
    hand = sv.methods.DpSgd(1.0, sv.Release(1.0, 1.0), sv.Full())
    given = {"method": hand, "steps": 200, "epsilon": 1.0, "adjacency": "zero-out"}
    report("a9a", "auroc", task.problem, parts, task.metrics(test), {"auto": plan.settings, "hand-tuned DP-SGD": given})


def search(name: str, metric: str, task: Any, train: Any, test: Any, steps: int, rates: Any, seeds: Any) -> None:
    """Search rates and clips of DP-SGD at random with epsilon 1 in all; a fifth of the rows is for scores only."""
    count = len(train["label"])
    judge, fit = (part.gather() for part in sv.data.split(train, 2, "sizes", sizes=[count // 5, count - count // 5]))
    evaluate, n = task.metrics(test), count - count // 5

    def candidate(rate: float, clip: float) -> Any:
        def trained(mu: float) -> Any:
            release = sv.Release(clip, clip * math.sqrt(steps) / (mu * n))  # together mu-GDP under zero-out
            method = sv.methods.DpSgd(rate / clip, release, sv.Full())
            return sv.run(task.problem, [fit], method, steps=steps, seed=None, every=steps, performance=QUIET).x

        return trained

    noise = np.random.default_rng()

    def score(x: Any, mu: float) -> float:
        guessed = np.asarray(task.problem.predict(x, judge["features"]))
        classes = guessed.argmax(axis=1) if guessed.ndim == 2 else guessed > 0.5
        right = classes == judge["label"]
        return float(right.mean() + noise.normal() / (mu * len(right)))

    grid = {f"rate {r:g}, clip {c:g}": candidate(r, c) for r in rates for c in (0.3, 1.0, 3.0)}
    for number in seeds:
        start = time.perf_counter()
        found = sv.select(grid, score, epsilon=1.0, trials=8, seed=number)
        reached = math.nan if found.output is None else float(evaluate(found.output)[metric])
        print(
            f"{name}, charged random search {number}: {metric} {reached:.4f} ({found.name}, each trial {found.mu:.3f}-"
            f"GDP), {time.perf_counter() - start:.0f} s",
            flush=True,
        )


def a9a_search() -> None:
    train, test = sv.data.load("a9a")
    task = get("logistic")(Shape((train["features"].shape[1],), 2, 1))
    search("a9a", "auroc", task, train, test, 100, (0.1, 0.3, 1.0, 3.0), SEEDS)


def mnist_search() -> None:
    """All rows in one place, which has less noise than the ten parties of `mnist`."""
    train, test = sv.data.load("mnist")
    task = get("softmax")(Shape(test["features"].shape[1:], 10, 1))
    search("mnist", "accuracy", task, train, test, 60, (0.5, 1.5, 4.5), range(2))


def mnist() -> None:
    train, test = sv.data.load("mnist")
    task = get("softmax")(Shape(test["features"].shape[1:], 10, 10))
    parts, network = sv.data.split(train, 10, "label", skew=0.5), sv.networks.ring(10, weight=0.3)
    plan = sv.auto(task.problem, parts, epsilon=1.0, network=network, norm=28.0)  # 784 pixels between 0 and 1
    hand = sv.methods.DpSgd(Linear(4.5, 0.1, 300), sv.Release(1.0, 1.0), sv.Poisson(500))
    given = {"method": hand, "steps": 300, "epsilon": 1.0, "network": network}
    report("mnist", "accuracy", task.problem, parts, task.metrics(test), {"auto": plan.settings, "hand-tuned": given})


def useless_features() -> None:
    held = sv.data.synthetic.patients(count=5000, informative=5, useless=195)
    for_test = np.asarray(held["patient_id"]) % 5 == 0
    train, test = ({name: leaf[rows] for name, leaf in held.items()} for rows in (~for_test, for_test))
    parts = sv.data.split(train, 10, unit="patient_id")
    network = sv.networks.ring(10, weight=0.3)
    shape = Shape(np.shape(test["features"])[1:], 2, 10)
    plain = {"steps": 100, "epsilon": 2.0, "network": network, "adjacency": "zero-out"}
    task = get("logistic")(shape)
    hand = sv.methods.DpSgd(Linear(2.0, 0.1, 100), sv.Release(1.0, 1.0), sv.Full())
    report("useless", "auroc", task.problem, parts, task.metrics(test), {"DP-SGD": {**plain, "method": hand}})
    task = get("tuned-logistic")(shape, penalty=0.01, start=2.0, limit=2.5, norm=4.0, groups=40)
    plan = sv.auto(task.problem, parts, epsilon=2.0, network=network, norm=4.0)
    release = sv.Release(1.0, 1.0)
    method = sv.methods.LdpDsbo(
        step_x=40.0, step_y=Linear(2.0, 0.1, 100), step_z=0.5, release_y=release, release_z=release, z_radius=20.0,
        sampling=sv.Full(),
    )  # fmt: skip
    both = {"auto": plan.settings, "hand-tuned": {**plain, "method": method}}
    report("useless", "auroc", task.problem, parts, task.metrics(test), both)


if __name__ == "__main__":
    chosen = {
        "a9a": a9a,
        "a9a-search": a9a_search,
        "mnist": mnist,
        "mnist-search": mnist_search,
        "useless-features": useless_features,
    }
    chosen[sys.argv[1]]()
