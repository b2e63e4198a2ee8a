"""Class pruning: zero the channels that discriminate the erased classes, then fine-tune.

Wang, Guo, Xie, Qi 2022, "Federated Unlearning via Class-Discriminative Pruning", WWW. Clients
upload sums of activations per channel and class; the server scores channels by TF-IDF (classes are
documents, channels are words), zeroes the best ones and keeps them zero. As in the paper's code and
not its text, a channel counts for a class where it exceeds its own mean over the classes, and all
layers share one ranking. Our choices: activations are pooled once for all classes; the row in the
norm behind goes, too; each layer keeps a channel; without Conv2d, hidden units are pruned.
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
_CHANNEL_KINDS = ("weight", "bias")


@dataclass(frozen=True, kw_only=True)
class ClassPruning(Method):
    """Zero the channels that discriminate `classes` best; `classes` is required."""

    classes: tuple[int, ...] = ()
    share: float = 0.05  # of all channels, for each class; the paper's for CIFAR-10

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
        """Raise if the model has no channels to prune."""
        prunable_layers(model)

    def start(self, server: Server) -> Start:
        """Collect activations from all clients; the leaver may be the only one with the classes."""
        replies, cost = ask_each(
            server.engine,
            sorted((server.leaver, *server.retained)),
            activation_sums,
            global_state=server.global_state,
        )
        means, channel_maps = pool_replies([reply.state for reply in replies])
        keep = self._channels_to_keep(means)
        model = server.fresh_model()
        masks = {
            name: keep[layer]
            for layer in prunable_layers(model)
            for name in norm_channels.rows_of(model, layer, _CHANNEL_KINDS)
            if not bool(keep[layer].all())
        }
        masks |= norm_channels.masks(model, keep, channel_maps)
        pruned = sum(int((~mask).sum()) for mask in keep.values())
        return Start(
            state=states.masked(server.global_state, masks),
            cost=cost,
            report={"pruned": pruned, "channels": sum(len(mask) for mask in keep.values())},
            memory=masks,
        )

    def recover(self, server: Server, state: State, memory: State, number: int) -> Recovered:
        """Average a round, then zero the pruned channels again."""
        after = average_round(server, state, memory, number)
        masked = states.masked(after.state, memory)
        return Recovered(state=masked, cost=after.cost, memory=memory)

    def _channels_to_keep(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return, for each layer, the mask of the channels to keep."""
        keep = {layer: torch.ones_like(mean[0], dtype=torch.bool) for layer, mean in means.items()}
        for label in self.classes:
            scores = {layer: tf_idf(mean, label) for layer, mean in means.items()}
            joined = torch.cat(list(scores.values()))
            best = torch.zeros_like(joined, dtype=torch.bool)
            order = joined.argsort(descending=True, stable=True)
            best[order[: math.ceil(self.share * len(joined))]] = True
            parts = best.split([len(score) for score in scores.values()])
            for layer, cut in zip(scores, parts, strict=True):
                keep[layer] = keep[layer] & ~cut
        for layer, mean in means.items():
            if not bool(keep[layer].any()):
                scores_by_class = torch.stack([tf_idf(mean, label) for label in self.classes])
                keep[layer][scores_by_class.sum(dim=0).argmin()] = True
        return keep


def prunable_layers(model: nn.Module) -> list[str]:
    """Return the names of the Conv2d layers, or of the hidden Linear ones where there is none."""
    named = dict(model.named_modules())
    layers = [name for name, module in named.items() if isinstance(module, nn.Conv2d)]
    if not layers:
        layers = [name for name, module in named.items() if isinstance(module, nn.Linear)][:-1]
    layers = [name for name in layers if norm_channels.rows_of(model, name, _CHANNEL_KINDS)]
    if not layers:
        raise ConfigError(
            "class-pruning found no channels to prune, expected a model with Conv2d or hidden "
            "Linear layers"
        )
    return layers


def activation_sums(side: ClientSide) -> Reply:
    """Return a client's sums of activations by class and channel, and its samples by class.

    An activation is the mean of the ReLU over the image. The reply also holds `channel_maps`.
    """
    model = side.fresh_model(0)
    states.load_into(model, side.global_state)
    model.eval()
    first_inputs, _ = next(iter(side.batches(side.training.batch_size, 0)))
    channel_maps = norm_channels.channel_maps(model, prunable_layers(model), first_inputs[:1])
    active: dict[str, Tensor] = {}

    def watch(layer: str, linear: bool) -> None:
        def hook(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            values = output.relu().movedim(-1, 1) if linear else output.relu()
            active[layer] = values.flatten(2).mean(2) if values.ndim > 2 else values

        model.get_submodule(layer).register_forward_hook(hook)

    for layer in prunable_layers(model):
        watch(layer, isinstance(model.get_submodule(layer), nn.Linear))
    sums: dict[str, Tensor] = {}
    with torch.no_grad():
        for inputs, labels in side.batches(side.training.batch_size, 0):
            classes = model(inputs).shape[1]
            one_hot = nn.functional.one_hot(labels, classes).to(torch.float32)
            batch = {layer: one_hot.T @ values.float() for layer, values in active.items()}
            batch[_COUNTS] = one_hot.sum(0)
            sums = {name: sums[name] + value for name, value in batch.items()} if sums else batch
    return Reply(state={**sums, **channel_maps}, gradient_samples=0, samples=side.samples)


def pool_replies(replies: list[State]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return each layer's mean activations by class and channel, and the mean `channel_maps`.

    The mean is NaN for a class that no client holds. Only sums over the clients are used.
    """
    states.check_all_finite(replies, [f"reply {number}" for number in range(len(replies))])
    sums = {name: torch.stack([r[name] for r in replies]).sum(0) for name in replies[0]}
    counts = sums.pop(_COUNTS)
    channel_maps = {
        name: sums.pop(name) / len(replies)
        for name in list(sums)
        if norm_channels.is_channel_map(name)
    }
    return {layer: total / counts[:, None] for layer, total in sums.items()}, channel_maps


def tf_idf(mean: Tensor, label: int) -> Tensor:
    """Return each channel's TF-IDF for class `label`, from `mean` by class and channel."""
    is_held = ~mean.isnan().any(dim=1)
    if not label < len(mean):
        raise ConfigError(
            f"classes names {label}, expected 0 to {len(mean) - 1}: the model has {len(mean)} "
            "classes"
        )
    if not bool(is_held[label]):
        raise DataError(
            f"no client holds samples of class {label}, so its channels cannot be found"
        )
    term = mean[label] / mean[label].sum().clamp_min(torch.finfo(mean.dtype).tiny)
    held = mean[is_held]
    documents = (held >= held.mean(dim=0)).sum(dim=0)
    return term * torch.log((1 + len(held)) / (1 + documents))
