"""Flower's legacy stack as SecAgg+ needs it: parameters by place, and strategies in it."""

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
_WHOLE = 1e-3  # of a step: a sum's values are off by less


@dataclass(frozen=True)
class SecAggSettings:
    """A weighted mean whose single updates stay hidden: the workflow, and the strategy in it."""

    workflow: SecAggPlusWorkflow
    strategy: LegacyFedAvg

    def whole(self) -> LegacyFedAvg:
        """Return the strategy as one that samples all who are there."""
        found = copy.copy(self.strategy)
        found.fraction_fit, found.min_fit_clients, found.min_available_clients = 1.0, 1, 1
        return found

    def least(self) -> int:
        """Return how many clients Flower's own sampling waits for; 1 where it is not Flower's."""
        found = self.strategy
        if type(found).configure_fit not in (
            LegacyFedAvg.configure_fit,
            LegacyFedProx.configure_fit,
        ):
            return 1
        return max(1, found.min_available_clients, found.min_fit_clients)

    def check_enough(self, clients: int) -> None:
        """Raise if so many clients can never complete a round."""
        if clients < 2:
            raise ConfigError(
                "one client alone cannot hide its update: SecAgg+ needs two or more beside the "
                "leaver"
            )
        check_modulus(self.workflow, clients)
        shares, threshold = _protocol(self.workflow, clients)
        near = min(clients, 2 * (shares // 2) + 1)  # clients that have a share of one's keys
        if threshold > near:
            raise ConfigError(
                f"SecAgg+ needs {threshold} of {near} shares, and {clients} clients are left: "
                "give a SecAggPlusWorkflow with a smaller reconstruction_threshold"
            )


def check_secagg(strategy: object, workflow: object) -> SecAggSettings:
    """Return both if they are a weighted mean under SecAgg+."""
    if not isinstance(workflow, SecAggPlusWorkflow):
        raise ConfigError(
            f"secure= is a {type(workflow).__name__!r}, expected flwr.server.workflow's "
            "SecAggPlusWorkflow, or what secure_recording gave"
        )
    name, reason = type(strategy).__name__, supported_strategies.refusal_reason(type(strategy))
    if reason is not None:
        raise ConfigError(
            f"strategy {name!r} cannot be erased from: {reason}, and the mean of the others cannot "
            f"be had from it; use {' or '.join(supported_strategies.SUPPORTED)}"
        )
    if not isinstance(strategy, LegacyFedAvg):
        raise ConfigError(
            f"strategy {name!r} of {type(strategy).__module__.partition('.strategy')[0]} cannot "
            "run under SecAgg+: give the one that LegacyContext has, flwr.server.strategy's "
            f"{' or '.join(supported_strategies.SUPPORTED)}, or your own that inherits from them"
        )
    return SecAggSettings(workflow, strategy)


def to_parameters(state: State) -> Parameters:
    """Return a state as Flower's legacy stack sends it: arrays by place."""
    try:
        return ndarrays_to_parameters([v.detach().cpu().numpy() for v in state.values()])
    except TypeError as error:
        raise ConfigError(f"NumPy, and so SecAgg+, lacks a kind of number: {error}") from error


def to_state(parameters: Parameters, like: State) -> dict[str, Tensor]:
    """Return parameters under the model's names, rounded to its kinds of numbers."""
    arrays = parameters_to_ndarrays(parameters)
    if len(arrays) != len(like):
        raise GuardError(f"{len(arrays)} arrays, expected {len(like)}, those of load_model()")
    found = dict[str, Tensor]()
    for (name, expected), array in zip(like.items(), arrays, strict=True):
        value = torch.from_numpy(np.array(array))
        whole = value.is_floating_point() and not expected.is_floating_point()
        found[name] = (value.round() if whole else value).to(expected.dtype)
    try:
        states.check_schema(found, like)
    except StateError as error:
        raise GuardError(f"the arrays are not those of load_model(): {error}") from error
    return found


def step_size(workflow: SecAggPlusWorkflow, weight: float) -> float:
    """Return the steps in which the mean of clients with so much weight together is counted."""
    step: float = 2 * workflow.clipping_range / workflow.quantization_range
    return step * workflow.max_weight / weight


def warnings(workflow: SecAggPlusWorkflow, weights: Sequence[int]) -> tuple[str, ...]:
    """Return what is wrong with a mean of clients with these weights, though it may be used."""
    found, total = list[str](), sum(weights)
    if len(weights) == 2:
        found.append(
            "this mean is of two clients: each can work out the other's update, and neither can "
            "leave by a step of its own before a round with three or more"
        )
    off = step_size(workflow, total) * math.sqrt(len(weights)) / (1 - max(weights) / total)
    if off > COARSE:
        found.append(
            "SecAgg+ counts this mean in steps so coarse that a leaver's reference may be off by "
            f"{off:.2g}: lower its max_weight to the largest client's samples"
        )
    return tuple(found)


def unmasked_mean(
    workflow: SecAggPlusWorkflow, mean: Parameters, weights: Sequence[int]
) -> Parameters:
    """Return the mean that was opened; GuardError if it is no sum of whole steps by these weights.

    Flower leaves arrays of no dimension as they were added up: here they become means.
    """
    levels, clip, clients = workflow.quantization_range, workflow.clipping_range, len(weights)
    step = 2 * clip / levels
    share = sum(round(weight / workflow.max_weight * levels) for weight in weights) / levels
    found = list[np.ndarray]()
    for array in parameters_to_ndarrays(mean):
        value = np.asarray(array, dtype=np.float64)
        if not value.ndim and _is_whole((value + clip) / step):
            value = np.asarray((value - (clients - 1) * clip) / share)
        if not _is_whole((value * share + clients * clip) / step):
            raise GuardError(
                "the sum does not fit the weights that came with it: a client tells another "
                "num_examples than it weighs with, or sent false shares of keys"
            )
        found.append(value)
    return ndarrays_to_parameters(found)


def _is_whole(steps: np.ndarray) -> bool:
    return bool(np.all(np.abs(steps - np.round(steps)) <= _WHOLE))


def check_modulus(workflow: SecAggPlusWorkflow, clients: int) -> None:
    """Raise if the sum of so many could pass the modulus, and would begin again at 0."""
    if clients * workflow.quantization_range >= workflow.modulus_range:
        raise ConfigError(
            f"SecAgg+ cannot add up {clients} clients: clients times quantization_range, now "
            f"{workflow.quantization_range}, must stay below its modulus_range, "
            f"{workflow.modulus_range}"
        )


def _protocol(workflow: SecAggPlusWorkflow, clients: int) -> tuple[int, int]:
    """Return shares and threshold as the workflow works them out for so many clients."""
    shares, threshold = workflow.num_shares, workflow.reconstruction_threshold
    if isinstance(shares, float):
        shares = round(shares * clients)
        shares += shares < clients and shares % 2 == 0
        shares = clients if shares <= 2 else shares
    if isinstance(threshold, float):
        threshold = max(2, round(threshold * shares))
    return int(shares), int(threshold)
