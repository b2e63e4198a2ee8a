"""`secede canaries`: how much a test would see, what a model says, and what an auditor gets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secede.cli.canary_source import (
    Source,
    from_file,
    from_home,
    in_file,
    in_receipt,
    own_secret,
    sealed_for,
)
from secede.cli.shared import Auditors, Json, Keys, ServerName, print_json
from secede.errors import ConfigError, StateError

if TYPE_CHECKING:
    from secede.audit import Judgement, Reading
    from secede.canaries import CanaryCounts
    from secede.canaries.win_rates import WinRate

_POWER = 0.9

HomeFolder = Annotated[
    Path | None, typer.Option("--home", help="Home folder of a simulated federation.")
]
ClientName = Annotated[str | None, typer.Option("--client", help="Name of the client.")]
FederationName = Annotated[str | None, typer.Option("--federation", help="Name of the federation.")]
Secret = Annotated[
    Path | None, typer.Option("--secret", help="The client's secret file of its canaries.")
]

group = typer.Typer(
    suggest_commands=False,  # click does it too
    name="canaries",
    help="Plan canaries, read them in a model, seal them for an auditor.",
    no_args_is_help=True,
)


@group.command()
def power(
    canaries: Annotated[int, typer.Option(min=1, max=256, help="Number of canaries.")] = 10,
    copies: Annotated[int, typer.Option(min=1, max=100, help="Training copies of each.")] = 3,
    candidates: Annotated[
        int, typer.Option(min=2, max=100, help="Candidates of each, such as the classes.")
    ] = 10,
    win_rate: Annotated[
        float | None,
        typer.Option(
            help="How often the model likes the drawn candidate better than one other.",
            show_default="as measured with so many copies",
        ),
    ] = None,
    level: Annotated[float, typer.Option(help="Threshold of p.")] = 0.01,
    json: Json = False,
) -> None:
    """Show how much so many canaries can see, before any are planted.

    The power is exact for a given win rate: the chance that p is below the level. How copies lead
    to a win rate is no law: unless you give one, it is what was measured on one data set.

    Example: secede canaries power --canaries 10 --copies 3

    Another: secede canaries power --canaries 16 --candidates 2 --win-rate 0.9
    """
    from secede.audit import smallest_effect
    from secede.canaries.win_rates import SOURCE, WinRate, win_rates

    effect = smallest_effect(canaries, candidates, power=_POWER, level=level)
    measured = win_rate is None
    rates = win_rates(copies) if win_rate is None else (WinRate("given", copies, win_rate),)
    rows = [_power_row(each, canaries, candidates, level) for each in rates]
    if json:
        about = {"canaries": canaries, "copies": copies, "candidates": candidates, "level": level}
        source = SOURCE if measured else None
        print_json({**about, "smallest_win_rate": effect, "rows": rows, "source": source})
        return
    print(f"{canaries} canaries of {candidates} candidates, threshold p < {level:g}")
    print(f"seen with {100 * _POWER:g} % power: a win rate of {effect:.3f} or more; 0.5 is chance")
    for row in rows:
        enough = row["canaries_for_90"]
        with_copies = (
            f"{row['network']}, {row['copies']} {'copy' if row['copies'] == 1 else 'copies'}"
        )
        name = f"{with_copies}: " if measured else ""
        needed = f"{enough} canaries for 90 %" if enough else "no number of canaries has 90 %"
        print(f"{name}win rate {row['win_rate']:.3f}, power {row['power']:.4f}, {needed}")
    if measured:
        print(f"The win rates are {SOURCE}.")


@group.command()
def read(
    model: Annotated[
        Path | None, typer.Argument(help="The model's safetensors file; of a home, what serves.")
    ] = None,
    home: HomeFolder = None,
    client: ClientName = None,
    network: Annotated[
        str | None, typer.Option(help="The model's network: a built-in name or module:function.")
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(min=2, help="Outputs of the network.", show_default="the labels' number"),
    ] = None,
    secret: Secret = None,
    sealed: Annotated[Path | None, typer.Option(help="Canaries sealed for an auditor.")] = None,
    key: Annotated[Path | None, typer.Option(help="The auditor's private sealing key.")] = None,
    receipt: Annotated[
        Path | None, typer.Option(help="Receipt with the commitment; it is verified first.")
    ] = None,
    keys: Keys = Path("keys"),
    server: ServerName = "server",
    auditor: Auditors = None,
    commitment: Annotated[
        Path | None, typer.Option(help="File of the commitment, instead of a receipt.")
    ] = None,
    root: Annotated[
        str | None, typer.Option(help="Root of the commitment, instead of a receipt.")
    ] = None,
    federation: FederationName = None,
    before: Annotated[
        Path | None, typer.Option(help="The model from before the erasure, for the verdict.")
    ] = None,
    level: Annotated[
        float | None,
        typer.Option(help="Threshold of p.", show_default="the receipt's, or 0.01"),
    ] = None,
    looks: Annotated[
        int | None,
        typer.Option(min=1, help="Looks that were planned.", show_default="the receipt's, or 1"),
    ] = None,
    sign: Annotated[
        Path | None, typer.Option(help="The client's private key: sign the reading of MODEL.")
    ] = None,
    request: Annotated[
        str | None, typer.Option(help="Digest of the request that a signed reading is for.")
    ] = None,
    out: Annotated[Path, typer.Option(help="File for the signed reading.")] = Path("reading.json"),
    json: Json = False,
) -> None:
    """Read a client's canaries in a model, offline.

    For the client, who has the secret file, and for an auditor to whom it was opened or sealed. The
    canaries must be those that were committed to: give --receipt, --commitment or --root. In the
    home of a simulated federation --home and --client are enough. A classifier with the
    cross-entropy as its loss is expected. With --before, both models are read and judged.

    Example: secede canaries read model.safetensors --network small-cnn --secret site-0.canaries
    --receipt receipt.json --keys keys --before old.safetensors

    Another: secede canaries read --home home --client site-0
    """
    if home is not None:
        source = from_home(home, client)
    else:
        said = in_file(commitment, root, client, federation)
        if receipt is not None:
            said = in_receipt(receipt, client, keys, server, auditor)
        source = from_file(said, secret, sealed, key, network, classes)
    path = model or source.serving
    if path is None:
        raise ConfigError("give the model's safetensors file")
    old = None if before is None else _read(source, before)
    new = _read(source, path)
    if sign is not None:
        _sign(source, new, sign, request, out)
    judged = None if old is None else _judged(source, old, new, level, looks)
    _print_readings(source, old, new, judged, as_json=json)
    if sign is not None and not json:
        print(f"{out}: the reading, signed")


@group.command()
def export(
    client: Annotated[str, typer.Option("--client", help="Name of the client.")],
    home: HomeFolder = None,
    secret: Secret = None,
    federation: FederationName = None,
    auditor: Annotated[
        Path | None,
        typer.Option("--for", help="Public sealing key of an auditor, who alone can open it."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write.", show_default="CLIENT.canaries or CLIENT.sealed"),
    ] = None,
    json: Json = False,
) -> None:
    """Write a client's canaries to a file, sealed for an auditor or for the client itself.

    Of a simulated federation give --home; elsewhere the client's --secret file and --federation.
    What is sealed opens for this federation, client and commitment alone. Without --for the file is
    a secret (0600): who has it can tell canaries from samples. The commitment is written beside it.

    Example: secede canaries export --home home --client site-0 --for auditor.pub
    """
    from secede import files
    from secede.canaries import to_bytes

    source = own_secret(secret, client, federation) if home is None else from_home(home, client)
    data, ending, mode = to_bytes(source.canaries), "canaries", 0o600
    if auditor is not None:
        data, ending, mode = sealed_for(data, auditor, source.said), "sealed", 0o644
    path = out or Path(f"{client}.{ending}")
    try:
        files.create(path, data, mode)
    except FileExistsError:
        raise ConfigError(f"{path} exists and is not replaced: name another file") from None
    beside = _write_commitment(path, source)
    if json:
        row = {"file": str(path), "sealed": auditor is not None, "root": source.said.root}
        print_json({**row, "commitment": None if beside is None else str(beside)})
        return
    what = "opens with the auditor's key alone" if auditor else "keep it secret (0600)"
    print(f"{path}  {len(source.canaries)} canaries of {client}; {what}")
    if beside is not None:
        print(f"{beside}  the commitment, for everybody")
    print(f"root {source.said.root}")


@group.command()
def keygen(
    name: Annotated[str, typer.Argument(help="Name of the auditor.")],
    folder: Annotated[Path, typer.Option(help="Folder for NAME.key and NAME.pub.")] = Path(
        "sealing"
    ),
    json: Json = False,
) -> None:
    """Make an auditor's pair of keys for sealed canaries (X25519).

    NAME.key is secret, and only its owner can read it (0600). NAME.pub is for the clients. They are
    no keys for signatures: keep them out of the folder of signers' keys.

    Example: secede canaries keygen auditor
    """
    from secede.canaries import generate_seal_keys
    from secede.erasure import check_name

    check_name(name, "auditor")
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    generate_seal_keys(private, public)
    if json:
        print_json({"private": str(private), "public": str(public)})
        return
    print(f"{private}  keep it secret; only you can read it (0600)")
    print(f"{public}  give it to the clients")


@dataclass(frozen=True)
class _Shown:
    """A model, what its canaries say, and what the receipt says of it."""

    path: Path
    digest: str
    counts: CanaryCounts
    name: str | None  # before or after, of the receipt's models
    stated: bool | None  # whether the receipt states the same counts; None: it states none

    @property
    def reading(self) -> Reading:
        """The counts, as the test takes them."""
        return self.counts.reading()

    def row(self) -> dict[str, Any]:
        """Return the reading as JSON has it."""
        reading = self.reading
        return {
            "model": self.digest,
            "of_receipt": self.name,
            "as_stated": self.stated,
            "ranks": {str(size): list(counts) for size, counts in self.counts.ranks},
            "mean_rank": reading.ranks.mean,
            "chance": reading.ranks.chance_mean,
            "p": reading.p_value,
            "wins": reading.wins,
            "win_p": reading.win_p_value,
        }


def _read(source: Source, path: Path) -> _Shown:
    """Read the canaries in a model's file."""
    from secede import state as states
    from secede.canaries import read as read_canaries

    state, _ = states.load(path)
    try:
        states.check_finite(state)
        model = source.model(state)
    except StateError as error:
        raise StateError(f"{path}: {error}; is it another network, or other --classes?") from error
    digest, counts = states.digest(state), read_canaries(model, source.canaries)
    return _Shown(path, digest, counts, *_of_receipt(source, digest, counts))


