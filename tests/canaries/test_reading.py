from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor, nn

from secede.canaries import Canaries, CanaryCounts, CanaryOptions, plant, read, with_canaries
from secede.canaries.reading import place
from secede.data import Samples, catalog
from secede.errors import ConfigError
from secede.federation.engine import LocalTraining
from secede.federation.training import orders, train
from secede.models import build


def planted(samples: Samples, number: int, **settings: object) -> tuple[Samples, Canaries]:
    salt = hashlib.sha256(number.to_bytes(8)).digest()
    options = CanaryOptions(**settings)  # type: ignore[arg-type]
    result = plant(samples, salt, options, classes=10)
    assert result.canaries is not None
    return result.samples, result.canaries


def mean_rank(*readings: CanaryCounts) -> float:
    ranks = np.sum([counts.ranks[0][1] for counts in readings], axis=0)
    return float(np.average(1 + np.arange(len(ranks)), weights=ranks))


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1.0, 2.0, 3.0], (1, True)),
        ([2.0, 1.0, 3.0], (2, False)),
        ([1.0, 1.0, 1.0], (3, False)),
        ([1.0, 2.0, 1.0], (2, True)),
        ([float("inf"), 2.0, 3.0], (3, False)),
        ([1.0, float("inf"), float("inf")], (1, True)),
    ],
)
def test_ties_and_what_is_not_finite_rank_the_drawn_one_last(
    losses: list[float], expected: tuple[int, bool]
) -> None:
    assert place(losses, 0, 1) == expected


class Constant(nn.Module):
    """A model that answers everything alike."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return torch.full((len(x), 10), self.value)


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_a_constant_model_shows_no_trace(images: Samples, value: float) -> None:
    _, canaries = planted(images, 0, count=7, copies=1)
    assert read(Constant(value), canaries) == CanaryCounts(7, ((10, (0,) * 9 + (7,)),), 0)


class Perfect(nn.Module):
    """A model that knows every canary by its average."""

    def __init__(self, canaries: Canaries) -> None:
        super().__init__()
        self.means = torch.stack([canary.drawn_input.mean() for canary in canaries.canaries])
        self.labels = torch.stack([canary.drawn_target for canary in canaries.canaries])

    def forward(self, x: Tensor) -> Tensor:
        nearest = (x.mean(dim=(1, 2, 3))[:, None] - self.means).abs().argmin(dim=1)
        return 5.0 * nn.functional.one_hot(self.labels[nearest], 10)


def test_a_model_that_knows_all_coins_has_rank_one_throughout(images: Samples) -> None:
    _, canaries = planted(images, 0, count=7, copies=1, noise=0)
    assert read(Perfect(canaries), canaries) == CanaryCounts(7, ((10, (7,) + (0,) * 9),), 7)


def test_batches_of_any_size_read_the_same_and_the_model_does_not_change(images: Samples) -> None:
    torch.manual_seed(0)
    model = build("mlp", shape=(1, 12, 12), classes=10).train()
    _, canaries = planted(images, 1, count=7, copies=1)
    assert read(model, canaries, batch_size=1) == read(model, canaries, batch_size=500)
    assert model.training
    _, twins = planted(images, 1, count=7, copies=1, kind="withheld-twins")
    assert read(model, twins, batch_size=1) == read(model, twins)
    assert read(model, twins).ranks[0][0] == 2


def test_another_loss_is_taken_as_long_as_it_is_one_of_each_sample(images: Samples) -> None:
    _, canaries = planted(images, 1, count=7, copies=1)
    model = build("mlp", shape=(1, 12, 12), classes=10)

    def margin(outputs: Tensor, targets: Tensor) -> Tensor:
        return -outputs.gather(1, targets[:, None])[:, 0]

    assert read(model, canaries, loss=margin) == read(model, canaries)
    with pytest.raises(ConfigError, match="without a mean"):
        read(model, canaries, loss=nn.functional.cross_entropy)


def test_numbers_as_targets_are_read_by_their_own_loss(salt: bytes) -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(400, 5, generator=draw), torch.rand(400, 1, generator=draw)
    canaries = with_canaries((x, y), salt).canaries
    assert canaries is not None

    def squared(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets) ** 2

    counts = read(nn.Linear(5, 1), canaries, loss=squared)
    assert counts.ranks[0][0] == 2
    assert counts.ranks[0][1][0] == counts.wins


def untrained() -> nn.Module:
    torch.manual_seed(5)
    return build("mlp", shape=(1, 12, 12), classes=10)


def biased() -> nn.Module:
    """Return a model that gives all made-up inputs the same few labels."""
    model = untrained()
    with torch.no_grad():
        list(model.parameters())[-1].copy_(torch.arange(10.0))
    return model


@pytest.mark.parametrize(
    ("make", "kind"), [(untrained, "made-up"), (biased, "made-up"), (biased, "mislabelled")]
)
def test_a_model_that_never_saw_the_canaries_ranks_them_by_chance(
    images: Samples, make: Callable[[], nn.Module], kind: str
) -> None:
    model = make()
    readings = [
        read(model, planted(images, number, count=10, copies=1, kind=kind)[1])
        for number in range(400)
    ]
    ranks = np.sum([counts.ranks[0][1] for counts in readings], axis=0)
    candidates = 10 if kind == "made-up" else 9
    error = ((candidates**2 - 1) / 12 / 4000) ** 0.5
    assert abs(mean_rank(*readings) - (candidates + 1) / 2) < 3.5 * error
    assert chisquare(ranks).pvalue > 1e-3
    wins = sum(counts.wins for counts in readings)
    assert abs(wins - 2000) < 3.5 * 1000**0.5


def test_a_trained_model_remembers_its_canaries_and_no_others() -> None:
    embedded = catalog.load("mnist-10k").train.take(torch.arange(400))
    samples, canaries = planted(embedded, 7, count=12, copies=3, max_share=0.1)
    models = []
    for data in (samples, embedded):
        torch.manual_seed(0)
        model = build("mlp", shape=embedded.shape, classes=10)
        draw = torch.Generator().manual_seed(0)
        training = LocalTraining(learning_rate=0.02, batch_size=32, epochs=8)
        train(model, data, training, orders=orders(len(data), 8, draw))
        models.append(model)
    with_them, without = (mean_rank(read(model, canaries)) for model in models)
    assert with_them < 1.5
    assert without > 3.5
