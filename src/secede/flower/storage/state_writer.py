"""Files of states, written straight from memory and hashed at the same time.

`save` writes a complete file, named by its state's digest, or none. Hashing and writing release the
interpreter, so a round waits for the slower of the two and not for their sum.
"""

from __future__ import annotations

import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from secede import files
from secede import state as states
from secede.errors import StorageError
from secede.state import State


def save(state: State, folder: Path, *, mode: int = 0o666) -> str:
    """Write `state` into `folder` and return its digest."""
    try:
        with (
            files.temporary_file(folder / "state", mode) as temporary,
            ThreadPoolExecutor(1) as pool,
        ):
            hashing = pool.submit(states.digest, state)
            write(state, temporary)
            files.sync(temporary)
            digest = hashing.result()
            files.move(temporary, folder / f"{digest}.safetensors")
    except OSError as error:
        raise StorageError(f"cannot write in {folder}: {error.strerror or error}") from error
    return digest


def write(state: State, path: Path) -> None:
    """Write `state` into an existing file without syncing it."""
    try:
        safetensors.torch.save_file(_without_shared_memory(state), path, {})
    except safetensors.SafetensorError as error:
        raise StorageError(f"cannot write in {path.parent}: {error}") from error


def write_with_checksum(state: State, path: Path) -> int:
    """Write `state` into an existing file without syncing it, and return its checksum."""
    with ThreadPoolExecutor(1) as pool:
        summing = pool.submit(checksum, state)
        write(state, path)
        return summing.result()


def checksum(state: State) -> int:
    """Return a CRC-32 over what the digest covers: it detects damage, but no forgery."""
    crc = 0
    for name in sorted(state):
        value = state[name].detach().cpu().contiguous()
        header = json.dumps([name, str(value.dtype), list(value.shape)])
        crc = zlib.crc32(header.encode(), crc)
        crc = zlib.crc32(value.reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc


def _without_shared_memory(state: State) -> dict[str, Tensor]:
    """Return the entries, copied where they share memory: safetensors refuses tied ones."""
    entries, seen = dict[str, Tensor](), set[int]()
    for name, value in state.items():
        entry = value.detach().cpu().contiguous()
        address = entry.untyped_storage().data_ptr()
        entries[name] = entry.clone() if address in seen else entry
        seen.add(address)
    return entries
