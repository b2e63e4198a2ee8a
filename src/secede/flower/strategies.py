"""Which strategies an erasure can follow: weighted means, whose leaver can be taken out again.

w_ref = (w − p·w_i) / (1 − p) holds for nothing else. Those known to be something else are refused
by name; one's own that changes the aggregate is refused when a round shows it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType
from flwr.serverapp import Grid, strategy
from flwr.serverapp.strategy import FedAvg, Strategy

from secede.errors import ConfigError
from secede.flower import arrays
from secede.state import State, mean

WORK = ("FedAvg", "FedProx")
_REASONS = {
    "Bulyan": "it picks among the updates",
    "DifferentialPrivacyClientSideAdaptiveClipping": "it adds noise after the mean",
    "DifferentialPrivacyClientSideFixedClipping": "it adds noise after the mean",
    "DifferentialPrivacyServerSideAdaptiveClipping": "it clips updates at the server",
    "DifferentialPrivacyServerSideFixedClipping": "it clips updates at the server",
    "FedAdagrad": "its server optimiser has a memory",
    "FedAdam": "its server optimiser has a memory",
    "FedAvgM": "its server momentum has a memory",
    "FedMedian": "it is a median",
    "FedTrimmedAvg": "it leaves out extremes",
    "FedXgbBagging": "it joins trees",
    "FedXgbCyclic": "it trains one client after the other",
    "FedYogi": "its server optimiser has a memory",
    "Krum": "it picks among the updates",
    "MultiKrum": "it picks among the updates",
    "QFedAvg": "its weights depend on losses",
}
REFUSED = tuple((getattr(strategy, name), name) for name in _REASONS if hasattr(strategy, name))
_TOLERANCE = 1e-4  # of a value's size: float32 sums in another order differ by far less


def check(found: Strategy) -> FedAvg:
    """Return the strategy if it is a weighted mean."""
    for kind, name in REFUSED:
        if isinstance(found, kind):
            raise ConfigError(
                f"strategy {type(found).__name__!r} cannot be erased from: {_REASONS[name]}, and "
                f"the mean of the others cannot be had from it; use {' or '.join(WORK)}"
            )
    if not isinstance(found, FedAvg):
        raise ConfigError(
            f"strategy {type(found).__name__!r} is not known to be a weighted mean; use "
            f"{' or '.join(WORK)}, or one of your own that inherits from them"
        )
    if type(found).start is not Strategy.start:
        raise ConfigError(
            f"strategy {type(found).__name__!r} has a start() of its own, which would go past the "
            "records: leave it to Flower's"
        )
    return found


def check_mean(found: FedAvg, aggregate: State, updates: Sequence[tuple[State, float]]) -> None:
    """Raise unless `aggregate` is the updates' weighted mean; FedAvg's own need not be checked."""
    if type(found).aggregate_train is FedAvg.aggregate_train:
        return
    expected = mean([state for state, _ in updates], [weight for _, weight in updates])
    for name, value in expected.items():
        if value.is_floating_point() and not torch.allclose(
            value, aggregate[name], rtol=_TOLERANCE, atol=1e-6, equal_nan=True
        ):
            raise ConfigError(
                f"strategy {type(found).__name__!r} changes the weighted mean (at {name!r}): "
                "nothing can be erased from such a model"
            )


def messages(
    found: FedAvg, record: ArrayRecord, config: ConfigRecord, grid: Grid, number: int
) -> list[Message]:
    """Return one `train` message for each node of `grid`, as the strategy writes them.

    Whatever share of the nodes it samples otherwise, and however many it waits for: all of them.
    """
    whole = copy.copy(found)
    whole.fraction_train, whole.min_train_nodes, whole.min_available_nodes = 1.0, 1, 1
    made = list(whole.configure_train(number, record, config, grid))
    if any(message.metadata.message_type != MessageType.TRAIN for message in made):
        raise ConfigError(f"strategy {type(found).__name__!r} sends other messages than `train`")
    return made


def weight_of(message: Message, found: FedAvg) -> float:
    """Return the weight that a reply has in the mean; 0 if it tells none that could be one."""
    for record in message.content.metric_records.values():
        value = record.get(found.weighted_by_key)
        if isinstance(value, int | float) and 0 < value <= 2**53:
            return float(value)
    return 0.0


def update_of(message: Message) -> ArrayRecord | None:
    """Return a reply's one record of arrays."""
    records = list(message.content.array_records.values())
    return records[0] if len(records) == 1 else None


def state_of(message: Message, like: State) -> dict[str, torch.Tensor] | None:
    """Return the state in a reply, if there is one."""
    record = update_of(message)
    return None if record is None else arrays.to_state(record, like)
