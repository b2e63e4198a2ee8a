"""The strategies that clients can be erased from: weighted means.

w_ref = (w − p·w_i) / (1 − p) holds for nothing else. Flower's other strategies are refused by name.
A user's own strategy that changes the mean is refused when a round shows it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NoReturn

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType
from flwr.serverapp import Grid, strategy
from flwr.serverapp.strategy import FedAvg, FedProx, Strategy

from secede.errors import ConfigError, GuardError
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
_SECURE = "secaggplus"  # in the error of clients that hide their updates, in a plain round
_CHECKED = 4096  # values of an entry
_TOLERANCE = 1e-5  # of the values' size; float32 sums in another order differ by far less


def check_strategy(strategy: object) -> FedAvg:
    """Return the strategy if it is a weighted mean; ConfigError otherwise."""
    for kind, name in REFUSED:
        if isinstance(strategy, kind):
            refuse(strategy, _REASONS[name])
    if is_legacy_strategy(strategy):
        raise ConfigError(
            f"strategy {type(strategy).__name__!r} is of Flower's legacy stack, which works under "
            "SecAgg+ only: train with secure_recording and erase with secure= (docs/flower.md), or "
            f"use {' or '.join(SUPPORTED)} of flwr.serverapp.strategy"
        )
    if not isinstance(strategy, FedAvg):
        raise ConfigError(
            f"strategy {type(strategy).__name__!r} is not known to be a weighted mean; use "
            f"{' or '.join(SUPPORTED)}, or one of your own that inherits from them"
        )
    if type(strategy).start is not Strategy.start:
        raise ConfigError(
            f"strategy {type(strategy).__name__!r} has a start() of its own, which would bypass "
            "the recording: do not override Flower's"
        )
    return strategy


def refuse(strategy: object, reason: str) -> NoReturn:
    """Raise: no client can be erased from such a strategy."""
    raise ConfigError(
        f"strategy {type(strategy).__name__!r} cannot be erased from: {reason}, so the other "
        f"clients' mean cannot be computed; use {' or '.join(SUPPORTED)}"
    )


def refusal_reason(kind: type) -> str | None:
    """Return why a class of strategies is refused, by its name or a base's; None if it is not."""
    return next((_REASONS[c.__name__] for c in kind.__mro__ if c.__name__ in _REASONS), None)


def check_mean(strategy: FedAvg, aggregate: State, updates: Sequence[tuple[State, float]]) -> None:
    """Raise unless `aggregate` is the updates' weighted mean.

    A sum by FedAvg itself is checked at random places of each entry: an update that is missing, or
    has another weight, shows in all of them.
    """
    actual, states = aggregate, [state for state, _ in updates]
    if getattr(strategy.aggregate_train, "__func__", None) is FedAvg.aggregate_train:
        draw = torch.Generator()
        draw.seed()
        places = {name: _places(value, draw) for name, value in aggregate.items()}
        actual, *states = (_values_at(state, places) for state in (aggregate, *states))
    weights = [weight for _, weight in updates]
    expected = mean(states, weights)
    sizes = mean(
        [{name: value.abs() for name, value in state.items()} for state in states], weights
    )
    for name, value in expected.items():
        if value.is_floating_point() and not _equal(value, actual[name], sizes[name], len(updates)):
            raise ConfigError(
                f"strategy {type(strategy).__name__!r} changes the weighted mean (at {name!r}): "
                "nothing can be erased from such a model"
            )


def _equal(expected: torch.Tensor, actual: torch.Tensor, size: torch.Tensor, count: int) -> bool:
    """Return whether two sums of `count` values of this size differ by rounding alone."""
    kind = torch.finfo(expected.dtype)
    share = max(_TOLERANCE, 4 * (count + 2) * kind.eps)
    allowed = share * size.double() + count * kind.tiny
    near = (expected.double() - actual.double()).abs() <= allowed
    return bool((near | (expected.isnan() & actual.isnan()) | (expected == actual)).all())


def _places(value: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    count = value.numel()
    if count <= _CHECKED:
        return torch.arange(count)
    return torch.randint(count, (_CHECKED,), generator=draw)


def _values_at(state: State, places: Mapping[str, torch.Tensor]) -> State:
    return {name: state[name].flatten()[chosen] for name, chosen in places.items()}


def train_messages(
    strategy: FedAvg, record: ArrayRecord, config: ConfigRecord, grid: Grid, number: int
) -> list[Message]:
    """Return one `train` message for each node of `grid`, as the strategy writes them.

    The strategy's own sampling of nodes, and how many it waits for, do not count.
    """
    sampling_all = copy.copy(strategy)
    sampling_all.fraction_train = 1.0
    sampling_all.min_train_nodes, sampling_all.min_available_nodes = 1, 1
    sent = list(sampling_all.configure_train(number, record, config, grid))
    if any(message.metadata.message_type != MessageType.TRAIN for message in sent):
        raise ConfigError(f"strategy {type(strategy).__name__!r} sends other messages than `train`")
    return sent


def min_clients(strategy: FedAvg, phase: Literal["train", "evaluate"]) -> int:
    """Return how many clients Flower's sampling waits for; 1 for a user's own sampling."""
    sampling = getattr(type(strategy), f"configure_{phase}")
    if sampling not in [getattr(kind, f"configure_{phase}") for kind in (FedAvg, FedProx)]:
        return 1
    sampled = strategy.min_train_nodes if phase == "train" else strategy.min_evaluate_nodes
    return max(1, strategy.min_available_nodes, sampled)


def check_in_the_open(replies: Iterable[Message]) -> None:
    """Raise if the clients hide their updates: then all refuse a plain round."""
    every = list(replies)
    if not all(reply.has_error() for reply in every):
        return  # one client's error does not end the training of the others
    if any(_SECURE in str(reply.error.reason) for reply in every):
        raise ConfigError(HIDDEN)


def weight_of(message: Message, strategy: FedAvg) -> float:
    """Return a reply's weight in the mean; 0 if it has no valid one."""
    for record in message.content.metric_records.values():
        value = record.get(strategy.weighted_by_key)
        if isinstance(value, int | float) and 0 < value <= 2**53:
            return float(value)
    return 0.0


def update_of(
    reply: Message, strategy: FedAvg, template: State, *, shared: bool = False
) -> tuple[dict[str, torch.Tensor], float]:
    """Return a reply's state and weight; GuardError unless it has just the records for a mean."""
    records = list(reply.content.array_records.values())
    if len(records) != 1 or len(reply.content.metric_records) != 1:
        raise GuardError("expected one record of arrays and one of metrics")
    weight = weight_of(reply, strategy)
    if not weight or weight != int(weight):
        raise GuardError(f"its {strategy.weighted_by_key!r} is no whole number above 0")
    return arrays.to_state(records[0], template, shared=shared), weight
