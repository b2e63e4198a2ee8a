"""A user's own network, named `package.module:factory`.

The factory is called as `factory(shape, classes)` when it takes two positional arguments and as
`factory()` when it needs none. The network is tried once on a batch of two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from weakref import WeakSet

import torch
from torch import Tensor, nn

from secede.errors import ConfigError
from secede.models.evaluation import evaluating
from secede.plugins import error_in, find, importable
from secede.text import describe_exception

# A factory that returns one model twice would let training leak into the "fresh" second one.
_handed_out: WeakSet[nn.Module] = WeakSet()


def build_custom(
    value: str, *, shape: tuple[int, ...], classes: int, search: Path | None = None
) -> nn.Module:
    """Import the factory that `value` names, call it and check what it returns."""
    with importable(search):
        factory = _find(value, search)
        model = _call(value, factory, shape, classes)
        _try(value, model, shape, classes)
    return model


def _find(value: str, search: Path | None) -> Callable[..., object]:
    factory = find(value, search, kind="model", form="package.module:factory")
    attribute = value.rpartition(":")[2]
    if isinstance(factory, nn.Module):
        raise _error(value, f"{attribute!r} is one model; give a function that makes a new one")
    if not callable(factory):
        raise _error(value, f"{attribute!r} is not callable but {_kind(factory)}")
    return factory


def _call(
    value: str, factory: Callable[..., object], shape: tuple[int, ...], classes: int
) -> nn.Module:
    arguments = (shape, classes) if _takes_two(value, factory) else ()
    try:
        model = factory(*arguments)
    except (Exception, SystemExit) as error:
        raise _error(value, f"calling it failed: {describe_exception(error)}") from error
    if not isinstance(model, nn.Module):
        raise _error(value, f"it returned {_kind(model)}, expected a torch.nn.Module")
    if model in _handed_out:
        raise _error(value, "it returned the same model twice; it must make a new one each time")
    _handed_out.add(model)
    return model


def _takes_two(value: str, factory: Callable[..., object]) -> bool:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError) as error:
        raise _error(value, f"its arguments cannot be read: {error}") from error
    parameters = signature.parameters.values()
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [parameter for parameter in parameters if parameter.kind in named]
    for arguments, fits in (((None, None), len(positional) >= 2), ((), True)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        if fits:
            return bool(arguments)
    raise _error(value, f"it must take (shape, classes) or nothing, not {signature}")


def _try(value: str, model: nn.Module, shape: tuple[int, ...], classes: int) -> None:
    # no_grad rather than inference_mode: lazy layers create their parameters in this very call.
    with evaluating(model), torch.no_grad():
        try:
            parameter = next(model.parameters(), None)
            device = "cpu" if parameter is None else parameter.device
            output = model(torch.zeros(2, *shape, device=device))
        except Exception as error:
            raise _error(
                value,
                f"it fails on a batch of two inputs of shape {shape}: {describe_exception(error)}",
            ) from error
    if not isinstance(output, Tensor):
        raise _error(value, f"its output is {_kind(output)}, expected a tensor of logits")
    if output.shape != (2, classes):
        raise _error(
            value,
            f"its output for two inputs of shape {shape} has shape {tuple(output.shape)}, "
            f"expected (2, {classes})",
        )


def _kind(thing: object) -> str:
    return "None" if thing is None else f"something of type {type(thing).__name__!r}"


def _error(value: str, problem: str) -> ConfigError:
    return error_in("model", value, problem)
