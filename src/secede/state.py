"""The state of a model, its parameters and buffers as one value, and all arithmetic on it.

A state maps names to tensors, as `nn.Module.state_dict` does. Floating entries average, measure
and project; integer buffers (BatchNorm's counters) do neither. float16 and bfloat16 are summed
in float32. Distances are plain L2, never squared. Files are safetensors; nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from secede import files
from secede.errors import StateError

State = Mapping[str, Tensor]


def of(model: nn.Module) -> dict[str, Tensor]:
    """Return a detached copy of `model`'s parameters and buffers, each shared tensor once."""
    return {name: value.clone() for name, value in live(model).items()}


def live(model: nn.Module) -> dict[str, Tensor]:
    """Return `model`'s own tensors, detached but not copied, each shared tensor once."""
    shared = aliases(model)
    state = {name: value for name, value in model.state_dict().items() if name not in shared}
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise StateError(
                f"{name!r} is {type(value).__name__}, not a tensor: modules with get_extra_state() "
                "are not supported"
            )
    return state


def aliases(model: nn.Module) -> dict[str, str]:
    """Return the further names of shared parameters, each with its first name."""
    first: dict[int, str] = {}
    further: dict[str, str] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        first_name = first.setdefault(id(value), name)
        if first_name != name:
            further[name] = first_name
    return further


def without_aliases(state: State, model: nn.Module) -> dict[str, Tensor]:
    """Return `state` with each of `model`'s shared parameters once; raise if copies differ."""
    shared = aliases(model)
    for name, first in shared.items():
        if name in state and first in state and not torch.equal(state[name], state[first]):
            raise StateError(
                f"{name!r} and {first!r} are one shared parameter of the model "
                "but differ in the state"
            )
    return {name: value for name, value in state.items() if name not in shared}


def with_aliases(state: State, model: nn.Module) -> dict[str, Tensor]:
    """Return `state` under all the names that `model.state_dict()` has."""
    shared = aliases(model)
    return {name: state[shared.get(name, name)] for name in model.state_dict()}


def tied(state: State, shared: Mapping[str, str]) -> dict[str, Tensor]:
    """Return `state` with shared parameters equal under all names that it has for them.

    `shared` is what `aliases` returns; the value under the first name counts.
    """
    return {name: state.get(shared.get(name, name), value) for name, value in state.items()}


def load_into(model: nn.Module, state: State) -> None:
    """Copy `state` into `model`; names, shapes and dtypes must fit exactly."""
    state, targets = without_aliases(state, model), live(model)
    check_schema(state, targets)
    copy(state, targets)


def copy(source: State, target: State) -> None:
    """Overwrite the tensors of `target` with those of the same name in `source`."""
    with torch.no_grad():
        torch._foreach_copy_(list(target.values()), [source[name] for name in target])


def check_schema(state: State, template: State) -> None:
    """Raise unless `state` has the schema of `template`: its names, shapes and dtypes."""
    for given in (state, template):
        if not isinstance(given, Mapping):
            raise StateError(
                f"a {type(given).__name__} is no state, expected what model.state_dict() returns"
            )
    missing, extra = sorted(template.keys() - state.keys()), sorted(state.keys() - template.keys())
    if missing or extra:
        raise StateError(f"names differ: missing {missing or 'none'}, unexpected {extra or 'none'}")
    for name, expected in template.items():
        value = state[name]
        if value.shape != expected.shape or value.dtype != expected.dtype:
            raise StateError(
                f"{name!r} is {value.dtype} {tuple(value.shape)}, "
                f"expected {expected.dtype} {tuple(expected.shape)}"
            )


def check_finite(state: State, what: str = "state") -> None:
    """Raise if any floating entry holds a NaN or an infinity."""
    check_all_finite([state], [what])


def is_finite(state: State) -> bool:
    """Return whether no floating entry holds a NaN or an infinity."""
    values = [v for v in state.values() if v.is_floating_point() and v.numel()]
    return not values or bool(_largest(values).isfinite().all())


def check_all_finite(states: Sequence[State], what: Sequence[str]) -> None:
    """Raise if any of `states` holds a NaN or an infinity; a GPU is waited for only once."""
    places = [
        (number, name)
        for number, state in enumerate(states)
        for name, value in state.items()
        if value.is_floating_point() and value.numel()
    ]
    if not places:
        return
    largest = _largest([states[number][name] for number, name in places])
    for (number, name), finite in zip(places, largest.isfinite().tolist(), strict=True):
        if not finite:
            raise StateError(f"{what[number]}: {name!r} holds values that are not finite")


