"""Opacus's modes and plain SGD in torch: ``python -m benchmarks.peers.opacus_modes WORK [plain|hooks|ew|ghost]``.

Batches are drawn by one mask over the data set, with the rate that Opacus charges. That is a correct Poisson batch, and
faster than its data loader, which collates records one by one.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import measure
from benchmarks.peers import work
from benchmarks.peers.pace import paced


def model(name: str) -> nn.Module:
    if name == "logistic":
        return nn.Linear(124, 2)
    if name == "mlp":
        return nn.Sequential(nn.Linear(784, 256), nn.Tanh(), nn.Linear(256, 10))
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


def contender(name: str, mode: str) -> measure.Turns:
    job = work.TRAINING[name]
    pictures, labels = work.records(name)
    features, label = torch.from_numpy(pictures), torch.from_numpy(labels).long()
    if name == "cnn":
        features = features.permute(0, 3, 1, 2).contiguous()
    net: Any = model(name)
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=job.rate)
    criterion: Any = nn.CrossEntropyLoss()
    if mode != "plain":
        from opacus import PrivacyEngine

        made = PrivacyEngine().make_private(
            module=net, optimizer=optimizer, criterion=criterion, noise_multiplier=job.multiplier,
            data_loader=DataLoader(TensorDataset(features, label), batch_size=job.batch),
            max_grad_norm=job.clip, poisson_sampling=True, grad_sample_mode=mode,
        )  # fmt: skip
        net, optimizer = made[:2]
        criterion = made[2] if mode == "ghost" else criterion
        optimizer.attach_step_hook(lambda _: None)  # the accountant's own list would grow with each step

    def step() -> None:
        taken = torch.rand(job.records) < job.batch / job.records
        optimizer.zero_grad()
        loss = criterion(net(features[taken]), label[taken])
        loss.backward()
        optimizer.step()

    return paced(step)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    measure.serve(contender(*sys.argv[1:]))
