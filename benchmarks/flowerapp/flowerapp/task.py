"""The paper's network and random images of MNIST's shape."""

from __future__ import annotations

import torch
from flwr.app import Context
from torch import Tensor, nn

from secede.models.networks import BUILDERS

SHAPE, CLASSES = (1, 28, 28), 10


def load_model() -> nn.Module:
    """Return the paper's CNN: 1.66 M parameters."""
    return BUILDERS["paper-cnn"]("paper-cnn", SHAPE, CLASSES)


def load_data(context: Context) -> tuple[Tensor, Tensor]:
    """Return a client's images."""
    count = int(context.run_config.get("images", 200))
    draw = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    y = torch.randint(CLASSES, (count,), generator=draw)
    x = torch.rand((count, *SHAPE), generator=draw)
    x[torch.arange(count), 0, y, :] += 1.0  # a bright line tells the class
    return x, y


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Go over the images once."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in torch.arange(len(y)).split(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
