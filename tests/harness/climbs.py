"""Small models of many kinds and a leaver's task for each, for comparing two ways to climb."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from secede import state as states
from secede.federation.engine import Batch
from secede.unlearning.method import LocalTask

CLASSES = 4


class Tied(nn.Module):
    """Two layers share one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(36, 36), nn.Linear(36, 36)
        self.outer.weight = self.inner.weight
        self.head = nn.Linear(36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.outer(self.inner(x.flatten(1)).relu()))
        return out


class Mixed(nn.Module):
    """A float32 layer below a float64 one."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(36, 8), nn.Linear(8, CLASSES).double()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.high(self.low(x.flatten(1)).relu().double())
        return out


class Unused(nn.Module):
    """One layer never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.used = nn.Linear(3, 3), nn.Linear(36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x.flatten(1))
        return out


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.ReLU(), nn.Linear(12, CLASSES))


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, CLASSES))


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 4))


def frozen() -> nn.Module:
    model = mlp()
    next(model.parameters()).requires_grad_(False)
    return model


def bfloat16() -> nn.Module:
    return mlp().bfloat16()


def dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(36, CLASSES))


def spectral() -> nn.Module:
    """Every training step moves its buffers."""
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(36, CLASSES))
    return nn.Sequential(nn.Flatten(), layer)


KINDS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "conv": conv,
    "batchnorm": batchnorm,
    "frozen": frozen,
    "tied": Tied,
    "bfloat16": bfloat16,
    "mixed": Mixed,
    "unused": Unused,
}


def task_of(
    build: Callable[[], nn.Module],
    seed: int,
    *,
    batches: int = 4,
    size: int = 6,
    device: str = "cpu",
) -> LocalTask:
    """Return a task whose passes differ, with the own state some way off the reference."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build().to(device)
    reference = states.of(model)
    kind = next(model.parameters()).dtype
    draw = torch.Generator().manual_seed(seed)
    own = {
        name: value + (0.02 * torch.randn(value.shape, generator=draw)).to(value)
        if value.is_floating_point()
        else value
        for name, value in reference.items()
    }

    def passes(_size: int, number: int) -> list[Batch]:
        draw = torch.Generator().manual_seed(1000 * seed + number)
        pairs = []
        for count in [size] * (batches - 1) + [size - 1]:  # the last one is smaller
            labels = torch.randint(0, CLASSES, (count,), generator=draw)
            inputs = torch.randn(count, 1, 6, 6, generator=draw) + labels[:, None, None, None]
            pairs.append((inputs.to(device, kind), labels.to(device)))
        return pairs

    return LocalTask(
        reference=reference,
        own_state=own,
        model=copy.deepcopy(model),
        fresh_model=lambda _: build(),
        batches=passes,
        loss=nn.functional.cross_entropy,
    )
