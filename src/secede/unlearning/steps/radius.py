"""The radius of the ball by the paper's rule: a third of the mean distance to fresh models.

Halimi et al. 2022, appendix A: the mean is over ten freshly initialised models, in plain L2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import nn

from secede import state as states
from secede.errors import ConfigError
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
