"""A small network, and samples that it learns in one pass."""

from __future__ import annotations

import torch
from flwr.app import Context
from torch import Tensor, nn

CLASSES, FEATURES = 3, 12


def load_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 16, bias=False), nn.ReLU(), nn.Linear(16, CLASSES, bias=False)
    )  # few tensors: each is several requests to the SuperLink


def load_data(context: Context) -> tuple[Tensor, Tensor]:
    """Return a site's samples; later sites have more of them."""
    site = int(context.node_config["partition-id"])
    draw = torch.Generator().manual_seed(site)
    y = torch.randint(CLASSES, (150 + 60 * site,), generator=draw)
    x = torch.rand((len(y), FEATURES), generator=draw)
    x[torch.arange(len(y)), y] += 1.0
    return x, y


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        for batch in torch.arange(len(y)).split(16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
