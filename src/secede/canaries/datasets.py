"""Plant canaries in what a user trains on: tensors, a map-style data set or a loader of one.

What comes back has the form of what was given, and its items that of the user's own. Canaries do
not pass the user's transforms: items must be tensors, arrays or numbers already, so a data set of
pictures needs its transform inside of it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from secede.canaries.canary import Canaries
from secede.canaries.coins import canary_secret, shuffled
from secede.canaries.made_up import MakeCanary
from secede.canaries.options import CanaryOptions
from secede.canaries.planting import draw, plant
from secede.canaries.pool import Pool
from secede.data import Samples
from secede.errors import ConfigError
from secede.seeding import seeded

POOL = 512  # own samples that are looked at, for range, labels and columns
_LABELS = ("label", "labels", "target", "targets", "y")
_PARTS = ("input", "target")

Keys = tuple[str | int, str | int]  # of input and target in an item


@dataclass(frozen=True, eq=False)
class PlantedSource:
    """Training data with canaries among it, and these; without canaries the reason why."""

    source: Any
    canaries: Canaries | None = field(repr=False)
    reason: str = ""
    copies: int = 0  # of each canary
    samples: int = 0  # in the source, canaries included


@dataclass(frozen=True, eq=False)
class _Drawn:
    """What goes into a data set, what it takes the place of, and what an own item looks like."""

    canaries: Canaries = field(repr=False)
    copies: int
    item: Any
    keys: Keys
    replaced: frozenset[int] = frozenset()


_Draw = Callable[[Any], _Drawn | str]  # of a data set; or the reason why there are no canaries


def with_canaries(
    source: Any,
    salt: bytes,
    options: CanaryOptions | None = None,
    *,
    keys: tuple[str, str] | None = None,
    classes: int | None = None,
    make_canary: MakeCanary | None = None,
) -> PlantedSource:
    """Return training data with canaries in it, in the form in which `source` came.

    `source` is Samples, a tuple (x, y) of tensors or arrays, a map-style data set or a list of
    pairs or mappings, or a DataLoader. `keys` name input and target in a mapping, unless usual.
    """
    options = options or CanaryOptions()
    if isinstance(source, Samples):
        planted = plant(source, salt, options, classes=classes, make_canary=make_canary)
        return PlantedSource(
            planted.samples,
            planted.canaries,
            planted.reason,
            planted.copies,
            len(planted.samples),
        )

    def anew(data: Any) -> _Drawn | str:
        count = len(data)
        size = options.size(count)
        if size is None:
            return options.why_too_small(count)
        places = sorted(shuffled(canary_secret(salt), count, "pool")[:POOL])
        with _own_randomness():
            items = [data[place] for place in places]
        found = _keys(items[0], keys)
        x, y = (_stack(items, key, part) for key, part in zip(found, _PARTS, strict=True))
        pool = Pool(x, y, tuple(places))
        how: Any = {"classes": classes, "make_canary": make_canary}
        canaries, replaced = draw(pool, salt, options, size, **how)
        return _Drawn(canaries, size.copies, items[0], found, frozenset(replaced))

    return _plant(source, anew)


def with_same_canaries(
    source: Any, canaries: Canaries, copies: int, *, keys: tuple[str, str] | None = None
) -> PlantedSource:
    """Return training data with made-up canaries that were drawn before, whatever it is by now.

    ConfigError if its inputs have another form than theirs. Of the same data as then it is the
    same as `with_canaries` gives.
    """

    def again(data: Any) -> _Drawn | str:
        if not len(data):
            return "no canaries were planted: the client has no samples"
        with _own_randomness():
            item = data[0]
        found = _keys(item, keys)
        x, own = _stack([item], found[0], "input")[0], canaries.canaries[0].inputs
        if (x.shape, x.dtype) != (own.shape[1:], own.dtype):
            raise ConfigError(
                f"canaries: the client's inputs are {tuple(x.shape)} of {x.dtype}, those of its "
                f"canaries {tuple(own.shape[1:])} of {own.dtype}"
            )
        return _Drawn(canaries, copies, item, found)

    return _plant(source, again)


class PlantedDataset(Dataset[Any]):
    """A user's map-style data set with canaries at random places, in the form of its own items."""

    def __init__(self, source: Any, order: list[int], canaries: list[Any]) -> None:
        """Take own items and canaries in `order`; the n-th canary has the number -1 - n."""
        self._source, self._order, self._canaries = source, order, canaries

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Any:
        place = self._order[index]
        if place >= 0:
            return self._source[place]
        return copy.deepcopy(self._canaries[-1 - place])


def _plant(source: Any, draw_from: _Draw) -> PlantedSource:
    if isinstance(source, DataLoader):
        return _loader(source, draw_from)
    if isinstance(source, tuple) and _is_arrays(source):
        return _arrays(source, draw_from)
    return _data_set(source, draw_from)


