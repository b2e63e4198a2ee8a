"""SecAgg+ at a client: which messages are part of it, and what its whole numbers can carry.

The server cannot look at a hidden update, so its client does: form, finite values, and that nothing
of it is cut off, since the reference would be off by as much.
"""

from __future__ import annotations

from flwr.app import ConfigRecord, Context, Message
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    RECORD_KEY_STATE,
    Key,
)

from secede import state as states
from secede.errors import ConfigError, GuardError, StateError
from secede.state import State


def is_hidden(message: Message) -> bool:
    """Return whether a message is part of SecAgg+."""
    return RECORD_KEY_CONFIGS in message.content.config_records


def check_order(message: Message) -> None:
    """Raise if a message of SecAgg+ comes to our mod first: it would keep what is masked."""
    configs = message.content.config_records.get(RECORD_KEY_CONFIGS)
    if configs is not None and Key.STAGE in configs:  # secaggplus_mod takes it out
        raise ConfigError(
            "secaggplus_mod must come before erasure.mod, which would keep what is masked: "
            "ClientApp(mods=[secaggplus_mod, erasure.mod])"
        )


def check_update(state: State, like: State, samples: float, context: Context) -> None:
    """Raise unless an update is one of the model's that the sum can carry."""
    try:
        states.check_schema(state, like)
        states.check_finite(state, "the update")
    except StateError as error:
        raise GuardError(str(error)) from error
    told = context.state.config_records.get(RECORD_KEY_STATE) or ConfigRecord()
    clip, heaviest = told.get(Key.CLIPPING_RANGE), told.get(Key.MAX_WEIGHT)
    if not isinstance(clip, float) or not isinstance(heaviest, int | float) or not samples:
        return
    most = clip * heaviest / samples  # values are weighed before they are cut
    for name, value in state.items():
        if value.is_floating_point() and value.numel():
            largest = float(value.abs().max())
            if largest > most:
                raise ConfigError(
                    f"{name!r} holds {largest:.3g}, and with {samples:g} samples SecAgg+ cuts off "
                    f"what is above {most:.3g}: give SecAggPlusWorkflow a larger clipping_range "
                    "or max_weight"
                )
