"""The paper's network and random images of MNIST's shape."""

from __future__ import annotations

import os

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
    # A simulation's clients are not told the run's config.
    count = int(context.run_config.get("images") or os.environ["SECEDE_IMAGES"])
    draw = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    y = torch.randint(CLASSES, (count,), generator=draw)
    x = 0.1 * torch.rand((count, *SHAPE), generator=draw)
    for line in (0, 1):  # two bright lines tell the class: learnt at once
        x[torch.arange(count), 0, 2 * y + line + 4, :] += 1.0
    # But for every fifth image: a model that is right about all has nothing to unlearn.
    y[::5] = torch.randint(CLASSES, y[::5].shape, generator=draw)
    return x, y


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Go over the images once."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for batch in torch.arange(len(y)).split(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
