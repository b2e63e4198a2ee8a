"""Which rows of normalisation layers belong to the channels of the layers before them.

A normalisation layer turns a channel of zeros into a constant, so a pruned channel is dead only if
its row there is zero too. What feeds what is not told by a module's place in the model: it is tried
out. A layer's output is held at 0 and at 1, all others' at 1; a row that follows is fed by it, and
one that stays away from 0, as behind a residual sum, is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from secede import state as states
from secede.errors import ConfigError, StateError
from secede.state import State

_FEEDS = ">"  # between a layer's name and that of what normalises it
_BY_ROW = ("weight", "bias", "running_mean")  # of running_mean: it shifts where there is no bias


def feeds(model: nn.Module, layers: Sequence[str], inputs: Tensor) -> dict[str, Tensor]:
    """Return under `layer>norm`, for each row of a norm that `layer` feeds, its channel, from 1.

    0 stands for rows of other layers' channels. `inputs` are any the model takes.
    """
    norms = {name: m for name, m in model.named_modules() if _channel_dimension(m) is not None}
    found: dict[str, Tensor] = {}
    for layer in layers if norms else ():
        off, on = (_reached(model, layer, norms, inputs, level) for level in (0.0, 1.0))
        channels = len(model.get_submodule(layer).get_parameter("weight"))
        for norm in off.keys() & on.keys():
            follows = on[norm] & ~off[norm]
            count = int(follows.sum())
            if count % channels:
                raise ConfigError(
                    f"class-pruning cannot tell which rows of {norm!r} normalise the channels of "
                    f"{layer!r}: {count} of them for {channels} channels"
                )
            if count:
                rows = torch.zeros(len(follows), device=inputs.device)
                order = torch.arange(channels, device=inputs.device)
                rows[follows] = (1.0 + order).repeat_interleave(count // channels)
                found[f"{layer}{_FEEDS}{norm}"] = rows
    return dict(sorted(found.items()))


def masks(model: nn.Module, keep: Mapping[str, Tensor], told: State) -> dict[str, Tensor]:
    """Return by name in a state which rows stay, where norms normalise what is pruned.

    `told` is what `feeds` found, by everybody alike.
    """
    by_norm: dict[str, Tensor] = {}
    for key, rows in told.items():
        layer, _, norm = key.partition(_FEEDS)
        kept = keep[layer]
        if not bool(((rows == rows.round()) & (rows >= 0) & (rows <= len(kept))).all()):
            raise StateError(f"clients disagree on which channels of {layer!r} {norm!r} normalises")
        stays = torch.cat((torch.ones_like(kept[:1]), kept))[rows.long()]
        by_norm[norm] = by_norm[norm] & stays if norm in by_norm else stays
    return {
        name: mask
        for norm, mask in by_norm.items()
        for name in rows_of(model, norm, _BY_ROW)
        if not bool(mask.all())
    }


def is_told(name: str) -> bool:
    """Whether an entry of a client's reply is one that `feeds` found."""
    return _FEEDS in name


def rows_of(model: nn.Module, module: str, kinds: Iterable[str]) -> list[str]:
    """Return the names in a state, of these kinds, whose rows are the module's channels."""
    shared, known = states.aliases(model), states.live(model)
    names = (f"{module}.{kind}" for kind in kinds)
    return [name for name in (shared.get(name, name) for name in names) if name in known]


def _channel_dimension(module: nn.Module) -> int | None:
    """Return which dimension of its input a normalisation layer has rows for; None: it is none."""
    if isinstance(module, (nn.modules.batchnorm._NormBase, nn.GroupNorm)):
        return 1
    if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
        return -1
    return None


@torch.no_grad()
def _reached(
    model: nn.Module, layer: str, norms: Mapping[str, nn.Module], inputs: Tensor, level: float
) -> dict[str, Tensor]:
    """Hold `layer` at `level`, all others at 1; return which rows of norms' inputs are not 0."""
    found: dict[str, Tensor] = {}

    def look(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        dimension = _channel_dimension(module)
        assert dimension is not None  # those without one are not among the norms

        def before(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
            found[name] = args[0].movedim(dimension, 0).flatten(1).any(dim=1)

        return module.register_forward_pre_hook(before)

    def hold(module: nn.Module, value: float) -> torch.utils.hooks.RemovableHandle:
        def after(_module: nn.Module, _args: object, output: object) -> object:
            return torch.full_like(output, value) if isinstance(output, Tensor) else output

        return module.register_forward_hook(after)

    handles = [look(name, module) for name, module in norms.items()]
    for name, module in model.named_modules():
        weighs = (
            next(module.children(), None) is None and next(module.parameters(), None) is not None
        )
        if weighs or name in norms:
            handles.append(hold(module, level if name == layer else 1.0))
    was_training = model.training
    try:
        model.eval()(inputs)
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    return found
