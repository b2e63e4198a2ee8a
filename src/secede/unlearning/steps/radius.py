"""The ball's radius by the paper's rule: a third of the mean distance to fresh models.

Appendix A: the average is over ten freshly initialised models, in plain L2.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection

from torch import nn

from secede import state as states
from secede.errors import ConfigError
from secede.seeding import seeded
from secede.state import State

MODELS = 10


def third_of_distance_to_fresh(
    reference: State, fresh_model: Callable[[int], nn.Module], movable: Collection[str]
) -> float:
    """Return a third of the mean distance from `reference` to ten freshly initialised models.

    Only `movable` parameters count: nothing else moves in the ascent, and a fresh BatchNorm's
    statistics say nothing about how far a random model is.
    """
    distances = []
    for number in range(1, MODELS + 1):
        fresh = dict(fresh_model(number).named_parameters())
        if missing := sorted(set(movable) - fresh.keys()):
            raise ConfigError(f"the fresh model has no parameter {missing[0]!r}: another network?")
        here = {name: fresh[name].detach() for name in movable}
        there = {name: reference[name].to(value.device) for name, value in here.items()}
        distances.append(states.distance(here, there))
    mean = sum(distances) / MODELS
    if mean == 0:
        raise ConfigError("the fresh models all equal the reference: give a radius instead")
    return mean / 3


def reinitialised(model: nn.Module, seed: int) -> Callable[[int], nn.Module]:
    """Return a source of fresh copies of `model`, made by its layers' own `reset_parameters`."""

    def fresh(number: int) -> nn.Module:
        twin = copy.deepcopy(model)
        with seeded(seed, "fresh", number):
            for name, module in twin.named_modules():
                _reset(name, module)
        return twin

    return fresh


def _reset(name: str, module: nn.Module) -> None:
    own = list(module.parameters(recurse=False))
    if not any(p.requires_grad for p in own):
        return  # frozen layers are the same in every fresh model
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
    else:
        raise ConfigError(
            f"cannot re-initialise {name or type(module).__name__!r}: it has parameters but no "
            "reset_parameters(); pass fresh_model= (a function that builds a new model) or radius="
        )
