"""The memory of one private step of ResNet-18: five agents on directed graphs, a batch of 57 each, clipped per record.

    python -m benchmarks.resnet [--width 64] [--batch 57] [--steps 1]

The pictures are random (32x32x3): memory and time do not depend on what they show. Peak memory is that of the whole
process, compilation included.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import sottovoce as sv
from benchmarks import measure
from sottovoce.papers.gradient_tracking.theory import Rates
from sottovoce.problems import models
from sottovoce.problems.tasks import Shape, get

PULL = [(0, 1), (1, 0), (1, 2), (0, 3), (3, 4)]
PUSH = [(1, 0), (0, 1), (2, 0), (3, 1), (4, 3)]


def pictures(count: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "features": rng.random((count, 32, 32, 3), np.float32),
        "label": rng.integers(0, 10, count).astype(np.int32),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("width", 64), ("batch", 57), ("steps", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    problem = get("resnet18")(Shape((32, 32, 3), 10, 5), width=given.width).problem
    method = sv.methods.DpGradientTracking(
        Rates(0.5, 0.5, 0.05), sv.Release(clip=1.0, noise=0.02), sampling=sv.FixedSize(given.batch)
    )
    parts = [pictures(200, agent) for agent in range(5)]
    began = time.perf_counter()
    result = sv.run(
        problem, parts, method, network=sv.networks.directed(PULL, PUSH), steps=given.steps, every=given.steps
    )
    peak = measure.peak_mib() / 2**10
    print(f"ResNet-18, width {given.width}: {models.size(result.x):,} parameters, 5 agents, batch {given.batch} each")
    print(
        f"peak memory {peak:.2f} GiB; {given.steps} step(s) in {result.history['seconds'][-1]:.0f} s compile included"
    )
    print(f"all in all {time.perf_counter() - began:.0f} s; {result.privacy.statement()}")


if __name__ == "__main__":
    main()
