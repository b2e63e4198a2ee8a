"""A client's side of a task, made of the user's own model and data.

All randomness is seeded as in the simulator, by seed, client and number, so that the same task has
the same result here, in the simulator, and after a restart.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, default_collate, default_convert

from secede import state as states
from secede.data import Samples, as_samples
from secede.errors import ConfigError
from secede.federation.engine import Batch, ClientSide, LocalTraining, Loss, OwnState
from secede.federation.training import batches, orders, product_precision
from secede.seeding import generator, seeded
from secede.state import State
from secede.unlearning import LocalResult, Reply

SampleKeys = tuple[str, str]  # names of input and label in a sample
_LABELS = ("label", "labels", "target", "targets", "y")


@dataclass(frozen=True, kw_only=True)
class ClientSite:
    """A client's network and samples, and how it trains."""

    load_model: Callable[[], nn.Module]
    samples: Samples
    available: int = 0  # samples of which `samples` are the first; 0: not known
    training: LocalTraining = field(default_factory=LocalTraining)
    loss: Loss = nn.functional.cross_entropy
    device: torch.device
    seed: int = 0

    def run(
        self,
        task: Callable[[ClientSide], LocalResult | Reply],
        state: State,
        own: OwnState | None,
        *,
        client: int,
        number: int,
    ) -> LocalResult | Reply:
        """Run a task; states have all names of the user's records, shared entries too."""
        template = self.load_model()
        side = ClientSide(
            global_state=self._on_device(state, template),
            own=None if own is None else OwnState(self._on_device(own.state, template), own.weight),
            samples=len(self.samples),
            training=self.training,
            fresh_model=lambda n: self._fresh(client, n),
            batches=lambda size, n: self._batches(client, size, n),
            loss=self.loss,
        )
        name = ("ask", client, number) if number else ("ask", client)
        with seeded(self.seed, *name), product_precision("float32"):
            reply = task(side)
        if isinstance(reply, Reply):
            return reply
        result = states.with_aliases(reply.state, template)
        return LocalResult({name: v.detach().cpu() for name, v in result.items()}, reply.report)

    def samples_digest(self) -> str:
        """Return the digest of the samples, which nobody else knows."""
        return states.digest({"inputs": self.samples.x, "labels": self.samples.y})

    def try_out(self) -> None:
        """Run the samples through a fresh network once, as the gate and every step will."""
        try:
            model = self._fresh(0, 0).eval()
            with torch.inference_mode():
                outputs = model(self.samples.x)
                if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2:
                    raise ConfigError("the network does not return a row of logits for each sample")
                if outputs.shape[1] < 2:
                    raise ConfigError(
                        "the network has one output, and the gate counts classes: give it one for "
                        "each class"
                    )
                if int(self.samples.y.max()) >= outputs.shape[1]:
                    raise ConfigError(f"labels beyond the network's {outputs.shape[1]} outputs")
                self.loss(outputs, self.samples.y)
        except ConfigError:
            raise
        except torch.OutOfMemoryError:
            return  # which may be temporary
        except Exception as error:  # any error of a user's own network
            line = str(error).partition("\n")[0][:200]
            raise ConfigError(f"{type(error).__name__}: {line}") from error

    def _on_device(self, state: State, template: nn.Module) -> dict[str, torch.Tensor]:
        return states.to(states.without_aliases(state, template), self.device)

    def _fresh(self, client: int, number: int) -> nn.Module:
        with seeded(self.seed, "model", "fresh", client, number):
            return self.load_model().to(self.device)

    def _batches(self, client: int, size: int, number: int) -> Iterator[Batch]:
        draw = generator(self.seed, "unlearning", client, number)
        return batches(self.samples, size, orders(len(self.samples), 1, draw)[0])


def load_samples(
    source: object,
    *,
    keys: SampleKeys | None = None,
    floats: torch.dtype = torch.float32,
    most: int | None = None,
) -> Samples:
    """Return the samples that a user's `load_data` gave, the first `most` of them.

    Of several loaders, the first counts. A loader gives its data set's samples, or those that its
    sampler selects, collated by its own `collate_fn`. Samples are pairs, or mappings whose input
    and label have the names in `keys`, which can be left out for usual names.
    """
    source, chosen, collate = _data_set(source)
    if _is_pair(source):
        x, y = cast("tuple[Any, Any]", source)
        source = (x[:most], y[:most])
    elif hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        places = range(len(source)) if chosen is None else sorted({int(n) for n in chosen})
        items = [source[place] for place in places[:most]]
        if collate is not None and items:
            source = _pair(collate(items), keys)
            if not _is_pair(source):
                raise ConfigError("the loader's collate_fn returns no pair of inputs and labels")
        else:
            source = [_pair(item, keys) for item in items]
    if hasattr(source, "__len__") and len(source) == 0:
        raise ConfigError("load_data returned no samples: expected the client's training data")
    return as_samples(source, floats=floats, tokens=True)


def count_samples(source: Any) -> int:
    """Return how many samples a user's `load_data` gave, without reading them; 0: not known."""
    source, chosen, _ = _data_set(source)
    if chosen is not None:
        return len({int(n) for n in chosen})
    source = source[0] if _is_pair(source) else source
    return len(source) if hasattr(source, "__len__") else 0


def first_loader(source: Any) -> Any:
    """Return the first of several loaders; whatever else it is, as it is."""
    several = isinstance(source, tuple | list) and source and isinstance(source[0], DataLoader)
    return source[0] if several else source


def _data_set(source: Any) -> tuple[Any, Iterable[int] | None, Callable[[Any], Any] | None]:
    """Return a loader's data set, the places that it selects, and its own way of collating."""
    source = first_loader(source)
    if not isinstance(source, DataLoader):
        return source, None, None
    own = source.collate_fn not in (default_collate, default_convert)
    chosen = getattr(source.sampler, "indices", None)  # SubsetRandomSampler
    return source.dataset, chosen, source.collate_fn if own else None


@contextmanager
def preserved_randomness() -> Iterator[None]:
    """Run the block without changing the random numbers of the user's own training."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with seeded(0, "trial"):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def float_dtype(model: nn.Module) -> torch.dtype:
    """Return the floating-point type of a network's parameters."""
    dtypes = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(dtypes, torch.float32)


def _is_pair(source: object) -> bool:
    """Return whether a source is a pair of inputs and labels, not a data set."""
    arrays = (torch.Tensor, np.ndarray)
    return isinstance(source, tuple) and [isinstance(part, arrays) for part in source] == [True] * 2


def _pair(item: object, keys: SampleKeys | None) -> object:
    """Return a sample or a batch as a pair of input and label, if it is a mapping."""
    if not isinstance(item, Mapping):
        return tuple(item) if isinstance(item, list) else item
    if keys is None:
        labels = [name for name in item if name in _LABELS]
        if len(item) != 2 or len(labels) != 1:
            raise ConfigError(
                f"samples have the entries {', '.join(map(repr, item))}: give those of input and "
                "label as ClientErasure(keys=(INPUT, LABEL))"
            )
        (label,) = labels
        keys = (next(name for name in item if name != label), label)
    if any(key not in item for key in keys):
        raise ConfigError(
            f"keys={keys!r}, but samples have the entries {', '.join(map(repr, item))}"
        )
    return item[keys[0]], item[keys[1]]
