"""Map the rows of normalisation layers to the channels of the layers before them.

A normalisation layer turns a channel of zeros into a constant, so a pruned channel is off only if
its row there is zero too. The order of modules does not show which layer feeds which, so it is
probed: a layer's output is set to 0 and to 1, all others' to 1. A row that follows is fed by the
layer; a row that stays above 0, as after a residual sum, is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from secede import state as states
from secede.errors import ConfigError, StateError
from secede.state import State

_SEPARATOR = ">"  # between the names of a layer and of the norm that it feeds
_BY_ROW = (
    "weight",
    "bias",
    "running_mean",
)  # running_mean shifts the output, too


def channel_maps(model: nn.Module, layers: Sequence[str], inputs: Tensor) -> dict[str, Tensor]:
    """Return under `layer>norm` the channel of `layer` that each row of `norm` belongs to, from 1.

    0 stands for other layers' channels. `inputs` are any that the model accepts.
    """
    norms = {name: m for name, m in model.named_modules() if _channel_dimension(m) is not None}
    maps: dict[str, Tensor] = {}
    for layer in layers if norms else ():
        off, on = (_nonzero_rows(model, layer, norms, inputs, level) for level in (0.0, 1.0))
        channels = len(model.get_submodule(layer).get_parameter("weight"))
        for norm in off.keys() & on.keys():
            follows = on[norm] & ~off[norm]
            count = int(follows.sum())
            if count % channels:
                raise ConfigError(
                    f"class-pruning cannot map the rows of {norm!r} to the channels of {layer!r}: "
                    f"found {count} rows for {channels} channels, expected a multiple"
                )
            if count:
                rows = torch.zeros(len(follows), device=inputs.device)
                order = torch.arange(channels, device=inputs.device)
                rows[follows] = (1.0 + order).repeat_interleave(count // channels)
                maps[f"{layer}{_SEPARATOR}{norm}"] = rows
    return dict(sorted(maps.items()))


def masks(model: nn.Module, keep: Mapping[str, Tensor], maps: State) -> dict[str, Tensor]:
    """Return, by name in a state, the mask of the rows to keep in norms of pruned channels.

    `maps` are the mean of all clients' `channel_maps`, which must be equal.
    """
    by_norm: dict[str, Tensor] = {}
    for key, rows in maps.items():
        layer, _, norm = key.partition(_SEPARATOR)
        channels = keep[layer]
        if not bool(((rows == rows.round()) & (rows >= 0) & (rows <= len(channels))).all()):
            raise StateError(
                f"clients disagree on which channels of {layer!r} {norm!r} normalises: expected "
                "one architecture at all of them"
            )
        mask = torch.cat((torch.ones_like(channels[:1]), channels))[rows.long()]
        by_norm[norm] = by_norm[norm] & mask if norm in by_norm else mask
    return {
        name: mask
        for norm, mask in by_norm.items()
        for name in rows_of(model, norm, _BY_ROW)
        if not bool(mask.all())
    }


def is_channel_map(name: str) -> bool:
    """Return whether an entry of a client's reply comes from `channel_maps`."""
    return _SEPARATOR in name


def rows_of(model: nn.Module, module: str, kinds: Iterable[str]) -> list[str]:
    """Return the module's entries in a state, of these kinds, whose rows are its channels."""
    shared, live = states.aliases(model), states.live(model)
    names = (f"{module}.{kind}" for kind in kinds)
    return [name for name in (shared.get(name, name) for name in names) if name in live]


def _channel_dimension(module: nn.Module) -> int | None:
    """Return the channel dimension of a normalisation layer's input, or None for other layers."""
    if isinstance(module, (nn.modules.batchnorm._NormBase, nn.GroupNorm)):
        return 1
    if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
        return -1
    return None


@torch.no_grad()
def _nonzero_rows(
    model: nn.Module, layer: str, norms: Mapping[str, nn.Module], inputs: Tensor, level: float
) -> dict[str, Tensor]:
    """Set `layer` to `level`, all others to 1; return which rows of the norms' inputs are not 0."""
    nonzero: dict[str, Tensor] = {}

    def watch(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        dimension = _channel_dimension(module)
        assert dimension is not None  # `norms` holds no layer without one

        def before(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
            nonzero[name] = args[0].movedim(dimension, 0).flatten(1).any(dim=1)

        return module.register_forward_pre_hook(before)

    def fix_output(module: nn.Module, value: float) -> torch.utils.hooks.RemovableHandle:
        def after(_module: nn.Module, _args: object, output: object) -> object:
            return torch.full_like(output, value) if isinstance(output, Tensor) else output

        return module.register_forward_hook(after)

    handles = [watch(name, module) for name, module in norms.items()]
    for name, module in model.named_modules():
        is_weighted = (
            next(module.children(), None) is None and next(module.parameters(), None) is not None
        )
        if is_weighted or name in norms:
            handles.append(fix_output(module, level if name == layer else 1.0))
    was_training = model.training
    try:
        model.eval()(inputs)
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    return nonzero
