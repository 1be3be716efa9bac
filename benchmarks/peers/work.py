"""The work that all contenders do: shapes, data and settings, in NumPy only, so that every environment can read it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Training:
    """Private training with Poisson batches: clip, noise on the mean, rate, and steps per turn of a compiled loop."""

    features: tuple[int, ...]
    classes: int
    records: int
    batch: int
    steps: int
    clip: float = 1.0
    multiplier: float = 1.0
    rate: float = 0.1

    @property
    def noise(self) -> float:
        """The deviation on the mean."""
        return self.multiplier * self.clip / self.batch


TRAINING = {
    "logistic": Training((124,), 2, 20_000, 64, 2000),
    "mlp": Training((784,), 10, 10_000, 256, 100),
    "cnn": Training((28, 28, 1), 10, 10_000, 256, 10),
}
TITLES = {
    "logistic": "Logistic regression 124 -> 2, Poisson 64 of 20 000",
    "mlp": "MLP 784-256-10 (tanh), Poisson 256 of 10 000",
    "cnn": "The task `cnn` on 28x28 (two convolutions, 26 010 parameters), Poisson 256 of 10 000",
}


def records(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels; what they are does not matter to the time."""
    job, rng = TRAINING[name], np.random.default_rng(0)
    features = rng.normal(size=(job.records, *job.features)).astype(np.float32)
    return features, rng.integers(0, job.classes, job.records).astype(np.int32)


# The exact hypergradient of ridge regression with one penalty per feature.
RIDGE_RECORDS, RIDGE_FEATURES, RIDGE_STEPS = 500, 100, 10


def ridge() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (upper a, upper b, lower a, lower b)."""
    rng = np.random.default_rng(0)
    a = (rng.normal(size=(2, RIDGE_RECORDS, RIDGE_FEATURES)) / RIDGE_FEATURES**0.5).astype(np.float32)
    b = rng.normal(size=(2, RIDGE_RECORDS)).astype(np.float32)
    return a[0], b[0], a[1], b[1]


# LDP-DSBO on MNIST's shape: a softmax of 7850 weights, one penalty per pixel, tuned; ten agents on a ring.
DSBO_AGENTS, DSBO_RECORDS, DSBO_BATCH, DSBO_STEPS = 10, 6000, 50, 40
DSBO_CLIP, DSBO_NOISE, DSBO_RATE, DSBO_RADIUS, DSBO_WEIGHT = 1.0, 0.01, 0.1, 10.0, 0.3


def pictures() -> tuple[np.ndarray, np.ndarray]:
    """Return (agents, records, 784) pixels and (agents, records) labels."""
    rng = np.random.default_rng(0)
    features = rng.random((DSBO_AGENTS, DSBO_RECORDS, 784), dtype=np.float32) / 16
    return features, rng.integers(0, 10, (DSBO_AGENTS, DSBO_RECORDS)).astype(np.int32)


# DPMixSGD and DM-HSGD on a9a's shape: five agents on a ring, robust logistic regression.
MIX_AGENTS, MIX_RECORDS, MIX_FEATURES, MIX_BATCH, MIX_STEPS = 5, 6512, 123, 20, 1000
MIX_RATE, MIX_BETA, MIX_CLIP, MIX_NOISE = 0.01, 0.1, 1.0, 0.05


def adults(agent: int) -> tuple[np.ndarray, np.ndarray]:
    """Return one agent's records: 14 of 123 features are 1, labels are 0 and 1."""
    rng = np.random.default_rng(agent)
    features = np.zeros((MIX_RECORDS, MIX_FEATURES), np.float32)
    np.put_along_axis(features, rng.integers(0, MIX_FEATURES, (MIX_RECORDS, 14)), 1.0, axis=1)
    return features, rng.integers(0, 2, MIX_RECORDS).astype(np.int32)
