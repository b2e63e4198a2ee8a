"""Show what was committed to: all of a client's samples, or one of them to somebody else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from secede import files
from secede.cli.trust import about
from secede.erasure.canonical_json import read_file
from secede.erasure.documents.data_commitment import (
    MAX_PROOF_BYTES,
    MAX_SAMPLE_BYTES,
    Commitment,
    SampleProof,
    check_sample,
)
from secede.erasure.documents.receipt import MAX_RECEIPT_BYTES
from secede.erasure.receipts.verify import unverified_statement, verify_receipt
from secede.erasure.signing.keys import SERVER, Signers
from secede.erasure.storage.home import Home
from secede.errors import ConfigError, SecedeError


def whole(folder: Path, client: str, receipt: Path | None, *, as_json: bool) -> None:
    """Compute a client's commitment again from its samples and its salt, and compare."""
    from secede.simulation.new_federation import check_commitment  # torch, only where samples are

    home = Home(folder)
    pinned = home.federation.client(client).scope.commitment
    if receipt is not None:
        pinned = _stated(receipt, client, home.signers())
    if pinned is None:
        raise ConfigError(f"nothing was committed to for {client!r}")
    check_commitment(home, client, pinned)
    if as_json:
        print(json.dumps({"holds": True, "client": client, **pinned.model_dump()}, indent=2))
        return
    print(f"{client}: the samples and the salt at its site are what was committed to")
    print(f"root {pinned.root}, {pinned.samples:,} samples")


def prove(folder: Path, client: str, index: int, out: Path, sample: Path, *, as_json: bool) -> None:
    """Write one sample of a client's, and what shows that it was committed to."""
    from secede.simulation.new_federation import prove_sample

    home = Home(folder)
    pinned = home.federation.client(client).scope.commitment
    if pinned is None:
        raise ConfigError(f"nothing was committed to for {client!r}")
    for path in (out, sample):
        if path.exists():
            raise ConfigError(f"{path} exists and is not replaced: name another file")
    content, proof = prove_sample(home, client, index)
    check_sample(pinned, content, proof)
    files.create(sample, content, 0o600)
    files.create(out, SampleProof(client=client, proof=proof).content(), 0o600)
    if as_json:
        told = {"client": client, "index": index, "proof": str(out), "sample": str(sample)}
        print(json.dumps(told, indent=2))
        return
    print(f"{sample}  sample {index} of {client}: whoever gets it has seen it")
    print(f"{out}  shows that it was committed to, and nothing of the other samples")


def check(
    proof: Path,
    sample: Path,
    receipt: Path,
    keys: Path,
    *,
    server: str,
    auditors: Sequence[Path],
    as_json: bool,
) -> None:
    """Check one sample against the commitment in a receipt, with public keys alone."""
    with about(proof):
        shown = SampleProof.read(read_file(proof, MAX_PROOF_BYTES))
    pinned = _stated(receipt, shown.client, Signers.load(keys, auditors), server)
    with about(proof):
        check_sample(pinned, read_file(sample, MAX_SAMPLE_BYTES), shown.proof)
    if as_json:
        told = {"holds": True, "client": shown.client, "index": shown.proof.index}
        print(json.dumps({**told, **pinned.model_dump()}, indent=2))
        return
    print(f"{sample} is sample {shown.proof.index} of those that {shown.client} committed to")
    print(f"root {pinned.root}, {pinned.samples:,} samples")


def _stated(path: Path, client: str, signers: Signers, server: str = SERVER) -> Commitment:
    """Return the commitment in a receipt that holds and is about `client`.

    Of a folder of receipts, in the one that is about it.
    """
    path = _about(path, client) if path.is_dir() else path
    with about(path):
        data = read_file(path, MAX_RECEIPT_BYTES)
        verified = verify_receipt(data, signers.keys, auditors=signers.auditors, server=server)
    told = verified.statement.predicate
    if told.request.client != client:
        raise ConfigError(f"{path} is about {told.request.client!r}, not {client!r}")
    if told.scope.commitment is None:
        raise ConfigError(f"{path} holds no commitment to the samples of {client!r}")
    return told.scope.commitment


def _about(folder: Path, client: str) -> Path:
    """Return the receipt in a folder that says it is about `client`, the last if there are more."""
    found = list[tuple[str, Path]]()
    for path in sorted(folder.glob("*.json")):
        with suppress(SecedeError):  # whatever it is, it is not the one
            told = unverified_statement(read_file(path, MAX_RECEIPT_BYTES)).predicate.request
            if told.client == client:
                found.append((told.received, path))
    if not found:
        raise ConfigError(f"no receipt in {folder} is about {client!r}")
    return max(found)[1]
