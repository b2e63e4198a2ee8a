"""Small networks of every kind that executors must handle or refuse, and jobs for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from secede import state as states
from secede.data.samples import Samples
from secede.federation.engine import LocalTraining
from secede.federation.executors.executor import Job, Work
from secede.federation.training import Precision, orders

SHAPE, CLASSES = (2, 8, 8), 3


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(128, 128), nn.Linear(128, 128)
        self.last.weight = self.first.weight
        self.head = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.last(torch.relu(self.first(x.flatten(1))))))  # type: ignore[no-any-return]


class Scaled(nn.Module):
    """Holds a buffer that is part of the state and one that is not; neither changes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(128, CLASSES)
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("shift", torch.tensor(0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1)) * self.scale + self.shift  # type: ignore[no-any-return]


class Viewing(nn.Module):
    """Relies on the usual memory layout, as many networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(256, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.relu(self.conv(x))
        return self.head(found.view(len(found), 256))  # type: ignore[no-any-return]


class Branching(nn.Module):
    """Which layer runs depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(128, CLASSES), nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.high(x) if float(x.mean()) > 0.5 else self.low(x)  # type: ignore[no-any-return]


class Averaging(nn.Module):
    """Keeps a running mean in a buffer that it replaces instead of overwriting."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(128, CLASSES)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = 0.9 * self.seen + 0.1 * x.detach().mean()
        return self.linear(x.flatten(1)) + self.seen  # type: ignore[no-any-return]


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.idle = nn.Linear(128, CLASSES), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))  # type: ignore[no-any-return]


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES)
    )


def dropout() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(128, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, CLASSES)
    )


def frozen() -> nn.Module:
    model = mlp()
    model[1].requires_grad_(False)  # type: ignore[index]
    return model


PLAIN: dict[str, Callable[[], nn.Module]] = {
    "conv": conv,
    "mlp": mlp,
    "tied": Tied,
    "scaled": Scaled,
    "unused": Unused,
    "frozen": frozen,
    "viewing": Viewing,
}
ALL = PLAIN | {"batch_norm": batch_norm, "dropout": dropout, "averaging": Averaging}


def work(
    make: Callable[[], nn.Module],
    *,
    precision: Precision = "float32",
    device: str = "cpu",
    **how: float,
) -> Work:
    torch.manual_seed(0)
    training = LocalTraining(**{"batch_size": 8, "learning_rate": 0.1, **how})  # type: ignore[arg-type]
    return Work(model=make().to(device), training=training, precision=precision)


def samples(count: int, seed: int = 0, device: str = "cpu") -> Samples:
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(count, *SHAPE, generator=draw)
    return Samples(x, torch.randint(0, CLASSES, (count,), generator=draw)).to(device)


def jobs(work: Work, sizes: Sequence[int]) -> list[Job]:
    start = states.of(work.model)
    return [
        Job(
            state=start,
            samples=samples(size, seed, str(work.device)),
            orders=orders(size, work.training.epochs, torch.Generator().manual_seed(100 + seed)),
            noise=seed,
        )
        for seed, size in enumerate(sizes)
    ]
