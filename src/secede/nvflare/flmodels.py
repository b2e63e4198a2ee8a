"""Flower's messages as NVFlare's models and back. What is received is checked before use.

A round is an ordinary NVFlare model, so that the user's own script trains from its parameters; the
message without its arrays lies in the model's `meta`. A task of secede's, and its reply, is one
array of bytes, which no filter that changes parameters takes for a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from torch import Tensor

from secede.errors import GuardError
from secede.flower._flwr import (
    message_from_bytes,
    message_to_bytes,
    records_from_bytes,
    records_to_bytes,
)

TRAIN, ASK = "train", "secede"  # names of NVFlare's tasks
WEIGHT = FLMetaKey.NUM_STEPS_CURRENT_ROUND  # NVFlare's own mean reads it, too
# Two names, since NVFlare reshapes an array to the last one that was sent under the same name.
_MESSAGE, _REPLY = "secede.message", "secede.reply"
_SAMPLES, _CANARIES = "secede.samples", "secede.canaries"  # as records in a reply on Flower


def task_of(message: Message) -> tuple[str, FLModel]:
    """Return the task's name and model that carry a message to a client."""
    if message.metadata.message_type != MessageType.TRAIN:
        data = np.frombuffer(message_to_bytes(message), dtype=np.uint8)
        return ASK, FLModel(params={_MESSAGE: data})
    (record,) = message.content.array_records.values()
    numbers = [config.get("server-round") for config in message.content.config_records.values()]
    return TRAIN, FLModel(
        params={name: array.numpy() for name, array in record.items()},
        current_round=next((n for n in numbers if isinstance(n, int)), None),
        meta={_MESSAGE: message_to_bytes(message, arrays=False)},
    )


def message_of(model: FLModel) -> tuple[str, Message] | None:
    """Return the task's name and the message in a model; None if the model carries none."""
    params = model.params if isinstance(model.params, dict) else {}
    if _MESSAGE in params:
        return ASK, _message(_bytes(params[_MESSAGE]))
    data = (model.meta or {}).get(_MESSAGE)
    return (TRAIN, _message(data)) if data else None


def reply_model(reply: Message, task: FLModel) -> FLModel:
    """Return the model that carries a client's reply, as an array of the task's kind."""
    data = np.frombuffer(records_to_bytes(reply.content), dtype=np.uint8)
    is_tensor = isinstance(task.params[_MESSAGE], Tensor)
    return FLModel(params={_REPLY: torch.from_numpy(data.copy()) if is_tensor else data})


def reply_of(message: Message, model: FLModel) -> Message:
    """Return the reply to `message` in a client's model; GuardError if there is none."""
    if message.metadata.message_type == MessageType.TRAIN:
        return _update(message, model)
    params = model.params if isinstance(model.params, dict) else {}
    try:
        content = records_from_bytes(_bytes(params[_REPLY]))
    except Exception as error:  # any error that a client's bytes lead to
        raise GuardError("the reply cannot be read: did a filter change it?") from error
    return Message(content, reply_to=message)


def add_samples(model: FLModel, count: int) -> None:
    """Add the number of a client's samples to its first update, to compare its weight with."""
    model.meta = {**(model.meta or {}), _SAMPLES: count}


def add_canaries(model: FLModel, record: ConfigRecord) -> None:
    """Add to an update what its client says of its canaries."""
    model.meta = {**(model.meta or {}), _CANARIES: dict(record)}


def _update(message: Message, model: FLModel) -> Message:
    if model.params_type != ParamsType.FULL or not isinstance(model.params, dict):
        raise GuardError(
            "the update has no full parameters by name: train with params_transfer_type FULL"
        )
    weight = (model.meta or {}).get(WEIGHT)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= 2**53:
        raise GuardError(f"the update's meta has no {WEIGHT!r} above 0: give the number of samples")
    content = RecordDict(
        {
            "arrays": ArrayRecord(tensors(model.params)),
            "metrics": MetricRecord({"num-examples": weight}),
        }
    )
    reply = Message(content, reply_to=message)
    samples = (model.meta or {}).get(_SAMPLES)
    if type(samples) is int and 0 < samples <= 2**53:
        reply.content[_SAMPLES] = ConfigRecord({"samples": samples})
    told = (model.meta or {}).get(_CANARIES)
    if isinstance(told, dict):
        record = reply.content[_CANARIES] = ConfigRecord()
        for name, value in told.items():
            if isinstance(name, str) and isinstance(value, str):
                record[name] = value
    return reply


def tensors(params: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Return parameters as tensors; GuardError if one is none."""
    found = dict[str, Tensor]()
    for name, value in params.items():
        if not isinstance(name, str) or not isinstance(value, Tensor | np.ndarray | np.generic):
            raise GuardError(f"{str(name)[:80]!r} is no array of numbers")
        try:
            tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
        except TypeError as error:
            raise GuardError(f"{name[:80]!r} is no array of numbers") from error
        found[name] = tensor.detach().cpu()
    return found


def _message(data: bytes) -> Message:
    try:
        return message_from_bytes(data)
    except Exception as error:  # any error that a filter's bytes lead to
        raise GuardError("the message cannot be read: did a filter change it?") from error


def _bytes(value: object) -> bytes:
    array = value.cpu().numpy() if isinstance(value, Tensor) else value
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim != 1:
        raise GuardError("the message is no array of bytes: did a filter change it?")
    return array.tobytes()
