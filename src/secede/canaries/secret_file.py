"""The file of a client's canaries, with which they can be read without the client's data.

A line that names the format, a length, canonical JSON of settings and coins, then the tensors in
safetensors. Nothing is pickled, and a file that is not byte for byte as it was written is refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from secede.canaries.canary import Canaries, Canary, toss
from secede.canaries.made_up import MAXIMUM_CANDIDATES
from secede.canaries.options import MAXIMUM_COUNT, CanaryOptions
from secede.errors import ConfigError, DataError
from secede.strict import parse_json

MAX_FILE_BYTES = 256 << 20
_MAGIC = b"secede-canaries-v1\n"
_MAX_HEADER_BYTES = 1 << 20
_TENSORS = {"inputs", "targets", "low", "high"}
_NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_DTYPES = (*_NUMBERS, torch.uint8, torch.int32, torch.int64)


class _Coins(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    inputs: Annotated[int, Field(ge=1, le=MAXIMUM_CANDIDATES)]
    candidates: Annotated[int, Field(ge=2, le=MAXIMUM_CANDIDATES)]
    drawn: Annotated[int, Field(ge=0, lt=MAXIMUM_CANDIDATES)]
    opponent: Annotated[int, Field(ge=0, lt=MAXIMUM_CANDIDATES)]


class _Header(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: Literal[1] = 1
    secret: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    options: dict[str, Any]
    canaries: Annotated[list[_Coins], Field(min_length=1, max_length=MAXIMUM_COUNT)]


@dataclass(frozen=True)
class _Parts:
    header: _Header
    tensors: dict[str, Tensor]


def to_bytes(canaries: Canaries) -> bytes:
    """Return the file of `canaries`: a secret of the client's."""
    coins = [
        _Coins(
            inputs=len(canary.inputs),
            candidates=canary.candidates,
            drawn=canary.drawn,
            opponent=canary.opponent,
        )
        for canary in canaries.canaries
    ]
    header = _Header(
        secret=canaries.secret.hex(), options=canaries.options.to_dict(), canaries=coins
    )
    text = json.dumps(header.model_dump(), sort_keys=True, separators=(",", ":")).encode()
    tensors = {
        "inputs": torch.cat([canary.inputs for canary in canaries.canaries]),
        "targets": torch.cat([canary.targets for canary in canaries.canaries]),
        "low": canaries.low,
        "high": canaries.high,
    }
    body = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    return _MAGIC + len(text).to_bytes(8) + text + body


def from_bytes(data: bytes) -> Canaries:
    """Return the canaries in a file; DataError if it is none, or not as it was written."""
    parts = _split(data)
    try:
        canaries = _rebuild(parts)
    except (ConfigError, ValueError, RuntimeError) as error:
        raise _refused("its parts do not fit together") from error
    if to_bytes(canaries) != data:
        raise _refused("it is not byte for byte as it was written")
    return canaries


def _split(data: bytes) -> _Parts:
    if len(data) > MAX_FILE_BYTES:
        raise _refused(f"it has over {MAX_FILE_BYTES:,} bytes")
    start = len(_MAGIC) + 8
    if not data.startswith(_MAGIC) or len(data) < start:
        raise _refused("it does not begin as one")
    length = int.from_bytes(data[len(_MAGIC) : start])
    if length > min(_MAX_HEADER_BYTES, len(data) - start):
        raise _refused("its header is too long")
    try:
        header = parse_json(data[start : start + length].decode())
        checked = TypeAdapter(_Header).validate_python(header)
    except (ValidationError, ValueError) as error:
        raise _refused("its header is damaged") from error
    try:
        tensors = load(data[start + length :])
    except (SafetensorError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise _refused("its tensors are damaged") from error
    return _Parts(checked, tensors)


def _rebuild(parts: _Parts) -> Canaries:
    header, tensors = parts.header, parts.tensors
    if set(tensors) != _TENSORS:
        raise ValueError("names of tensors")
    for value in tensors.values():
        if value.dtype not in _DTYPES or not bool(value.isfinite().all()):
            raise ValueError("values of tensors")
    secret, low, high = bytes.fromhex(header.secret), tensors["low"], tensors["high"]
    inputs = tensors["inputs"].split([coins.inputs for coins in header.canaries])
    targets = tensors["targets"].split([coins.candidates for coins in header.canaries])
    shape = tuple(tensors["inputs"].shape[1:])
    for limit in (low, high):
        if not shape or torch.broadcast_shapes(limit.shape, shape) != torch.Size(shape):
            raise ValueError("limits")
    canaries = []
    for index, coins in enumerate(header.canaries):
        if coins.inputs not in (1, coins.candidates):
            raise ValueError("inputs of a canary")
        if toss(secret, index, coins.candidates) != (coins.drawn, coins.opponent):
            raise ValueError("coins that are not those of the secret")
        canaries.append(Canary(inputs[index], targets[index], coins.drawn, coins.opponent))
    try:
        options = CanaryOptions(**header.options)
    except TypeError as error:
        raise ValueError("settings") from error
    return Canaries(secret, options, tuple(canaries), low, high)


def _refused(reason: str) -> DataError:
    return DataError(f"this is no file of canaries: {reason}")
