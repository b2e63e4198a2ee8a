"""Flower's messages as NVFlare's models and back: what comes in is looked at before it is used.

A round is an ordinary NVFlare model, with the parameters as such, so that the user's own script
trains from it; the message without its arrays lies in the model's `meta`. A question of ours, and
its answer, is one array of bytes, which no filter that changes parameters can take for a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Message, MessageType, MetricRecord, RecordDict
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
from secede.flower.protocol import arrays

TRAIN, ASK = "train", "secede"  # names of NVFlare's tasks
WEIGHT = FLMetaKey.NUM_STEPS_CURRENT_ROUND  # where NVFlare's own mean looks, too
# Different ones: NVFlare gives what comes the shape of what was last sent under the same name.
_MESSAGE, _ANSWER = "secede.message", "secede.answer"


def task_of(message: Message) -> tuple[str, FLModel]:
    """Return a message to a client as the name of a task and its model."""
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
    """Return the task and the message that came to a client; None if it is not one of ours."""
    params = model.params if isinstance(model.params, dict) else {}
    if _MESSAGE in params:
        return ASK, _message(_bytes(params[_MESSAGE]))
    told = (model.meta or {}).get(_MESSAGE)
    return (TRAIN, _message(told)) if told else None


def reply_model(reply: Message, question: FLModel) -> FLModel:
    """Return a client's answer, as an array of the kind in which the question came."""
    data = np.frombuffer(records_to_bytes(reply.content), dtype=np.uint8)
    whole = isinstance(question.params[_MESSAGE], Tensor)
    return FLModel(params={_ANSWER: torch.from_numpy(data.copy()) if whole else data})


def reply_of(message: Message, model: FLModel) -> Message:
    """Return what a client sends back as the reply to `message`; GuardError if it is none."""
    if message.metadata.message_type == MessageType.TRAIN:
        return _update(message, model)
    params = model.params if isinstance(model.params, dict) else {}
    try:
        content = records_from_bytes(_bytes(params[_ANSWER]))
    except Exception as error:  # whatever a stranger's bytes lead to
        raise GuardError("the answer cannot be read: did a filter change it?") from error
    return Message(content, reply_to=message)


def _update(message: Message, model: FLModel) -> Message:
    if model.params_type != ParamsType.FULL or not isinstance(model.params, dict):
        raise GuardError(
            "the update holds no whole parameters by name: train with params_transfer_type FULL"
        )
    weight = (model.meta or {}).get(WEIGHT)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= 2**53:
        raise GuardError(f"the update's meta has no {WEIGHT!r} above 0: give the number of samples")
    content = RecordDict(
        {
            "arrays": arrays.to_record(_tensors(model.params)),
            "metrics": MetricRecord({"num-examples": weight}),
        }
    )
    return Message(content, reply_to=message)


def _tensors(params: Mapping[Any, Any]) -> dict[str, Tensor]:
    found = dict[str, Tensor]()
    for name, value in params.items():
        if not isinstance(name, str) or not isinstance(value, Tensor | np.ndarray | np.generic):
            raise GuardError(f"{str(name)[:80]!r} is no array of numbers")
        try:
            whole = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
        except TypeError as error:
            raise GuardError(f"{name[:80]!r} is no array of numbers") from error
        found[name] = whole.detach().cpu()
    return found


def _message(data: bytes) -> Message:
    try:
        return message_from_bytes(data)
    except Exception as error:  # whatever a filter made of it
        raise GuardError("the message cannot be read: did a filter change it?") from error


def _bytes(value: object) -> bytes:
    found = value.cpu().numpy() if isinstance(value, Tensor) else value
    if not isinstance(found, np.ndarray) or found.dtype != np.uint8 or found.ndim != 1:
        raise GuardError("a message that is no array of bytes: did a filter change it?")
    return found.tobytes()
