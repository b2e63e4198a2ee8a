"""Which strategies an erasure can follow: weighted means, whose leaver can be taken out again.

w_ref = (w − p·w_i) / (1 − p) holds for nothing else. Those known to be something else are refused
by name; one's own that changes the aggregate is refused when a round shows it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType
from flwr.serverapp import Grid, strategy
from flwr.serverapp.strategy import FedAvg, FedProx, Strategy

from secede.errors import ConfigError
from secede.flower._flwr import is_legacy_strategy
from secede.flower.protocol import arrays
from secede.state import State, mean

SUPPORTED = ("FedAvg", "FedProx")
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
HIDDEN = (
    "the clients hide their updates (secaggplus_mod) and refuse rounds in the open: train with "
    "secure_recording(DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(...)), store), and erase "
    "with secure= (docs/flower.md)"
)
_SECURE = "secaggplus"  # names what clients that hide their updates miss in a plain round
_LOOKED_AT = 4096  # values of an entry
_TOLERANCE = 1e-5  # of the values' size: float32 sums of some in another order differ by far less


def check_strategy(found: object) -> FedAvg:
    """Return the strategy if it is a weighted mean."""
    for kind, name in REFUSED:
        if isinstance(found, kind):
            raise ConfigError(
                f"strategy {type(found).__name__!r} cannot be erased from: {_REASONS[name]}, and "
                f"the mean of the others cannot be had from it; use {' or '.join(SUPPORTED)}"
            )
    if is_legacy_strategy(found):
        raise ConfigError(
            f"strategy {type(found).__name__!r} is of Flower's legacy stack, which runs under "
            "SecAgg+ alone: train with secure_recording, erase with secure= (docs/flower.md), or "
            f"take {' or '.join(SUPPORTED)} of flwr.serverapp.strategy"
        )
    if not isinstance(found, FedAvg):
        raise ConfigError(
            f"strategy {type(found).__name__!r} is not known to be a weighted mean; use "
            f"{' or '.join(SUPPORTED)}, or one of your own that inherits from them"
        )
    if type(found).start is not Strategy.start:
        raise ConfigError(
            f"strategy {type(found).__name__!r} has a start() of its own, which would go past the "
            "records: leave it to Flower's"
        )
    return found


def refusal_reason(kind: type) -> str | None:
    """Return why strategies of a kind, or called as it is, are refused; None: they are not."""
    return next((_REASONS[c.__name__] for c in kind.__mro__ if c.__name__ in _REASONS), None)


def check_mean(found: FedAvg, aggregate: State, updates: Sequence[tuple[State, float]]) -> None:
    """Raise unless `aggregate` is the updates' weighted mean.

    What FedAvg itself sums is looked at in some places of each entry: an update that is missing
    there, or weighs otherwise, shows in all of them.
    """
    here, given = aggregate, [state for state, _ in updates]
    if getattr(found.aggregate_train, "__func__", None) is FedAvg.aggregate_train:
        draw = torch.Generator()
        draw.seed()
        places = {name: _places(value, draw) for name, value in aggregate.items()}
        here, *given = (_some(state, places) for state in (aggregate, *given))
    weights = [weight for _, weight in updates]
    expected = mean(given, weights)
    sizes = mean([{name: value.abs() for name, value in state.items()} for state in given], weights)
    for name, value in expected.items():
        if value.is_floating_point() and not _equal(value, here[name], sizes[name], len(updates)):
            raise ConfigError(
                f"strategy {type(found).__name__!r} changes the weighted mean (at {name!r}): "
                "nothing can be erased from such a model"
            )


def _equal(expected: torch.Tensor, found: torch.Tensor, size: torch.Tensor, count: int) -> bool:
    """Return whether two sums of `count` values of this size differ by no more than rounding."""
    kind = torch.finfo(expected.dtype)
    share = max(_TOLERANCE, 4 * (count + 2) * kind.eps)
    allowed = share * size.double() + count * kind.tiny
    near = (expected.double() - found.double()).abs() <= allowed
    return bool((near | (expected.isnan() & found.isnan()) | (expected == found)).all())


def _places(value: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    count = value.numel()
    if count <= _LOOKED_AT:
        return torch.arange(count)
    return torch.randint(count, (_LOOKED_AT,), generator=draw)


def _some(state: State, places: Mapping[str, torch.Tensor]) -> State:
    return {name: state[name].flatten()[chosen] for name, chosen in places.items()}


def train_messages(
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


def min_clients(found: FedAvg, phase: Literal["train", "evaluate"]) -> int:
    """Return how many clients Flower's own sampling waits for; 1 where it is not Flower's."""
    sampling = getattr(type(found), f"configure_{phase}")
    if sampling not in [getattr(kind, f"configure_{phase}") for kind in (FedAvg, FedProx)]:
        return 1
    sampled = found.min_train_nodes if phase == "train" else found.min_evaluate_nodes
    return max(1, found.min_available_nodes, sampled)


def check_in_the_open(replies: Iterable[Message]) -> None:
    """Raise if clients hide their updates: they refuse plain rounds, and none has sent any."""
    found = list(replies)
    if not all(reply.has_error() for reply in found):
        return  # one client's words do not end the training of the others
    if any(_SECURE in str(reply.error.reason) for reply in found):
        raise ConfigError(HIDDEN)


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
