"""Which samples a client predicted right with the last models that it counted with.

A later count is paired with an earlier one: the server sends the earlier model's digest, and gets
how many samples changed. One bit for each sample is kept, in the folder of the kept updates.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from secede import files
from secede.federation.engine import ClientSide
from secede.unlearning import Reply
from secede.unlearning.client_tasks import BEFORE, count, predict

_SECRET = "own.secret"
_PREFIX, _DIGEST = "counted-", re.compile(r"[0-9a-f]{64}")
_KEPT = 4  # models


class CountedPredictions:
    """The predictions that were counted for a client with samples of this digest."""

    def __init__(self, folder: Path, samples: str) -> None:
        self._folder, self._samples = folder, samples

    def get(self, model: object, length: int) -> Tensor | None:
        """Return which of `length` samples a model predicted right; None if it is not known."""
        if not isinstance(model, str) or not _DIGEST.fullmatch(model):
            return None
        path = self._path(model)
        try:
            packed = np.frombuffer(path.read_bytes(), dtype=np.uint8)
            os.utime(path)  # what is compared with is not forgotten
        except OSError:
            return None
        if len(packed) != -(-length // 8):
            return None
        return torch.from_numpy(np.unpackbits(packed, count=length).astype(bool))

    def put(self, model: str, right: Tensor) -> None:
        """Keep which samples a model predicted right, and forget those of older models."""
        with files.private():
            files.write_bytes(self._path(model), np.packbits(right.numpy()).tobytes())
        newest = sorted(_paths(self._folder), key=lambda path: path.stat().st_mtime_ns)
        for path in newest[:-_KEPT]:
            files.delete(path)

    def _path(self, model: str) -> Path:
        name = hashlib.sha256(f"{self._samples}/{model}".encode()).hexdigest()[:32]
        return self._folder / f"{_PREFIX}{name}.bits"


class PairedCount:
    """The task of counting, with what is known of the model that the server compares with."""

    def __init__(self, known: CountedPredictions, model: str, settings: Mapping[str, Any]) -> None:
        self._known, self._model, self._before = known, model, settings.get(BEFORE)

    def __call__(self, side: ClientSide) -> Reply:
        """Count with the global state."""
        now = predict(side, side.global_state)
        before = self._known.get(self._before, len(now.right))
        self._known.put(self._model, now.right)
        return count(side, now, before)


def own_secret(folder: Path) -> str:
    """Return what this client alone knows: its noise and the way it rounds come from it."""
    path = folder / _SECRET
    if not path.exists():
        with files.private():
            files.make_folder(folder)
            files.create(path, secrets.token_bytes(32), 0o600)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def forget(folder: Path) -> None:
    """Delete all that is kept in a client's folder."""
    for path in _paths(folder):
        files.delete(path)


def _paths(folder: Path) -> list[Path]:
    return [*folder.glob(f"{_PREFIX}*.bits")]
