"""Keeps an update in forked processes, kills each at its next step, and looks at what it left.

    python -m flower.killed FOLDER

A step is a call that changes the disk or waits for it. Prints what each kill left, as JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from harness.erasure.killed import Tell, Worker, die
from secede import files
from secede import state as states
from secede.flower.client.kept_updates import KeptUpdates

HOME = "a" * 32
STEPS = ((safetensors.torch, "save_file"), (os, "fsync"), (os, "replace"), (os, "unlink"))


def state(value: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((3,), float(value))}


def keep(updates: KeptUpdates, value: int, serving: str | None = None) -> None:
    told = {"run": "1", "samples": 4.0, "home": HOME, "serving": serving}
    updates.put(state(value), number=value, hashed=False, **told)  # type: ignore[arg-type]


def kept_until(updates: KeptUpdates, last: int, serving: str, tell: Tell) -> None:
    """Keep the third update, and die before step number `last`."""
    steps = itertools.count()

    def counted(module: Any, name: str) -> Any:
        genuine = getattr(module, name)

        def call(*given: Any, **more: Any) -> Any:
            if next(steps) == last:
                die()
            tell(name)
            return genuine(*given, **more)

        return call

    for module, name in STEPS:
        setattr(module, name, counted(module, name))
    keep(updates, 3, serving)


def look(folder: Path, last: int) -> dict[str, Any]:
    """Return what a kill before step number `last` leaves, and what the next update makes of it."""
    updates, serving = KeptUpdates(folder), states.digest(state(2))
    for value in (1, 2):
        keep(updates, value)
    killed, steps = Worker(lambda tell: kept_until(updates, last, serving, tell)).ended()
    rounds = [kept.round for kept in updates.all()]
    found = {kept.round: kept for kept in updates.all()}
    whole = [updates.get(states.digest(state(number)), HOME) is not None for number in found]
    parts = len(list(folder.glob(files.PARTS)))
    keep(updates, 4, serving)
    names = {f"{kept.stem}.safetensors" for kept in updates.all()} | {"index.json", ".lock"}
    return {
        "killed": killed,
        "steps": steps,
        "rounds": rounds,
        "whole": all(whole),
        "parts": parts,
        "after": [kept.round for kept in updates.all()],
        "clean": {path.name for path in folder.iterdir()} == names,
    }


def main(folder: Path) -> None:
    found = list[dict[str, Any]]()
    while not found or found[-1]["killed"]:
        found.append(look(folder / str(len(found)), len(found)))
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
