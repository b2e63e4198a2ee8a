"""The network, a site's data, and how both are put together."""

from functools import cache

import torch
from flwr.app import Context
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PASSES = 3


class Net(nn.Module):
    """A small network for images of 8 by 8 grey values."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a score for each digit."""
        return self.layers(images)


@cache
def all_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 1,797 images and what they show."""
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)
    return images.unsqueeze(1), torch.tensor(digits.target)


def load_data(context: Context) -> tuple[DataLoader, DataLoader]:
    """Return this site's images for training and for testing; later sites have more of them."""
    site = int(context.node_config["partition-id"])
    sites = int(context.node_config["num-partitions"])
    images, labels = all_digits()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    ends = [len(order) * n * (n + 1) // (sites * (sites + 1)) for n in range(sites + 1)]
    mine = order[ends[site] : ends[site + 1]]
    train, test = mine[len(mine) // 5 :], mine[: len(mine) // 5]
    return (
        DataLoader(TensorDataset(images[train], labels[train]), batch_size=32, shuffle=True),
        DataLoader(TensorDataset(images[test], labels[test]), batch_size=256),
    )


def train(model: nn.Module, loader: DataLoader, learning_rate: float) -> float:
    """Go over the images three times; return the mean loss."""
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    total = 0.0
    for images, labels in (batch for _ in range(PASSES) for batch in loader):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimiser.step()
        total += loss.item() * len(labels)
    return total / (PASSES * len(loader.dataset))


@torch.inference_mode()
def test(model: nn.Module, loader: DataLoader) -> float:
    """Return the share of images that are answered right."""
    model.eval()
    right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in loader)
    return right / len(loader.dataset)