def _largest(values: list[Tensor]) -> Tensor:
    """Return the largest size of an entry in each of `values`; NaN where there is one."""
    if values[0].device.type == "cuda":
        wide = torch.float64 if any(v.dtype == torch.float64 for v in values) else torch.float32
        return torch.stack([v.to(wide) for v in torch._foreach_norm(values, float("inf"))])
    # Several times faster on a CPU than a norm or `isfinite`.
    extremes = [extreme.double() for value in values for extreme in torch.aminmax(value)]
    return torch.stack(extremes).abs().view(-1, 2).amax(dim=1)


def mean(states: Sequence[State], weights: Sequence[float]) -> dict[str, Tensor]:
    """Return the weighted mean (weights need not sum to one).

    Of integer buffers it is the middle value, the lower of two, so that no single state decides.
    """
    if not states or len(states) != len(weights):
        raise StateError(f"expected one weight per state, got {len(states)} and {len(weights)}")
    total = math.fsum(weights)
    if any(w < 0 for w in weights) or not (0 < total < math.inf):
        raise StateError(f"weights must be finite, not negative and not all zero, got {weights}")
    for state in states[1:]:
        check_schema(state, states[0])
    floats = [name for name, value in states[0].items() if value.is_floating_point()]
    sums = torch._foreach_mul(_widened(states[0], floats), weights[0] / total)
    for state, weight in zip(states[1:], weights[1:], strict=True):
        torch._foreach_add_(sums, _widened(state, floats), alpha=weight / total)
    averaged = {n: acc.to(states[0][n].dtype) for n, acc in zip(floats, sums, strict=True)}
    return {
        name: averaged[name] if name in averaged else _middle([state[name] for state in states])
        for name in states[0]
    }


def trimmed_mean(states: Sequence[State], cut: int) -> dict[str, Tensor]:
    """Return each entry's mean without its `cut` lowest and `cut` highest values, unweighted.

    With the largest cut that leaves something it is the median. Of integer buffers it is the
    middle value, the lower of two.
    """
    if not 0 <= 2 * cut < len(states):
        raise StateError(f"cannot cut {cut} at each end of {len(states)} states: too few are left")
    for state in states[1:]:
        check_schema(state, states[0])
    trimmed: dict[str, Tensor] = {}
    for name, first in states[0].items():
        if not first.is_floating_point():
            trimmed[name] = _middle([state[name] for state in states])
            continue
        ordered = torch.stack([state[name].to(_wide(first.dtype)) for state in states]).sort(dim=0)
        trimmed[name] = ordered.values[cut : len(states) - cut].mean(dim=0).to(first.dtype)
    return trimmed


def reference(global_state: State, own_state: State, *, weight: float) -> dict[str, Tensor]:
    """Return (w − p·w_i) / (1 − p): the mean of the others' last states.

    `weight` is p, the share that `own_state` really had in the last aggregate: its samples over
    everybody's, or 0 if it missed that round. Holds for weighted means only.
    """
    if not 0 <= weight < 1:
        raise StateError(f"weight must be at least 0 and below 1, got {weight}")
    check_schema(own_state, global_state)
    others: dict[str, Tensor] = {}
    for name, value in global_state.items():
        if not value.is_floating_point():
            others[name] = value.clone()
            continue
        wide = _wide(value.dtype)
        without = value.to(wide) - weight * own_state[name].to(wide)
        others[name] = (without / (1 - weight)).to(value.dtype)
    return others


def distance(a: State, b: State) -> float:
    """Return the plain L2 distance over all floating entries."""
    check_schema(a, b)
    squared = 0.0
    for name, value in a.items():
        if value.is_floating_point():
            wide = _wide(value.dtype)
            squared += float(torch.linalg.vector_norm(value.to(wide) - b[name].to(wide))) ** 2
    return math.sqrt(squared)


def difference(a: State, b: State) -> dict[str, Tensor]:
    """Return a − b; integer buffers are a's."""
    check_schema(a, b)
    return {
        name: value - b[name] if value.is_floating_point() else value.clone()
        for name, value in a.items()
    }


def shifted(state: State, change: State, scale: float = 1.0) -> dict[str, Tensor]:
    """Return state + scale · change; integer buffers are the state's."""
    check_schema(change, state)
    return {
        name: value + scale * change[name] if value.is_floating_point() else value.clone()
        for name, value in state.items()
    }


def with_lengths(change: State, template: State) -> dict[str, Tensor]:
    """Return `change`, each floating entry made as long (L2) as in `template`; zero stays zero."""
    check_schema(template, change)
    scaled: dict[str, Tensor] = {}
    for name, value in change.items():
        if not value.is_floating_point():
            scaled[name] = value.clone()
            continue
        wide = value.to(_wide(value.dtype))
        own, aim = torch.linalg.vector_norm(wide), template[name].to(wide.dtype)
        factor = torch.where(own == 0, 0.0, torch.linalg.vector_norm(aim) / own)
        scaled[name] = (wide * factor).to(value.dtype)
    return scaled


