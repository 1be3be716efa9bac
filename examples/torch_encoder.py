"""Train a private linear model on features of a frozen PyTorch encoder.

    pip install torch
    python examples/torch_encoder.py

The encoder is public: it was made without the private rows. It treats each row separately, so computing its features
once, before the run, costs no privacy. They are shortened to norm 1, row by row. A stranger who opens the model needs
the same encoder: the statement covers the linear model, whatever the encoder is.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from common import rings

import sottovoce as sv
from sottovoce.problems.tasks import Shape, get
from sottovoce.runtime.model_file import NamedTask

WIDTH = 64


def encoder() -> torch.nn.Module:
    """Return the frozen encoder; a downloaded one, such as a ResNet, would stand here."""
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(2, WIDTH), torch.nn.Tanh())
    return made.eval().requires_grad_(False)


def encoded(model: torch.nn.Module, points: np.ndarray) -> np.ndarray:
    """Return the features of points, of norm at most 1."""
    with torch.no_grad():
        return sv.data.bounded_norm(model(torch.from_numpy(points)).numpy(), 1.0)


if __name__ == "__main__":
    model, train, test = encoder(), rings(4000), rings(seed=1)
    records = {"features": encoded(model, train["features"]), "label": train["label"]}
    held = {"features": encoded(model, test["features"]), "label": test["label"]}
    shape = Shape((WIDTH,), classes=2, agents=1)
    task = get("logistic")(shape)
    method = sv.methods.DpSgd(rate=8.0, gradient=sv.Release(clip=1.0, noise=1.0), sampling=sv.Full())
    result = sv.run(
        task.problem, sv.data.split(records, agents=1), method, steps=300, epsilon=8.0, evaluate=task.metrics(held),
        every=300, seed=0,
    )  # fmt: skip
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "torch.sv")
    opened = sv.load(sv.save(result, path, features=held["features"], task=NamedTask("logistic", {}, shape)))
    np.testing.assert_allclose(opened.predict(held["features"]), result.predict(held["features"]), rtol=1e-4, atol=1e-5)
    print(f"accuracy {result.history['accuracy'][-1]:.3f}, epsilon {opened.privacy.epsilon:.3g}: {path.name}")
