"""The radius of the ball by the paper's rule: a third of the mean distance to fresh models.

Halimi et al. 2022, appendix A: the mean is over ten freshly initialised models, in plain L2.
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
    reference: State, fresh_model: Callable[[int], nn.Module], trainable: Collection[str]
) -> float:
    """Return a third of the mean distance from `reference` to ten freshly initialised models.

    Only `trainable` parameters count: nothing else changes in the ascent, and a fresh BatchNorm's
    statistics do not tell how far a random model is.
    """
    distances = []
    for number in range(1, MODELS + 1):
        fresh = dict(fresh_model(number).named_parameters())
        if missing := sorted(set(trainable) - fresh.keys()):
            raise ConfigError(
                f"fresh_model() returned a model without the parameter {missing[0]!r}, expected "
                "the same architecture as the model"
            )
        parameters = {name: fresh[name].detach() for name in trainable}
        center = {name: reference[name].to(value.device) for name, value in parameters.items()}
        distances.append(states.distance(parameters, center))
    mean = sum(distances) / MODELS
    if mean == 0:
        raise ConfigError(
            "the radius rule needs fresh models that differ from the reference; give radius="
        )
    return mean / 3


def reinitialised(model: nn.Module, seed: int) -> Callable[[int], nn.Module]:
    """Return a function that copies `model` and calls `reset_parameters` of each layer."""

    def fresh(number: int) -> nn.Module:
        copied = copy.deepcopy(model)
        with seeded(seed, "fresh", number):
            for name, module in copied.named_modules():
                _reset(name, module)
        return copied

    return fresh


def _reset(name: str, module: nn.Module) -> None:
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