def _of_receipt(source: Source, model: str, counts: CanaryCounts) -> tuple[str | None, bool | None]:
    """Return which of the receipt's models this is, and whether it states these counts of it."""
    receipt = source.said.receipt
    if receipt is None:
        return None, None
    names = {receipt.models.before: "before", receipt.models.after: "after"}
    stated = [
        signed.reading.counts()
        for signed in receipt.verification.canaries.signed_readings
        if signed.reading.model == model
    ]
    return names.get(model), stated[-1] == counts.reading() if stated else None


def _judged(
    source: Source, before: _Shown, after: _Shown, level: float | None, looks: int | None
) -> Judgement:
    """Return the verdict, by the rule of the receipt unless another one is given."""
    from secede.audit import CanaryRule, judge

    receipt = source.said.receipt
    rule = CanaryRule() if receipt is None else receipt.verification.canaries.rule
    return judge(
        before.reading,
        after.reading,
        CanaryRule(
            level=rule.level if level is None else level,
            bound_level=rule.bound_level,
            looks=rule.looks if looks is None else looks,
        ),
    )


def _print_readings(
    source: Source, before: _Shown | None, after: _Shown, judged: Judgement | None, *, as_json: bool
) -> None:
    said = source.said
    if as_json:
        about = {"client": said.client, "federation": said.federation, "root": said.root}
        rows = {"before": before and before.row(), "model": after.row()}
        print_json(
            {
                **about,
                "canaries": len(source.canaries),
                **rows,
                "judgement": None if judged is None else asdict(judged),
            }
        )
        return
    of = f" of {said.client}" if said.client else ""
    print(f"{len(source.canaries)} canaries{of}, those committed to: root {said.root}")
    for shown, name in ((before, "before"), (after, "model")):
        if shown is not None:
            _print_reading(name, shown)
    if judged is None:
        print("No verdict without the model from before: it shows what the test can see (--before)")
        return
    print(f"{judged.verdict}: {judged.reason.removeprefix('Undetermined: ')}")


