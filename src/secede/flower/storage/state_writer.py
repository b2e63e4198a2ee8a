"""Files of states on a round's way: written straight from memory, and hashed meanwhile.

What `save` writes is whole or absent and named by its state's digest. SHA-256, CRC-32 and the disk
leave the interpreter alone, so that a round waits for the slower of two and not for their sum.
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
    """Write `state` into a file that is there, and do not wait for the disk."""
    try:
        safetensors.torch.save_file(_apart(state), path, {})
    except safetensors.SafetensorError as error:
        raise StorageError(f"cannot write in {path.parent}: {error}") from error


def write_with_checksum(state: State, path: Path) -> int:
    """Do as `write` does, and return the state's checksum."""
    with ThreadPoolExecutor(1) as pool:
        summing = pool.submit(checksum, state)
        write(state, path)
        return summing.result()


def checksum(state: State) -> int:
    """Return a CRC-32 of what a digest is made of: it finds damage, and no forgery."""
    found = 0
    for name in sorted(state):
        value = state[name].detach().cpu().contiguous()
        header = json.dumps([name, str(value.dtype), list(value.shape)])
        found = zlib.crc32(header.encode(), found)
        found = zlib.crc32(value.reshape(-1).view(torch.uint8).numpy().data, found)
    return found


def _apart(state: State) -> dict[str, Tensor]:
    """Return the entries; those that share memory are copied: safetensors refuses tied ones."""
    found, seen = dict[str, Tensor](), set[int]()
    for name, value in state.items():
        here = value.detach().cpu().contiguous()
        place = here.untyped_storage().data_ptr()
        found[name] = here.clone() if place in seen else here
        seen.add(place)
    return found
