"""Class pruning: cut the channels that tell the erased classes apart, then fine-tune.

Clients upload, per channel and class, sums of their activations (ReLU, then the mean over the
image); the server scores channels by TF-IDF, classes as documents and channels as words, zeroes the
best and keeps them zero. Wang, Guo, Xie, Qi 2022, "Federated Unlearning via Class-Discriminative
Pruning", WWW. As in its code and not its text, a channel counts for a class where it exceeds its
own mean over the classes, and all layers are ranked as one. A channel is cut with its row in the
normalisation behind it. Ours: activations are pooled over all samples, once for all classes; each
layer keeps a channel; without Conv2d, hidden units are cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secede import state as states
from secede.errors import ConfigError, DataError
from secede.federation.engine import ClientSide
from secede.state import State
from secede.unlearning.method import (
    Method,
    Recovered,
    Reply,
    Server,
    Start,
    ask_each,
    average_round,
)
from secede.unlearning.steps import norm_channels

_COUNTS = "counts"
_BY_CHANNEL = ("weight", "bias")


@dataclass(frozen=True, kw_only=True)
class ClassPruning(Method):
    """Zero the channels that are most discriminative for `classes`, which must be given."""

    classes: tuple[int, ...] = ()
    share: float = 0.05  # of all channels, for each class; the authors' for CIFAR-10

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))  # a config has a list
        if not self.classes:
            raise ConfigError("classes is empty, expected the numbers of the classes to erase")
        if len(set(self.classes)) < len(self.classes) or min(self.classes) < 0:
            raise ConfigError(
                f"classes must be different numbers from 0, got {', '.join(map(str, self.classes))}"
            )
        if not 0 < self.share < 1:
            raise ConfigError(f"share must be above 0 and below 1, got {self.share}")

    def check_model(self, model: nn.Module) -> None:
        """Raise if it has no channels to prune."""
        prunable(model)

    def start(self, server: Server) -> Start:
        """Gather everybody's activations, the leaver's too: it may alone hold the classes."""
        replies, cost = ask_each(
            server.engine,
            sorted((server.leaver, *server.retained)),
            activations,
            global_state=server.global_state,
        )
        means, told = pooled([reply.state for reply in replies])
        keep = self._chosen(means)
        model = server.fresh_model()
        masks = {
            name: keep[layer]
            for layer in prunable(model)
            for name in norm_channels.rows_of(model, layer, _BY_CHANNEL)
            if not bool(keep[layer].all())
        }
        masks |= norm_channels.masks(model, keep, told)
        pruned = sum(int((~mask).sum()) for mask in keep.values())
        return Start(
            state=states.masked(server.global_state, masks),
            cost=cost,
            report={"pruned": pruned, "channels": sum(len(mask) for mask in keep.values())},
            memory=masks,
        )

    def recover(self, server: Server, state: State, memory: State, number: int) -> Recovered:
        """Average a round as usual and zero again what was pruned."""
        after = average_round(server, state, memory, number)
        masked = states.masked(after.state, memory)
        return Recovered(state=masked, cost=after.cost, memory=memory)

    def _chosen(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return for every layer which channels stay."""
        keep = {layer: torch.ones_like(mean[0], dtype=torch.bool) for layer, mean in means.items()}
        for label in self.classes:
            scores = {layer: scored(mean, label) for layer, mean in means.items()}
            joined = torch.cat(list(scores.values()))
            best = torch.zeros_like(joined, dtype=torch.bool)
            order = joined.argsort(descending=True, stable=True)
            best[order[: math.ceil(self.share * len(joined))]] = True
            parts = best.split([len(score) for score in scores.values()])
            for layer, cut in zip(scores, parts, strict=True):
                keep[layer] = keep[layer] & ~cut
        for layer, mean in means.items():
            if not bool(keep[layer].any()):
                scores_by_class = torch.stack([scored(mean, label) for label in self.classes])
                keep[layer][scores_by_class.sum(dim=0).argmin()] = True
        return keep


def prunable(model: nn.Module) -> list[str]:
    """Return the names of the Conv2d layers, or of the hidden Linear ones where there is none."""
    named = dict(model.named_modules())
    found = [name for name, module in named.items() if isinstance(module, nn.Conv2d)]
    if not found:
        found = [name for name, module in named.items() if isinstance(module, nn.Linear)][:-1]
    found = [name for name in found if norm_channels.rows_of(model, name, _BY_CHANNEL)]
    if not found:
        raise ConfigError("no channels to prune: the model has no Conv2d or hidden Linear layers")
    return found


def activations(side: ClientSide) -> Reply:
    """Return sums over a client's samples, by class and channel, and how many each class has.

    Which normalisation rows belong to which channels comes with them, where there are any.
    """
    model = side.fresh_model(0)
    states.load_into(model, side.global_state)
    model.eval()
    some, _ = next(iter(side.batches(side.training.batch_size, 0)))
    told = norm_channels.feeds(model, prunable(model), some[:1])
    seen: dict[str, Tensor] = {}

    def watch(layer: str, linear: bool) -> None:
        def hook(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            active = output.relu().movedim(-1, 1) if linear else output.relu()
            seen[layer] = active.flatten(2).mean(2) if active.ndim > 2 else active

        model.get_submodule(layer).register_forward_hook(hook)

    for layer in prunable(model):
        watch(layer, isinstance(model.get_submodule(layer), nn.Linear))
    sums: dict[str, Tensor] = {}
    with torch.no_grad():
        for inputs, labels in side.batches(side.training.batch_size, 0):
            classes = model(inputs).shape[1]
            belongs = nn.functional.one_hot(labels, classes).to(torch.float32)
            found = {layer: belongs.T @ active.float() for layer, active in seen.items()}
            found[_COUNTS] = belongs.sum(0)
            sums = {name: sums[name] + value for name, value in found.items()} if sums else found
    return Reply(state={**sums, **told}, gradient_samples=0, samples=side.samples)


def pooled(replies: list[State]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return each layer's mean activation by class and channel, and what normalises its channels.

    The mean is NaN for a class nobody holds. Only sums over the clients are used.
    """
    states.check_all_finite(replies, [f"reply {number}" for number in range(len(replies))])
    sums = {name: torch.stack([r[name] for r in replies]).sum(0) for name in replies[0]}
    counts = sums.pop(_COUNTS)
    told = {
        name: sums.pop(name) / len(replies) for name in list(sums) if norm_channels.is_told(name)
    }
    return {layer: total / counts[:, None] for layer, total in sums.items()}, told


def scored(mean: Tensor, label: int) -> Tensor:
    """Return each channel's TF-IDF for a class, from mean activations by class and channel."""
    held = ~mean.isnan().any(dim=1)
    if not label < len(mean):
        raise ConfigError(f"classes names {label}, but the model has {len(mean)} classes")
    if not bool(held[label]):
        raise DataError(f"no client holds samples of class {label}: nothing shows its channels")
    term = mean[label] / mean[label].sum().clamp_min(torch.finfo(mean.dtype).tiny)
    known = mean[held]
    common = (known >= known.mean(dim=0)).sum(dim=0)
    return term * torch.log((1 + len(known)) / (1 + common))
