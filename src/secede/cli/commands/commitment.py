"""`secede commitment`: what a client committed to, all of its samples or one of them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secede.cli.shared import (
    Auditors,
    Json,
    Keys,
    ServerName,
    group_with_default,
    naming,
    print_json,
)
from secede.errors import ConfigError, SecedeError, TrustError

if TYPE_CHECKING:
    from secede.erasure import Commitment, Home, Predicate, Signers

HomeArgument = Annotated[Path, typer.Argument(metavar="HOME", help="Home folder.")]
Client = Annotated[str, typer.Argument(help="Name of the client.")]

group = typer.Typer(
    suggest_commands=False,  # click does it too
    name="commitment",
    cls=group_with_default("verify"),
    help="Verify a client's data commitment, and prove single samples.",
    no_args_is_help=True,
)


@group.command()
def verify(
    folder: HomeArgument,
    client: Client,
    receipt: Annotated[
        Path | None, typer.Option(help="Compare with this receipt, or the client's in a folder.")
    ] = None,
    json: Json = False,
) -> None:
    """Show that a client's samples are those it committed to.

    The commitment is computed again from the samples and the salt, which are at the client: nobody
    else can. Nothing is sent or written.

    Example: secede commitment verify home site-0 --receipt home/receipts
    """
    from secede.erasure import Home
    from secede.simulation.backend import client_samples
    from secede.simulation.commitments import check_commitment

    home = Home(folder)
    commitment = home.federation.client(client).scope.commitment
    if receipt is not None:
        commitment = _read_commitment(receipt, client, home.signers(), home=home)
    if commitment is None:
        raise ConfigError(f"nothing was committed to for {client!r}")
    check_commitment(home, client, client_samples(home, client), commitment)
    if json:
        print_json({"valid": True, "client": client, **commitment.model_dump()})
        return
    print(f"{client}: samples and salt match the commitment")
    print(f"root {commitment.root}, {commitment.samples:,} samples")


@group.command()
def prove(
    folder: HomeArgument,
    client: Client,
    index: Annotated[int, typer.Argument(min=0, help="Number of the sample, from 0.")],
    out: Annotated[Path, typer.Option(help="File for the proof.")] = Path("proof.json"),
    sample: Annotated[Path, typer.Option(help="File for the sample, as committed to.")] = Path(
        "sample.bin"
    ),
    json: Json = False,
) -> None:
    """Write one sample, and the proof that it was committed to.

    It is for the client, who has samples and salt. Both files together show this sample
    and nothing of any other. The proof alone shows nothing.

    Example: secede commitment prove home site-0 17
    """
    from secede import files
    from secede.erasure import Home, SampleProof, check_sample
    from secede.simulation.backend import client_samples
    from secede.simulation.commitments import prove_sample

    home = Home(folder)
    commitment = home.federation.client(client).scope.commitment
    if commitment is None:
        raise ConfigError(f"nothing was committed to for {client!r}")
    for path in (out, sample):
        if path.exists():
            raise ConfigError(f"{path} exists and is not replaced: name another file")
    content, proof = prove_sample(home, client, client_samples(home, client), index)
    check_sample(commitment, content, proof)
    files.create(sample, content, 0o600)
    files.create(out, SampleProof(client=client, proof=proof).content(), 0o600)
    if json:
        print_json({"client": client, "index": index, "proof": str(out), "sample": str(sample)})
        return
    print(f"{sample}  sample {index} of {client}, in the clear")
    print(f"{out}  proof that it was committed to; shows nothing of the other samples")


@group.command("verify-proof")
def verify_proof(
    proof: Annotated[Path, typer.Argument(help="File of the proof.")],
    sample: Annotated[Path, typer.Argument(help="File of the sample.")],
    receipt: Annotated[
        Path, typer.Option(help="Receipt with the commitment, or a folder of receipts.")
    ],
    keys: Keys = Path("keys"),
    server: ServerName = "server",
    auditor: Auditors = None,
    json: Json = False,
) -> None:
    """Verify the proof of one sample, offline.

    The receipt is verified first. Any altered byte of sample, proof or receipt is found.

    Example: secede commitment verify-proof proof.json sample.bin --receipt receipt.json --keys keys
    """
    from secede.erasure import (
        MAX_PROOF_BYTES,
        MAX_SAMPLE_BYTES,
        SampleProof,
        Signers,
        check_sample,
        read_bounded,
    )

    with naming(proof):
        shown = SampleProof.read(read_bounded(proof, MAX_PROOF_BYTES))
    signers = Signers.load(keys, auditor or ())
    commitment = _read_commitment(receipt, shown.client, signers, server)
    with naming(proof):
        check_sample(commitment, read_bounded(sample, MAX_SAMPLE_BYTES), shown.proof)
    if json:
        row = {"valid": True, "client": shown.client, "index": shown.proof.index}
        print_json({**row, **commitment.model_dump()})
        return
    print(f"{sample}: sample {shown.proof.index} of those that {shown.client} committed to")
    print(f"root {commitment.root}, {commitment.samples:,} samples")


def read_receipt(
    path: Path, client: str | None, signers: Signers, server: str = "server"
) -> Predicate:
    """Return a valid receipt, about `client` if it is given; of a folder the last one about it."""
    from secede.erasure import MAX_RECEIPT_BYTES, read_bounded, verify_receipt

    if path.is_dir():
        if client is None:
            raise ConfigError(f"{path} is a folder: give a receipt's file, or --client")
        path = _last_receipt(path, client)
    with naming(path):
        verified = verify_receipt(
            read_bounded(path, MAX_RECEIPT_BYTES),
            signers.keys,
            auditors=signers.auditors,
            server=server,
        )
    receipt = verified.statement.predicate
    if client is not None and receipt.request.client != client:
        raise ConfigError(f"{path} is about {receipt.request.client!r}, not {client!r}")
    return receipt


def _read_commitment(
    path: Path, client: str, signers: Signers, server: str = "server", home: Home | None = None
) -> Commitment:
    """Return the commitment in a valid receipt about `client`, or in that of a folder.

    With `home`, it must be about its federation.
    """
    receipt = read_receipt(path, client, signers, server)
    if home is not None:
        said = (receipt.request.federation, receipt.federation.server)
        if said != (home.federation.name, home.server_id):
            raise TrustError(
                f"{path} is about federation {said[0]!r} with the server's key {said[1]}, this is "
                f"{home.federation.name!r} with {home.server_id}"
            )
    if receipt.scope.commitment is None:
        raise ConfigError(f"{path} holds no commitment to the samples of {client!r}")
    return receipt.scope.commitment


def _last_receipt(folder: Path, client: str) -> Path:
    """Return the receipt that says it is about `client`, the last if there are more."""
    from secede.erasure import MAX_RECEIPT_BYTES, read_bounded, unverified_statement

    candidates = list[tuple[str, Path]]()
    for path in sorted(folder.glob("*.json")):
        with suppress(SecedeError):  # another file
            receipt = unverified_statement(read_bounded(path, MAX_RECEIPT_BYTES))
            request = receipt.predicate.request
            if request.client == client:
                candidates.append((request.received, path))
    if not candidates:
        raise ConfigError(f"no receipt in {folder} is about {client!r}")
    return max(candidates)[1]
