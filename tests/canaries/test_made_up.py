"""Made-up canaries, and `canaries/pool.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from secede.canaries.coins import canary_secret, generator
from secede.canaries.made_up import field, made_up, table_row, token_row
from secede.canaries.pool import Pool, channel_axis
from secede.errors import ConfigError

SECRET = canary_secret(bytes(32))
LABELS = torch.arange(40) % 4


def pool(x: Tensor, y: Tensor = LABELS) -> Pool:
    return Pool(x, y, tuple(range(len(x))))


def rng() -> np.random.Generator:
    return generator(SECRET, "test")


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (28, 28), (32, 20, 3), (2, 5, 4, 4)])
def test_a_field_has_two_values_in_smooth_patches(shape: tuple[int, ...]) -> None:
    fields = np.stack([field(shape, generator(SECRET, n)) for n in range(50)])
    assert fields.shape == (50, *shape)
    assert 0.4 < fields.mean() < 0.6
    if max(shape) >= 28:
        axis = 3 if shape[-1] == 3 else len(shape)
        assert np.mean(np.diff(fields.astype(int), axis=axis - 1) != 0) < 0.3


def test_channels_are_found_first_or_last() -> None:
    shapes = [(1, 28, 28), (3, 32, 32), (32, 32, 3), (28, 28), (2, 4, 4)]
    assert [channel_axis(shape) for shape in shapes] == [0, 0, 2, None, 0]


def test_an_image_has_the_range_of_each_channel() -> None:
    x = torch.rand(40, 3, 12, 12) * torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    canary = made_up(pool(x), SECRET, 1, classes=4)[0]
    for channel in range(3):
        own = x[:, channel]
        assert set(canary.inputs[0, channel].unique().tolist()) == {
            own.min().item(),
            own.max().item(),
        }


def test_bytes_stay_bytes() -> None:
    x = torch.randint(0, 256, (40, 1, 12, 12), dtype=torch.uint8)
    canary = made_up(pool(x), SECRET, 1)[0]
    assert canary.inputs.dtype == torch.uint8


def test_a_table_row_takes_each_column_from_the_clients_own() -> None:
    x = torch.stack([torch.arange(40.0), torch.ones(40), -torch.arange(40.0)], dim=1)
    rows = torch.stack([table_row(x, generator(SECRET, n)) for n in range(50)])
    assert bool((rows[:, 1] == 1).all())
    assert all(row[0] in x[:, 0] and row[2] in x[:, 2] for row in rows)
    assert float((rows[:, 0] == -rows[:, 2]).float().mean()) < 0.2


def test_tokens_keep_padding_start_mark_and_length() -> None:
    draw = torch.Generator().manual_seed(1)
    x = torch.randint(5, 30, (200, 16), generator=draw)
    lengths = 8 + torch.arange(200) % 6
    x[torch.arange(16) >= lengths[:, None]] = 0  # padding
    x[:, 0] = 2  # start mark
    for n in range(50):
        row = token_row(x, generator(SECRET, n))
        length = int((row != 0).sum())
        assert row[0] == 2
        assert length in lengths
        assert bool((row[1:length] >= 5).all())
        assert bool((row[length:] == 0).all())


def test_tokens_without_padding_use_the_clients_own_tokens() -> None:
    x = torch.tensor([[3, 7, 9, 11], [7, 9, 3, 11], [9, 3, 7, 3]])
    row = token_row(x, rng())
    assert row.dtype == torch.int64
    assert set(row.tolist()) <= {3, 7, 9, 11}


@pytest.mark.parametrize(
    ("y", "candidates"),
    [
        (LABELS, 4),
        (torch.arange(40) % 250 * 5, 40),
        (torch.linspace(0, 1, 40), 2),
        (torch.rand(40, 3), 2),
        (torch.randint(2, 9, (40, 6)), 2),
    ],
)
def test_the_coin_decides_among_classes_or_between_two_targets(y: Tensor, candidates: int) -> None:
    canaries = made_up(pool(torch.rand(40, 5), y), SECRET, 3)
    for canary in canaries:
        assert canary.targets.shape == (candidates, *y.shape[1:])
        assert canary.targets.dtype == y.dtype
        assert y.min() <= canary.targets.min()
        assert canary.targets.max() <= y.max()
        assert len(torch.unique(canary.targets, dim=0)) == candidates


def test_of_very_many_classes_a_hundred_are_drawn() -> None:
    canary = made_up(pool(torch.rand(40, 5)), SECRET, 1, classes=5000)[0]
    assert canary.candidates == 100
    assert len(torch.unique(canary.targets)) == 100


def test_a_users_own_function_makes_inputs_and_candidates() -> None:
    x = torch.rand(40, 5)
    canary = made_up(pool(x), SECRET, 1, classes=4, make_canary=lambda rng: rng.random(5))[0]
    assert (canary.inputs.dtype, canary.candidates) == (torch.float32, 4)
    canary = made_up(pool(x), SECRET, 1, make_canary=lambda rng: (rng.random(5), [1, 2, 3]))[0]
    assert canary.targets.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (np.zeros(4), r"shape \(4,\), expected \(5,\)"),
        ("text", "make_canary"),
        ((np.zeros(5), [1]), "1 candidate targets"),
        ((np.zeros(5), ["a", "b"]), "make_canary"),
    ],
)
def test_what_a_users_function_gives_is_checked(made: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made_up(pool(torch.rand(40, 5)), SECRET, 1, make_canary=lambda _: made)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (torch.rand(40, 5), torch.zeros(40, dtype=torch.int64), "fewer than two classes"),
        (torch.rand(40, 5), torch.zeros(40), "do not differ"),
        (torch.full((40, 5), 3), LABELS, "two different tokens"),
        (torch.full((40, 5), torch.nan), LABELS, "NaN"),
        (torch.rand(40), LABELS, "a row and a target"),
        (torch.rand(39, 5), LABELS, "a row and a target"),
    ],
)
def test_data_that_no_canary_can_be_made_of_is_refused(x: Tensor, y: Tensor, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made_up(pool(x, y), SECRET, 3)