def _print_reading(name: str, shown: _Shown) -> None:
    from secede.audit import shown_p

    reading = shown.reading
    known = "" if shown.name is None else f", the receipt's model {shown.name} the erasure"
    print(f"{name}: {shown.path}, {shown.digest[:12]}{known}")
    for size, counts in shown.counts.ranks:
        print(f"  ranks 1 to {size}: {' '.join(map(str, counts))}")
    print(f"  mean rank {reading.ranks.mean:.2f}, chance {reading.ranks.chance_mean:.2f}")
    print(f"  p {shown_p(reading.p_value)}")
    wins = f"{reading.wins} of {reading.count} beat their opponent"
    print(f"  {wins}, p {shown_p(reading.win_p_value)}")
    if shown.stated is not None:
        print(
            f"  the receipt states {'the same' if shown.stated else 'other'} counts of this model"
        )


def _sign(source: Source, shown: _Shown, key: Path, request: str | None, out: Path) -> None:
    """Write the signed reading of a model, for a request."""
    from secede import files
    from secede.erasure import load_private_key, new_reading, sign_reading, to_canonical

    said = source.said
    if request is None or said.client is None or said.federation is None:
        raise ConfigError("--sign needs --request, and --client and --federation if unknown")
    reading = new_reading(
        shown.counts,
        said.root,
        federation=said.federation,
        client=said.client,
        request=request,
        model=shown.digest,
    )
    signed = sign_reading(reading, load_private_key(key))
    try:
        files.create(out, to_canonical(signed.model_dump(mode="json")), 0o644)
    except FileExistsError:
        raise ConfigError(f"{out} exists and is not replaced: name another file") from None


def _write_commitment(path: Path, source: Source) -> Path | None:
    """Write the commitment beside a file of canaries, if it is known as it was registered."""
    from secede.erasure import save_document

    if source.document is None:
        return None
    beside = path.with_suffix(".commitment.json")
    save_document(beside, source.document)
    return beside


def _power_row(rate: WinRate, canaries: int, candidates: int, level: float) -> dict[str, Any]:
    from secede.audit import rank_test_power, smallest_count

    try:
        enough = smallest_count(candidates, rate.rate, power=_POWER, level=level)
    except ConfigError:
        enough = None
    return {
        "network": rate.network,
        "copies": rate.copies,
        "win_rate": rate.rate,
        "power": rank_test_power(canaries, candidates, rate.rate, level=level),
        "canaries_for_90": enough,
    }
