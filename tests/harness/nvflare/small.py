"""The small federation of Flower's tests as a job of NVFlare's."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from nvflare.app_common.abstract.fl_model import FLModel
from torch import Tensor

from harness.flower.journals import told
from harness.flower.small import SEED, SIZES, STEP, TRAINING, load_model, samples
from secede import state as states
from secede.erasure.receipts.verify import verify_receipt
from secede.erasure.signing.keys import Keyring
from secede.erasure.storage.ledger import Ledger
from secede.federation.training import orders, train
from secede.nvflare import ClientErasure, flmodels
from secede.seeding import derive, generator, torch_seeded

SITES = tuple(f"site-{n}" for n in range(len(SIZES)))
MODEL = "harness.flower.small:load_model"
OPTIONS = {"methods": ["projected-ascent"], "settings": {"projected-ascent": STEP}}


def load_data(site: str) -> tuple[Tensor, Tensor]:
    found = samples(SITES.index(site))
    return found.x, found.y


def trained(client: int, received: FLModel) -> dict[str, Tensor]:
    """Train as the simulator does: the group names phase and round, or it is plain training."""
    ours = flmodels.message_of(received)
    assert ours is not None
    group = ours[1].metadata.group_id.split("/")
    number = int(received.current_round)
    phase, number = (group[1], int(group[2])) if len(group) == 3 else ("training", number)
    model = load_model()
    states.load_into(model, {name: torch.as_tensor(v) for name, v in received.params.items()})
    here = samples(client)
    draw = generator(SEED, "batches", phase, number, client)
    with torch_seeded(derive(SEED, "noise", phase, number, client)):
        train(model, here, TRAINING, orders=orders(len(here), TRAINING.epochs, draw))
    return dict(model.state_dict())


def erasing(folder: Path | str, *, consent: bool = True, **options: Any) -> ClientErasure:
    usual: dict[str, Any] = {"training": TRAINING, "seed": SEED, "consent": consent}
    return ClientErasure(load_model, load_data, folder=folder, **usual, **options)


def serve(erasure: ClientErasure, site: str) -> None:
    """Train whenever there is something to train from, as a client's script does."""
    client = SITES.index(site)
    while (model := erasure.receive()) is not None:
        state = trained(client, model)
        weight = {"NUM_STEPS_CURRENT_ROUND": len(samples(client))}
        erasure.send(FLModel(params=state, meta=weight))


def said(home: Path) -> dict[str, Any]:
    """Return what the one receipt says, which must verify."""
    (found,) = (home / "receipts").glob("*.json")
    verify_receipt(found.read_bytes(), Keyring.load(home / "keys"))
    with Ledger(home / "ledger.sqlite", read_only=True) as ledger:
        ledger.verify()
    return told(found)


def start(folder: Path, *command: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start Python in `folder`; its output goes to job.log."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "job.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children, which NVFlare gives sessions of their own."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.wait()