def masked(state: State, masks: State) -> dict[str, Tensor]:
    """Return `state` with zeros in the rows whose entry in the mask of the same name is false."""
    return {
        name: value * masks[name].to(value).view(-1, *[1] * (value.ndim - 1))
        if name in masks
        else value.clone()
        for name, value in state.items()
    }


def to(state: State, device: torch.device) -> dict[str, Tensor]:
    """Return the same values on `device`."""
    return {name: value.to(device) for name, value in state.items()}


def negated(state: State, names: Sequence[str]) -> dict[str, Tensor]:
    """Return `state` with the entries called `names` times −1."""
    return {name: -value if name in names else value.clone() for name, value in state.items()}


def scaled(state: State, scale: float) -> dict[str, Tensor]:
    """Return scale · state; integer buffers are the state's."""
    return {
        name: value * scale if value.is_floating_point() else value.clone()
        for name, value in state.items()
    }


def inner(a: State, b: State) -> float:
    """Return the inner product over all floating entries, summed in float64."""
    check_schema(a, b)
    products = [
        torch.sum(value.double() * b[name].double())
        for name, value in a.items()
        if value.is_floating_point()
    ]
    return float(torch.stack(products).sum()) if products else 0.0


def norm(state: State) -> float:
    """Return the plain L2 length over all floating entries, summed in float64."""
    return math.sqrt(inner(state, state))


def orthogonal_part(state: State, others: Sequence[State]) -> dict[str, Tensor]:
    """Return the point nearest to `state` that is orthogonal to each of `others`.

    They may be zero or depend on each other. Integer buffers are the state's.
    """
    for other in others:
        check_schema(other, state)
    floats = [name for name, value in state.items() if value.is_floating_point()]
    part = _flat(state, floats)
    rows = [row / row.norm() for row in (_flat(other, floats) for other in others) if row.any()]
    if rows:
        units = torch.stack(rows)
        values, vectors = torch.linalg.eigh(units @ units.T)
        apart = values > 1e-10 * values[-1]  # the others are sums of these, up to rounding
        basis = (vectors[:, apart] / values[apart].sqrt()).T @ units
        for _ in range(2):  # the second time for what the first one's rounding left
            part = part - basis.T @ (basis @ part)
    pieces = part.split([state[name].numel() for name in floats])
    parts = {n: p.view_as(state[n]).to(state[n].dtype) for n, p in zip(floats, pieces, strict=True)}
    return {name: parts[name] if name in parts else v.clone() for name, v in state.items()}


def project(state: State, center: State, radius: float) -> dict[str, Tensor]:
    """Return the point of the L2 ball around `center` that is nearest to `state`."""
    if not radius > 0:
        raise StateError(f"radius must be positive, got {radius}")
    away = distance(state, center)
    if away <= radius:
        return {name: value.clone() for name, value in state.items()}
    projected: dict[str, Tensor] = {}
    for name, value in state.items():
        if not value.is_floating_point():
            projected[name] = value.clone()
            continue
        wide = _wide(value.dtype)
        middle = center[name].to(wide)
        projected[name] = (middle + (value.to(wide) - middle) * (radius / away)).to(value.dtype)
    return projected


def digest(state: State) -> str:
    """Return the SHA-256 of names, dtypes, shapes and values, whatever their order or device."""
    sha = hashlib.sha256()
    for name in sorted(state):
        value = state[name].detach().cpu().contiguous()
        header = json.dumps([name, str(value.dtype), list(value.shape)])
        sha.update(f"{len(header)}:{header}".encode())
        sha.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def size_bytes(state: State) -> int:
    """Return how many bytes the state's values take on the wire."""
    return sum(value.numel() * value.element_size() for value in state.values())


def save(
    state: State, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file that is either whole or absent."""
    # Copies, because safetensors refuses entries that share memory, as tied parameters do.
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    files.write_bytes(Path(path), safetensors.torch.save(tensors, dict(metadata or {})))


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file: the state and its metadata."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except FileNotFoundError:
        raise StateError(f"{path}: no such file") from None
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise StateError(f"{path}: not a readable safetensors file ({error})") from error


def _middle(values: Sequence[Tensor]) -> Tensor:
    """Return each place's middle value, the lower of two."""
    ordered = torch.stack(list(values)).sort(dim=0).values
    return ordered[(len(values) - 1) // 2].clone()


def _flat(state: State, names: Sequence[str]) -> Tensor:
    return torch.cat([state[name].double().flatten() for name in names])


def _widened(state: State, names: Sequence[str]) -> list[Tensor]:
    return [state[name].to(_wide(state[name].dtype)) for name in names]


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
