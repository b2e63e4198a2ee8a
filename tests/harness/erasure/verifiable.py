"""A receipt in a folder with all that it is verified with."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from harness.erasure import papers
from secede import state as states
from secede.erasure.receipts.verify import countersign_receipt, sign_receipt
from secede.erasure.signing.keys import generate_key_pair, load_private_key
from secede.erasure.storage.ledger import Ledger, export_ledger


def verifiable(folder: Path) -> Path:
    """Write receipt, keys, model and ledger into a folder, and return it."""
    state = {"w": torch.tensor([1.0, 2.0])}
    states.save(state, folder / "model.safetensors")
    after = states.digest(state)
    with Ledger(folder / "ledger.db") as ledger:
        head = papers.fill(ledger, receipts=False, after=after)
    for name in ("server", papers.LEAVER):
        private, _ = generate_key_pair(folder / "keys", name)
        private.rename(folder / private.name)
    leaver = load_private_key(folder / f"{papers.LEAVER}.key")
    statement = papers.statement(ledger=head, after=after, leaver=leaver)
    signed = sign_receipt(statement, load_private_key(folder / "server.key"))
    with Ledger(folder / "ledger.db") as ledger:
        digest = hashlib.sha256(statement.payload()).hexdigest()
        papers.issue(ledger, digest, after=after)
        export_ledger(ledger.rows(), folder / "ledger.jsonl")
    (folder / "receipt.json").write_bytes(countersign_receipt(signed, leaver))
    return folder
