"""Flower's legacy stack, on which SecAgg+ runs: parameters by place, strategies, settings."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from secede import state as states
from secede.errors import ConfigError, GuardError, StateError
from secede.flower._flwr import (
    LegacyFedAvg,
    LegacyFedProx,
    Parameters,
    SecAggPlusWorkflow,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from secede.flower.rounds import supported_strategies
from secede.state import State

COARSE = 1e-4  # that a leaver's reference may be off by rounding
_WHOLE = 1e-3  # of a step: rounding puts a sum's values off by less


@dataclass(frozen=True)
class SecAggSettings:
    """A weighted mean of hidden updates: the SecAgg+ workflow and the strategy in it."""

    workflow: SecAggPlusWorkflow
    strategy: LegacyFedAvg

    def sampling_all(self) -> LegacyFedAvg:
        """Return the strategy as one that samples all clients that are online."""
        strategy = copy.copy(self.strategy)
        strategy.fraction_fit, strategy.min_fit_clients = 1.0, 1
        strategy.min_available_clients = 1
        return strategy

    def min_clients(self) -> int:
        """Return how many clients Flower's sampling waits for; 1 for a user's own sampling."""
        strategy = self.strategy
        if type(strategy).configure_fit not in (
            LegacyFedAvg.configure_fit,
            LegacyFedProx.configure_fit,
        ):
            return 1
        return max(1, strategy.min_available_clients, strategy.min_fit_clients)

    def check_enough(self, clients: int) -> None:
        """Raise if so many clients can never complete a round."""
        if clients < 2:
            raise ConfigError(
                "one client alone cannot hide its update: SecAgg+ needs two or more beside the "
                "leaver"
            )
        check_modulus(self.workflow, clients)
        shares, threshold = _protocol(self.workflow, clients)
        holders = min(clients, 2 * (shares // 2) + 1)  # clients with a share of one client's keys
        if threshold > holders:
            raise ConfigError(
                f"SecAgg+ needs {threshold} of {holders} shares, and {clients} clients are left: "
                "give a SecAggPlusWorkflow with a smaller reconstruction_threshold"
            )


def check_secagg(strategy: object, workflow: object) -> SecAggSettings:
    """Return a strategy and a workflow if they are a weighted mean under SecAgg+."""
    if not isinstance(workflow, SecAggPlusWorkflow):
        raise ConfigError(
            f"secure= is a {type(workflow).__name__!r}, expected flwr.server.workflow's "
            "SecAggPlusWorkflow, or what secure_recording gave"
        )
    name, reason = type(strategy).__name__, supported_strategies.refusal_reason(type(strategy))
    if reason is not None:
        supported_strategies.refuse(strategy, reason)
    if not isinstance(strategy, LegacyFedAvg):
        raise ConfigError(
            f"strategy {name!r} of {type(strategy).__module__.partition('.strategy')[0]} cannot "
            "run under SecAgg+: give the LegacyContext's strategy, flwr.server.strategy's "
            f"{' or '.join(supported_strategies.SUPPORTED)}, or your own that inherits from them"
        )
    return SecAggSettings(workflow, strategy)


def to_parameters(state: State) -> Parameters:
    """Return a state in the form of Flower's legacy stack: arrays by place."""
    try:
        return ndarrays_to_parameters([v.detach().cpu().numpy() for v in state.values()])
    except TypeError as error:
        raise ConfigError(f"SecAgg+ cannot send a type that NumPy lacks: {error}") from error


def to_state(parameters: Parameters, template: State) -> dict[str, Tensor]:
    """Return parameters under the template's names, rounded to its dtypes."""
    arrays = parameters_to_ndarrays(parameters)
    if len(arrays) != len(template):
        raise GuardError(f"{len(arrays)} arrays, expected {len(template)}, those of load_model()")
    state = dict[str, Tensor]()
    for (name, expected), array in zip(template.items(), arrays, strict=True):
        value = torch.from_numpy(np.array(array))
        integral = value.is_floating_point() and not expected.is_floating_point()
        state[name] = (value.round() if integral else value).to(expected.dtype)
    try:
        states.check_schema(state, template)
    except StateError as error:
        raise GuardError(f"the arrays are not those of load_model(): {error}") from error
    return state


def step_size(workflow: SecAggPlusWorkflow, weight: float) -> float:
    """Return the quantisation step of a mean of clients with this total weight."""
    step: float = 2 * workflow.clipping_range / workflow.quantization_range
    return step * workflow.max_weight / weight


def warnings(workflow: SecAggPlusWorkflow, weights: Sequence[int]) -> tuple[str, ...]:
    """Return warnings about a mean of clients with these weights."""
    lines, total = list[str](), sum(weights)
    if len(weights) == 2:
        lines.append(
            "this mean is of two clients: each can work out the other's update, and neither can "
            "leave by a step of its own before a round with three or more"
        )
    off = step_size(workflow, total) * math.sqrt(len(weights)) / (1 - max(weights) / total)
    if off > COARSE:
        lines.append(
            "SecAgg+ rounds this mean so coarsely that a leaver's reference may be off by "
            f"{off:.2g}: lower its max_weight to the largest client's samples"
        )
    return tuple(lines)


def unmasked_mean(
    workflow: SecAggPlusWorkflow, mean: Parameters, weights: Sequence[int]
) -> Parameters:
    """Return the unmasked mean; GuardError if it is no sum of whole steps with these weights.

    Flower leaves arrays of no dimension as sums: here they become means.
    """
    levels, clip, clients = workflow.quantization_range, workflow.clipping_range, len(weights)
    step = 2 * clip / levels
    share = sum(round(weight / workflow.max_weight * levels) for weight in weights) / levels
    values = list[np.ndarray]()
    for array in parameters_to_ndarrays(mean):
        value = np.asarray(array, dtype=np.float64)
        if not value.ndim and _is_whole((value + clip) / step):
            value = np.asarray((value - (clients - 1) * clip) / share)
        if not _is_whole((value * share + clients * clip) / step):
            raise GuardError(
                "the sum does not fit the weights that came with it: a client reports another "
                "num_examples than it weighs its update with, or sent false key shares"
            )
        values.append(value)
    return ndarrays_to_parameters(values)


def _is_whole(steps: np.ndarray) -> bool:
    return bool(np.all(np.abs(steps - np.round(steps)) <= _WHOLE))


def check_modulus(workflow: SecAggPlusWorkflow, clients: int) -> None:
    """Raise if the sum of so many clients could overflow the modulus."""
    if clients * workflow.quantization_range >= workflow.modulus_range:
        raise ConfigError(
            f"SecAgg+ cannot sum up {clients} clients: clients times quantization_range, now "
            f"{workflow.quantization_range}, must stay below its modulus_range, "
            f"{workflow.modulus_range}"
        )


def _protocol(workflow: SecAggPlusWorkflow, clients: int) -> tuple[int, int]:
    """Return shares and threshold as the workflow computes them for so many clients."""
    shares, threshold = workflow.num_shares, workflow.reconstruction_threshold
    if isinstance(shares, float):
        shares = round(shares * clients)
        shares += shares < clients and shares % 2 == 0
        shares = clients if shares <= 2 else shares
    if isinstance(threshold, float):
        threshold = max(2, round(threshold * shares))
    return int(shares), int(threshold)
