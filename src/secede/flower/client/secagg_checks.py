"""SecAgg+ at a client: which messages are part of it, and what its whole numbers can carry.

The server cannot look at a hidden update, so its client does: form, finite values, and that nothing
of it is cut off, since the reference would be off by as much.
"""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import ConfigRecord, Context, Message

from secede import state as states
from secede.errors import ConfigError, GuardError, StateError
from secede.federation.engine import OwnState
from secede.flower._flwr import (
    SECAGG_CONFIGS,
    SECAGG_STATE,
    SecAggKey,
    secagg_mod,
    secaggplus_mod,
)
from secede.state import State

_STEP = 0.01  # of the way from the model to the reference: a shorter step hides nothing
_ORDER = "ClientApp(mods=[secaggplus_mod, erasure.mod])"


def is_hidden(message: Message) -> bool:
    """Return whether a message is part of SecAgg+."""
    return SECAGG_CONFIGS in message.content.config_records


def check_order(message: Message) -> None:
    """Raise if a message of SecAgg+ comes to our mod first: it would keep what is masked."""
    configs = message.content.config_records.get(SECAGG_CONFIGS)
    if configs is not None and SecAggKey.STAGE in configs:  # secaggplus_mod takes it out
        raise ConfigError(
            "secaggplus_mod must come before erasure.mod, which would keep what is masked: "
            f"{_ORDER}"
        )


def check_mods(mods: Sequence[object], ours: object) -> None:
    """Raise unless our mod is the next one within SecAgg+'s: what it keeps must be what is sent.

    Where none follows, it may be one of a function's own mods, which nobody can see here.
    """
    places = [n for n, mod in enumerate(mods) if mod in (secagg_mod, secaggplus_mod)]
    if places and (ours in mods[: places[-1]] or mods[places[-1] + 1 :][:1] not in ([], [ours])):
        raise ConfigError(f"erasure.mod must directly follow secaggplus_mod: {_ORDER}")


def check_step(returned: State, model: State, own: OwnState) -> None:
    """Raise if what a step returns would tell the own update, which was hidden all the time."""
    if not own.weight:  # the model holds nothing of it
        return
    reference = states.reference(model, own.state, weight=own.weight)
    if states.distance(returned, reference) <= _STEP * states.distance(model, reference):
        raise ConfigError(
            "the step ends where it begins, and would tell this client's own update, which "
            "secure aggregation hides: nothing is returned"
        )


def check_update(state: State, like: State, samples: float, context: Context) -> None:
    """Raise unless an update is one of the model's that the sum can carry."""
    try:
        states.check_schema(state, like)
        states.check_finite(state, "the update")
    except StateError as error:
        raise GuardError(str(error)) from error
    told = context.state.config_records.get(SECAGG_STATE) or ConfigRecord()
    clip, max_weights = told.get(SecAggKey.CLIPPING_RANGE), told.get(SecAggKey.MAX_WEIGHT)
    if not isinstance(clip, float) or not isinstance(max_weights, int | float) or not samples:
        return
    most = clip * max_weights / samples  # values are weighed before they are cut
    for name, value in state.items():
        if value.is_floating_point() and value.numel():
            largest = float(value.abs().max())
            if largest > most:
                raise ConfigError(
                    f"{name!r} holds {largest:.3g}, and with {samples:g} samples SecAgg+ cuts off "
                    f"what is above {most:.3g}: give SecAggPlusWorkflow a larger clipping_range "
                    "or max_weight"
                )
