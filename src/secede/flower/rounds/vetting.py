"""Which replies a mean is made of: one client's fault must not end the training of all.

Flower's own check stops the run at the first reply that differs from the others, and takes values
that are not numbers; here such a reply is left out, and its client named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping

from flwr.app import Message
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from secede import state as states
from secede.errors import GuardError, StateError
from secede.flower.protocol import arrays
from secede.flower.rounds import supported_strategies
from secede.state import State


def update(reply: Message, found: FedAvg, like: State) -> tuple[dict[str, Tensor], float]:
    """Return a reply's state and its weight in the mean; GuardError if it cannot be in one."""
    record = supported_strategies.update_of(reply)
    if record is None or len(reply.content.metric_records) != 1:
        raise GuardError("expected one record of arrays and one of metrics")
    weight = supported_strategies.weight_of(reply, found)
    if not weight or weight != int(weight):
        raise GuardError(f"its {found.weighted_by_key!r} is no whole number above 0")
    state = arrays.to_state(record, like, shared=True)
    try:
        states.check_finite(state, "its update")
    except StateError as error:
        raise GuardError(str(error)) from error
    return state, weight


def odd_ones(replies: Mapping[int, Message]) -> set[int]:
    """Return who names its records and metrics otherwise than most: they cannot be averaged."""
    forms = {node: _form(reply) for node, reply in replies.items()}
    if not forms:
        return set()
    ((usual, _),) = Counter(forms.values()).most_common(1)
    return {node for node, form in forms.items() if form != usual}


def _form(reply: Message) -> Hashable:
    return (
        *sorted(reply.content.array_records),
        *(
            (key, name, len(value) if isinstance(value, list) else -1)
            for key, record in sorted(reply.content.metric_records.items())
            for name, value in sorted(record.items())
        ),
    )
