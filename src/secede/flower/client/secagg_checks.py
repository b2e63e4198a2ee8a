"""What only a client can check where secure aggregation hides its updates from the server.

The order of its mods, so that what it keeps is what is sent, and that no value is clipped.
"""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import ConfigRecord, Context, Message

from secede import state as states
from secede.errors import ConfigError, GuardError, StateError
from secede.flower._flwr import (
    SECAGG_CONFIGS,
    SECAGG_STATE,
    SecAggKey,
    secagg_mod,
    secaggplus_mod,
)
from secede.state import State

_ORDER = "ClientApp(mods=[secaggplus_mod, erasure.mod])"


def is_hidden(message: Message) -> bool:
    """Return whether a message is part of SecAgg+."""
    return SECAGG_CONFIGS in message.content.config_records


def check_order(message: Message) -> None:
    """Raise if our mod gets a message before SecAgg+'s mod: it would keep a masked update."""
    configs = message.content.config_records.get(SECAGG_CONFIGS)
    if configs is not None and SecAggKey.STAGE in configs:  # secaggplus_mod takes it out
        raise ConfigError(
            "secaggplus_mod must come before erasure.mod, which would keep a masked update: "
            f"{_ORDER}"
        )


def check_mods(mods: Sequence[object], ours: object) -> None:
    """Raise unless our mod directly follows SecAgg+'s: what it keeps must be what is sent.

    If no mod follows, ours may be one of a function's own mods, which cannot be seen here.
    """
    places = [n for n, mod in enumerate(mods) if mod in (secagg_mod, secaggplus_mod)]
    if places and (ours in mods[: places[-1]] or mods[places[-1] + 1 :][:1] not in ([], [ours])):
        raise ConfigError(f"erasure.mod must directly follow secaggplus_mod: {_ORDER}")


def check_update(state: State, template: State, samples: float, context: Context) -> None:
    """Raise unless an update fits the model, is finite and is not clipped in the sum."""
    try:
        states.check_schema(state, template)
        states.check_finite(state, "the update")
    except StateError as error:
        raise GuardError(str(error)) from error
    settings = context.state.config_records.get(SECAGG_STATE) or ConfigRecord()
    clip, max_weight = settings.get(SecAggKey.CLIPPING_RANGE), settings.get(SecAggKey.MAX_WEIGHT)
    if not isinstance(clip, float) or not isinstance(max_weight, int | float) or not samples:
        return
    limit = clip * max_weight / samples  # values are weighted before they are clipped
    for name, value in state.items():
        if value.is_floating_point() and value.numel():
            largest = float(value.abs().max())
            if largest > limit:
                raise ConfigError(
                    f"{name!r} has a value of {largest:.3g}, and with {samples:g} samples SecAgg+ "
                    f"clips values above {limit:.3g}: give SecAggPlusWorkflow a larger "
                    "clipping_range or max_weight"
                )
