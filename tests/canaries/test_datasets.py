from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from secede.canaries import CanaryOptions, read, with_canaries
from secede.data import Samples
from secede.errors import ConfigError

OPTIONS = CanaryOptions(count=7, copies=1)


class Mappings(Dataset[dict[str, Any]]):
    """Items as Hugging Face's data sets have them, with a random transform."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = self.samples.x[index] * torch.rand(())
        return {"img": image, "label": int(self.samples.y[index])}


def pairs(images: Samples) -> list[tuple[Tensor, int]]:
    return [(x, int(y)) for x, y in zip(images.x, images.y, strict=True)]


def test_tensors_and_arrays_come_back_as_such(images: Samples, salt: bytes) -> None:
    x, y = with_canaries((images.x, images.y), salt, OPTIONS).source
    assert x.shape == (607, 1, 12, 12)
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    arrays = with_canaries((images.x.numpy(), images.y.numpy()), salt, OPTIONS).source
    assert [type(part) for part in arrays] == [np.ndarray] * 2
    np.testing.assert_array_equal(arrays[0], x.numpy())


def test_samples_and_tensor_data_sets_keep_their_type(images: Samples, salt: bytes) -> None:
    assert len(with_canaries(images, salt, OPTIONS).source) == 607
    planted = with_canaries(TensorDataset(images.x, images.y), salt, OPTIONS).source
    assert type(planted) is TensorDataset
    assert planted.tensors[0].shape == (607, 1, 12, 12)


def test_a_list_of_pairs_has_canaries_like_its_own_items(images: Samples, salt: bytes) -> None:
    planted = with_canaries(pairs(images), salt, OPTIONS, classes=10)
    items = [planted.source[index] for index in range(len(planted.source))]
    assert len(items) == 607
    assert {(type(item), type(item[0]), type(item[1])) for item in items} == {(tuple, Tensor, int)}
    assert len(torch.unique(torch.stack([x for x, _ in items]), dim=0)) == 607
    again = with_canaries(pairs(images), salt, OPTIONS, classes=10).source
    assert all(torch.equal(items[n][0], again[n][0]) for n in range(607))


def test_mappings_and_random_transforms(images: Samples, salt: bytes) -> None:
    planted = with_canaries(Mappings(images), salt, OPTIONS, classes=10)
    again = with_canaries(Mappings(images), salt, OPTIONS, classes=10)
    assert planted.canaries is not None
    assert again.canaries is not None
    for one, other in zip(planted.canaries.canaries, again.canaries.canaries, strict=True):
        assert torch.equal(one.inputs, other.inputs)
    batch = next(iter(DataLoader(planted.source, batch_size=607)))
    assert batch["img"].shape == (607, 1, 12, 12)
    assert batch["label"].dtype == torch.int64
    own = with_canaries(Mappings(images), salt, OPTIONS, keys=("img", "label"), classes=10)
    assert len(own.source) == 607


def test_a_loader_gives_the_same_batches_of_more_samples(images: Samples, salt: bytes) -> None:
    loader = DataLoader(TensorDataset(images.x, images.y), batch_size=50, shuffle=True)
    planted = with_canaries(loader, salt, OPTIONS).source
    batches = list(planted)
    assert type(planted) is DataLoader
    assert [len(x) for x, _ in batches] == [50] * 12 + [7]
    assert not torch.equal(next(iter(planted))[0], next(iter(planted))[0])
    still = with_canaries(DataLoader(loader.dataset, batch_size=50), salt, OPTIONS).source
    assert torch.equal(next(iter(still))[0], next(iter(still))[0])


def test_a_loader_of_some_samples_keeps_to_them(images: Samples, salt: bytes) -> None:
    sampler = SubsetRandomSampler(range(400))
    loader = DataLoader(TensorDataset(images.x, images.y), batch_size=50, sampler=sampler)
    assert len(with_canaries(loader, salt, OPTIONS).source.dataset) == 407


def test_own_samples_can_be_canaries_of_a_data_set(images: Samples, salt: bytes) -> None:
    options = CanaryOptions(count=7, copies=1, kind="withheld-twins", noise=0)
    planted = with_canaries(pairs(images), salt, options)
    assert len(planted.source) == 600 - 14 + 7


def test_token_ids_and_bytes(salt: bytes) -> None:
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 50, (400, 12), generator=draw)
    labels = torch.arange(400) % 2
    planted = with_canaries((tokens, labels), salt)
    assert planted.source[0].dtype == torch.int64
    model = torch.nn.Sequential(
        torch.nn.Embedding(50, 4), torch.nn.Flatten(), torch.nn.Linear(48, 2)
    )
    assert planted.canaries is not None
    assert read(model, planted.canaries).count == 8
    pixels = torch.randint(0, 256, (400, 1, 6, 6), generator=draw, dtype=torch.uint8)
    planted = with_canaries((pixels, labels), salt)
    assert planted.source[0].dtype == torch.uint8
    assert planted.canaries is not None
    flat = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 2))
    assert read(flat, planted.canaries).count == 8


def test_a_client_that_is_too_small_gets_back_what_it_gave(images: Samples, salt: bytes) -> None:
    small = images.take(torch.arange(40))
    loader: DataLoader[Any] = DataLoader(pairs(small))  # type: ignore[arg-type]
    for source in (loader, pairs(small), (small.x, small.y), small):
        planted = with_canaries(source, salt)
        assert planted.source is source
        assert planted.canaries is None
        assert "40 samples" in planted.reason


class Endless(IterableDataset[int]):
    """No map-style data set."""

    def __iter__(self) -> Iterator[int]:
        return iter(())


def test_what_cannot_be_planted_in_is_refused_in_one_sentence(images: Samples, salt: bytes) -> None:
    data = pairs(images)
    weighted = WeightedRandomSampler([1.0] * 600, 600)
    cases: list[tuple[Any, str]] = [
        (Endless(), "Endless"),
        (7, "found int"),
        ([(object(), 1)] * 600, "input is a object"),
        ([(torch.zeros(3), 1, 2)] * 600, "3 parts"),
        ([5] * 600, "items are int"),
        ([{"a": 1, "b": 2}] * 600, "entries 'a', 'b'"),
        (DataLoader(data, sampler=weighted), "WeightedRandomSampler"),  # type: ignore[arg-type]
        (DataLoader(data, batch_size=None), "shuffle=True or False"),  # type: ignore[arg-type]
    ]
    for source, words in cases:
        with pytest.raises(ConfigError, match=words):
            with_canaries(source, salt, OPTIONS)
    with pytest.raises(ConfigError, match="alone"):
        with_canaries(Mappings(images), salt, OPTIONS, keys=("image", "label"))