def _data_set(source: Any, draw_from: _Draw) -> PlantedSource:
    if isinstance(source, IterableDataset) or not (
        hasattr(source, "__len__") and hasattr(source, "__getitem__")
    ):
        raise ConfigError(
            f"canaries: found {type(source).__name__}, expected samples with a length whose items "
            "are pairs or mappings, or a DataLoader of such"
        )
    count, drawn = len(source), draw_from(source)
    if isinstance(drawn, str):
        return PlantedSource(source, None, drawn)
    canaries = drawn.canaries
    inputs, targets = canaries.training_copies(drawn.copies)
    own = [place for place in range(count) if place not in drawn.replaced]
    order = shuffled(canaries.secret, len(own) + len(targets), "order")
    planted: Dataset[Any]
    if type(source) is TensorDataset:
        chosen = torch.tensor(own)
        parts = zip(source.tensors, (inputs, targets), strict=True)
        planted = TensorDataset(
            *(torch.cat([part[chosen], new.to(part)])[order] for part, new in parts)
        )
    else:
        numbers = [*own, *range(-1, -1 - len(targets), -1)]
        items = _like_own(drawn.item, drawn.keys, inputs, targets)
        planted = PlantedDataset(source, [numbers[place] for place in order], items)
    return PlantedSource(planted, canaries, "", drawn.copies, len(order))


def _arrays(source: tuple[Any, Any], draw_from: _Draw) -> PlantedSource:
    """Plant in a tuple of inputs and targets, each a tensor or an array."""
    tensors = TensorDataset(*(torch.as_tensor(part) for part in source))
    planted = _data_set(tensors, draw_from)
    if planted.canaries is None:
        return replace(planted, source=source)
    parts = cast("TensorDataset", planted.source).tensors
    same = tuple(
        part if isinstance(own, Tensor) else part.numpy()
        for part, own in zip(parts, source, strict=True)
    )
    return replace(planted, source=same)


def _loader(loader: DataLoader[Any], draw_from: _Draw) -> PlantedSource:
    """Return a loader like the user's over a data set with canaries."""
    source: Any = loader.dataset
    sampler = loader.sampler
    if type(sampler) is SubsetRandomSampler:
        source = Subset(source, sorted({int(place) for place in sampler.indices}))
    elif type(sampler) not in (RandomSampler, SequentialSampler):
        raise ConfigError(_unusual(sampler))
    if loader.batch_size is not None and type(loader.batch_sampler) is not BatchSampler:
        raise ConfigError(_unusual(loader.batch_sampler))
    if loader.batch_size is None:
        raise ConfigError(_unusual(loader.batch_sampler or "a loader without batches"))
    planted = _data_set(source, draw_from)
    if planted.canaries is None:
        return replace(planted, source=loader)
    same = DataLoader(
        planted.source,
        batch_size=loader.batch_size,
        shuffle=type(sampler) is not SequentialSampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
    return replace(planted, source=same)


def _unusual(sampler: object) -> str:
    name = sampler if isinstance(sampler, str) else type(sampler).__name__
    return (
        f"canaries: the loader draws its samples by {name}, expected shuffle=True or False: plant "
        "canaries in its data set instead, and make the loader of that"
    )


def _keys(item: Any, keys: tuple[str, str] | None) -> Keys:
    """Return the keys of input and target in an item."""
    if isinstance(item, tuple | list):
        if len(item) == 2:
            return 0, 1
        raise ConfigError(f"canaries: an item has {len(item)} parts, expected input and target")
    if not isinstance(item, Mapping):
        raise ConfigError(
            f"canaries: items are {type(item).__name__}, expected pairs of input and target, or "
            "mappings"
        )
    names = ", ".join(map(repr, item))
    if keys is None:
        labels = [name for name in item if name in _LABELS]
        if len(item) != 2 or len(labels) != 1:
            raise ConfigError(
                f"canaries: items have the entries {names}: give those of input and target as "
                "keys=(INPUT, TARGET)"
            )
        return next(name for name in item if name != labels[0]), labels[0]
    if set(keys) != set(item):
        raise ConfigError(
            f"canaries: items have the entries {names}, expected {keys[0]!r} and {keys[1]!r} alone"
        )
    return keys


def _stack(items: list[Any], key: str | int, part: str) -> Tensor:
    """Return one part of all items as a tensor."""
    try:
        values = [torch.as_tensor(item[key]) for item in items]
        return torch.stack(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"canaries: an item's {part} is a {type(items[0][key]).__name__}, expected tensors, "
            "arrays or numbers of one shape: let the data set's own transform make them"
        ) from error


def _like(value: Tensor, own: Any) -> Any:
    """Return a canary's part as the user's own items have it."""
    if isinstance(own, Tensor):
        return value.clone()
    if isinstance(own, np.ndarray | np.generic):
        array = value.numpy().astype(own.dtype)
        return array.copy() if isinstance(own, np.ndarray) else array[()]
    if isinstance(own, list | tuple):
        return type(own)(value.tolist())
    return type(own)(value.item())


def _like_own(item: Any, keys: Keys, inputs: Tensor, targets: Tensor) -> list[Any]:
    """Return the canaries in the form of an own item, a pair or a mapping."""
    x, y = keys
    parts = [
        {x: _like(one, item[x]), y: _like(target, item[y])}
        for one, target in zip(inputs, targets, strict=True)
    ]
    if isinstance(item, Mapping):
        return [{name: part[name] for name in item} for part in parts]
    form = list if isinstance(item, list) else tuple
    return [form((part[x], part[y])) for part in parts]


def _is_arrays(source: tuple[Any, ...]) -> bool:
    return [isinstance(part, Tensor | np.ndarray) for part in source] == [True, True]


@contextmanager
def _own_randomness() -> Iterator[None]:
    """Run the block with fixed random numbers, so that random transforms give the same range."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(0)
    try:
        with seeded(0, "canaries"):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
