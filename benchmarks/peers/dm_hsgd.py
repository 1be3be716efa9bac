"""DM-HSGD in NumPy with mpi4py, one rank per agent: ``mpirun -n 5 python -m benchmarks.peers.dm_hsgd``.

Robust logistic regression: min over x, max over weights y of the agents. Gradients are written out by hand, batches
have a fixed size, there is no clip and no noise: the least work that this algorithm can be.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from mpi4py import MPI

from benchmarks import measure
from benchmarks.peers import work

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
STEPS = 200


class Agent:
    def __init__(self) -> None:
        self.features, self.label = work.adults(RANK)
        self.rng = np.random.default_rng(RANK)
        self.x = np.zeros(work.MIX_FEATURES + 1, np.float32)
        self.y = np.full(SIZE, 1 / SIZE, np.float32)
        self.before = self.x, self.y
        rows = slice(0, 10_000)  # the first batch
        self.estimate = self.tracked = self.gradients(self.x, self.y, rows)

    def gradients(self, x: np.ndarray, y: np.ndarray, rows: object) -> np.ndarray:
        features, label = self.features[rows], self.label[rows]
        score = features @ x[:-1] + x[-1]
        slope = SIZE * y[RANK] * (1 / (1 + np.exp(-score)) - label) / len(label)
        squares = 10.0 * x[:-1] ** 2
        gx = np.append(slope @ features + 1e-3 * 20.0 * x[:-1] / (1 + squares) ** 2, slope.sum())
        gy = -(SIZE * y - 1) / SIZE
        gy[RANK] += SIZE * np.mean(np.logaddexp(0, score) - label * score)
        return np.concatenate([gx, gy]).astype(np.float32)

    def mixed(self, value: np.ndarray) -> np.ndarray:
        """Average with both neighbours on the ring, one third each."""
        left, right = np.empty_like(value), np.empty_like(value)
        WORLD.Sendrecv(value, (RANK + 1) % SIZE, 0, left, (RANK - 1) % SIZE, 0)
        WORLD.Sendrecv(value, (RANK - 1) % SIZE, 1, right, (RANK + 1) % SIZE, 1)
        return (value + left + right) / 3

    def step(self) -> None:
        rows = self.rng.integers(0, work.MIX_RECORDS, work.MIX_BATCH)
        now, then = self.gradients(self.x, self.y, rows), self.gradients(*self.before, rows)
        estimate = now + (1 - work.MIX_BETA) * (self.estimate - then)
        self.tracked = self.mixed(self.tracked + estimate - self.estimate)
        self.estimate, self.before = estimate, (self.x, self.y)
        d = len(self.x)
        moved = np.concatenate([self.x - work.MIX_RATE * self.tracked[:d], self.y + work.MIX_RATE * self.tracked[d:]])
        both = self.mixed(moved)
        self.x, self.y = both[:d], simplex(both[d:])


def simplex(y: np.ndarray) -> np.ndarray:
    """Return the nearest point of the simplex."""
    ordered = np.sort(y)[::-1]
    sums = (np.cumsum(ordered) - 1) / np.arange(1, len(y) + 1)
    return np.maximum(y - sums[np.count_nonzero(ordered > sums) - 1], 0).astype(np.float32)


class AllRanks:
    """Rank 0's turn: all ranks step; CPU time and memory are the sums over ranks."""

    def turn(self) -> measure.Turn:
        tell(1)
        return everyone()


def everyone() -> measure.Turn:
    WORLD.Barrier()
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        AGENT.step()
    WORLD.Barrier()
    took = time.perf_counter() - began
    cpu = WORLD.allreduce(time.process_time() - cpu)
    return measure.Turn(took / STEPS, cpu / STEPS, STEPS, WORLD.allreduce(measure.peak_mib()))


def tell(what: int) -> int:
    """Send rank 0's word to all. The others sleep meanwhile: MPI would spin, in the other contenders' turns too."""
    word = np.array([what])
    request = WORLD.Ibcast(word)
    while not request.Test():
        time.sleep(0.002)
    return int(word[0])


if __name__ == "__main__":
    AGENT = Agent()
    for _ in range(20):
        AGENT.step()
    if RANK == 0:
        measure.serve(AllRanks())
        tell(0)
    else:
        while tell(0):
            everyone()
    sys.exit(0)
