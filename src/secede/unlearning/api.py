"""The public function `unlearn`: a local step for any model, loss and batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from secede import state as states
from secede.errors import ConfigError
from secede.federation.engine import Batch, LocalTraining, Loss
from secede.federation.training import explain_mismatch
from secede.seeding import seeded
from secede.state import State
from secede.unlearning.method import LocalResult, LocalStep, LocalTask
from secede.unlearning.methods.projected_ascent import ProjectedAscent


def unlearn(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    reference: State,
    own_state: State,
    weight: float | None = None,
    global_state: State | None = None,
    step: LocalStep | None = None,
    loss: Loss = nn.functional.cross_entropy,
    training: LocalTraining | None = None,
    fresh_model: Callable[[], nn.Module] | None = None,
    seed: int = 0,
) -> LocalResult:
    """Run a local step, by default projected ascent with the paper's settings.

    `model` gives the architecture and the device; its values do not change. `batches` is any
    iterable of (inputs, labels), in the paper 1024 samples each; an iterator is read into memory,
    since a step makes several passes. `weight` is the share that `own_state` had in the last mean;
    steps scale the leaver's influence by it. `global_state` is for steps that start from the global
    model; without it they start from the reference. `training` is how the leaver trained, by
    default as in the paper. `fresh_model` builds a newly initialised model for the radius rule;
    without it, copies of `model` are reset layer by layer. The result's `state` has the names of
    `model.state_dict()`.
    """
    if weight is not None and not 0 <= weight < 1:
        raise ConfigError(
            f"weight is {weight}, expected a share of the last mean from 0 to below 1"
        )
    if step is not None and (
        isinstance(step, type) or not callable(getattr(step, "unlearn", None))
    ):
        raise ConfigError(f"step is {step!r}, expected a local step, such as secede.SecondChoice()")
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model is a {type(model).__name__}, expected a torch.nn.Module")
    device = _device(model)
    batches = list(batches) if isinstance(batches, Iterator) else batches
    last_batch = list[Batch]()  # an error is explained with it
    task = LocalTask(
        global_state=_on(device, reference if global_state is None else global_state),
        reference=_on(device, reference),
        own_state=_on(device, own_state),
        model=copy.deepcopy(model),
        fresh_model=reinitialised(model, seed)
        if fresh_model is None
        else _seeded_models(fresh_model, seed),
        batches=lambda _size, _number: _remember_last(batches, last_batch),
        loss=loss,
        training=training or LocalTraining(),
        own_weight=weight,
    )
    with explain_mismatch(model, loss, last_batch), seeded(seed, "local step"):  # for dropout
        result = (step or ProjectedAscent()).unlearn(task)
    return LocalResult(states.with_aliases(result.state, model), result.report)


def _remember_last(batches: Iterable[Batch], last_batch: list[Batch]) -> Iterator[Batch]:
    for batch in batches:
        last_batch[:] = [batch]
        yield batch


def _seeded_models(build: Callable[[], nn.Module], seed: int) -> Callable[[int], nn.Module]:
    def fresh(number: int) -> nn.Module:
        with seeded(seed, "fresh", number):
            return build()

    return fresh


def reinitialised(model: nn.Module, seed: int) -> Callable[[int], nn.Module]:
    """Return a function that copies `model` and calls `reset_parameters` of each layer."""

    def fresh(number: int) -> nn.Module:
        copied = copy.deepcopy(model)
        with seeded(seed, "fresh", number):
            for name, module in copied.named_modules():
                _reset_parameters(name, module)
        return copied

    return fresh


def _reset_parameters(name: str, module: nn.Module) -> None:
    own = list(module.parameters(recurse=False))
    if not any(p.requires_grad for p in own):
        return  # frozen layers stay the same in every fresh model
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
    else:
        raise ConfigError(
            f"cannot re-initialise {name or type(module).__name__!r}: it has parameters but no "
            "reset_parameters(); pass fresh_model= (a function that builds a new model) or radius="
        )


def _device(model: nn.Module) -> torch.device:
    for parameter in model.parameters():
        return parameter.device
    raise ConfigError(f"{type(model).__name__} has no parameters, so nothing can be unlearned")


def _on(device: torch.device, state: State) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in state.items()}
