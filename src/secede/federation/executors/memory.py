"""How much memory there is to train in, and how much of it one client needs."""

from __future__ import annotations

import copy
import os

import torch
from torch import Tensor

from secede import state as states
from secede.data.samples import Samples
from secede.federation.executors.capture import LARGEST_BLOCK
from secede.federation.executors.executor import Work
from secede.federation.training import batch_loss
from secede.seeding import torch_seeded

SHARE = 0.25  # of a device's memory that one stack may take; several may train at once
_COPIES = 6  # a client's values, momentum, gradient, and what their update holds for a moment
_ACTIVATIONS = 3  # kept for the backward pass, their gradients, and room for the kernels' own


def total_bytes(device: torch.device) -> int:
    """Return how much memory `device` has: what is free would change from run to run."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def client_bytes(work: Work, example: Samples) -> int:
    """Return about how many bytes one client takes while it trains on full batches."""
    rows = min(len(example), 4)
    kept = kept_for_backward(work, example.take(torch.arange(rows, device=example.y.device)))
    activations = kept * work.training.batch_size // rows
    waiting = LARGEST_BLOCK * work.training.batch_size * example.x[:1].nbytes
    own = states.size_bytes(states.live(work.model))
    return _COPIES * own + _ACTIVATIONS * activations + waiting


def kept_for_backward(work: Work, batch: Samples) -> int:
    """Return how many bytes of activations the forward pass of `batch` keeps."""
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    model = copy.deepcopy(work.model).train()
    own = {value.untyped_storage().data_ptr() for value in model.parameters()}
    with torch_seeded(0), torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
        loss = batch_loss(model, batch.x, batch.y, loss=work.loss, precision=work.precision)
    del loss
    return sum(kept.values())
