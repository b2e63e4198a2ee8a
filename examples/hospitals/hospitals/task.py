"""The hospitals, what lies in their archives, the network, and how a hospital trains."""

from functools import cache

import torch
from flwr.app import Context
from torch import Tensor, nn

from secede.data.catalog import load
from secede.data.samples import Samples

# Images of each: the largest has seven times as many as the smallest.
SIZES = {"harbour": 2100, "hill": 1400, "river": 900, "forest": 600, "island": 300}
SITES = tuple(SIZES)
LEAVER = "river"
EPOCHS, BATCH, RATE = 3, 32, 0.1
_EVENNESS = 2.0  # of the digits at a hospital: the smaller, the more skewed


def load_model() -> nn.Module:
    """Return the network, freshly initialised."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def load_data(context: Context) -> tuple[Tensor, Tensor]:
    """Return the images and labels of the hospital that this node is."""
    found = archive(name_of(context))
    return found.x, found.y


def name_of(context: Context) -> str:
    """Return the hospital's name; in a simulation the partition tells it."""
    config = context.node_config
    return str(config.get("site") or SITES[int(config["partition-id"])])


@cache
def archive(site: str) -> Samples:
    """Return a hospital's images; no two hospitals have one in common."""
    images = load("mnist-10k").train
    left = torch.ones(len(images), dtype=torch.bool)
    draw = torch.Generator().manual_seed(7)
    for name, size in SIZES.items():
        shares = torch._standard_gamma(torch.full((10,), _EVENNESS), generator=draw)
        weights = shares[images.y] * left
        mine = torch.multinomial(weights, size, generator=draw)
        if name == site:
            return images.take(mine)
        left[mine] = False
    raise KeyError(site)


def train(model: nn.Module, x: Tensor, y: Tensor, number: int) -> None:
    """Go over the hospital's images some times; `number` names the order."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    draw = torch.Generator().manual_seed(number)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(y), generator=draw).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()


@torch.inference_mode()
def accuracy(state: dict[str, Tensor]) -> float:
    """Return the share of 2,000 images that nobody trained on which a model reads right."""
    model, test = load_model(), load("mnist-10k").test
    model.load_state_dict(state)
    return float((model(test.x).argmax(dim=1) == test.y).float().mean())
