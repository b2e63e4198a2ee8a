"""An example of everything that is written down about an erasure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from secede.erasure.canonical_json import digest
from secede.erasure.documents.canary_reading import (
    CanaryCommitment,
    CanaryPart,
    CanaryReading,
    CanaryRule,
    Look,
    SignedReading,
)
from secede.erasure.documents.data_commitment import commit_to_samples
from secede.erasure.documents.ledger_rows import (
    START,
    AcknowledgedBody,
    DeliveredBody,
    DestroyedBody,
    FederationBody,
    Head,
    KeysBody,
    ModelBody,
    PlanBody,
    ReceiptBody,
    RequestBody,
    SketchBody,
    TransitionBody,
)
from secede.erasure.documents.receipt import (
    DESTROYED_KINDS,
    STANDING_LIMITS,
    Computed,
    Costs,
    Destroyed,
    FederationPart,
    MethodPart,
    Models,
    Predicate,
    Reference,
    Remaining,
    RequestPart,
    Scope,
    Score,
    Statement,
    Verification,
)
from secede.erasure.documents.signed_reading import sign_reading
from secede.erasure.receipts.verify import countersign_receipt, sign_receipt
from secede.erasure.signing.keys import (
    PrivateKey,
    PublicKey,
    generate_key_pair,
    load_private_key,
    load_public_key,
)
from secede.erasure.storage.ledger import Ledger

NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
COMPLETED = NOW + timedelta(hours=1)
REQUEST, BEFORE, AFTER, WITHOUT = ("11" * 32, "ab" * 32, "cd" * 32, "ef" * 32)
PLAN = "33" * 32
LEAVER, OTHERS = "clinic-north", ("clinic-south", "clinic-west")
KEYS = {"server": "77" * 32, LEAVER: "88" * 32}
FEDERATION = FederationPart(digest="99" * 32, server=KEYS["server"], keys=digest(KEYS))


@cache
def key_pair(name: str) -> tuple[PrivateKey, PublicKey]:
    with TemporaryDirectory() as folder:
        private, public = generate_key_pair(Path(folder), name)
        return load_private_key(private), load_public_key(public)


def private(name: str) -> PrivateKey:
    return key_pair(name)[0]


def publics(*names: str) -> dict[str, PublicKey]:
    return {name: key_pair(name)[1] for name in names}


def fill(ledger: Ledger, *, receipts: bool = True, after: str = AFTER) -> Head:
    """Append one row at least of every kind but an extension, the receipt's last."""
    bodies = (
        FederationBody(federation=FEDERATION.digest),
        KeysBody(keys=KEYS),
        RequestBody(
            request=REQUEST,
            client=LEAVER,
            key=KEYS[LEAVER],
            trigger="consent-withdrawn",
            model=BEFORE,
            issued="2026-11-03T09:30:00Z",
            expires="2026-11-10T09:30:00Z",
            due="2026-12-03T10:00:00Z",
        ),
        AcknowledgedBody(request=REQUEST, acknowledged="2026-11-03T10:00:01Z"),
        PlanBody(
            request=REQUEST,
            plan=PLAN,
            rung="local-step",
            method="projected-ascent",
            settings={"radius": 4.2, "epochs": 5, "clip": None, "learning_rate": 0.01},
            clients=OTHERS,
            client_count=2,
            rounds=2,
            upload_bytes=10,
            download_bytes=12,
        ),
        TransitionBody(
            request=REQUEST,
            number=0,
            state="local-step",
            scalars={"rung": "local-step", "method": "projected-ascent", "distance": 0.25},
        ),
        TransitionBody(
            request=REQUEST, number=1, state="verified", model=after, scalars={"rounds": 2}
        ),
        ModelBody(model=after, parent=BEFORE, run="cardio", round=2, status="serving"),
        ModelBody(model=BEFORE, parent=None, run="cardio", round=0, status="retired"),
        DeliveredBody(model=after, clients=OTHERS),
        SketchBody(what="model", of=BEFORE, sketch="55" * 32, seed="66" * 32),
        DestroyedBody(
            request=REQUEST, what="leaver-state", digest=WITHOUT, backups_until=REMAINING[0].until
        ),
        DestroyedBody(
            request=REQUEST, what="model-before", digest=BEFORE, backups_until=REMAINING[0].until
        ),
    )
    for minutes, body in enumerate(bodies, start=-4):
        ledger.append(body, NOW + timedelta(minutes=minutes))
    head = ledger.head()
    return issue(ledger, "22" * 32) if receipts else head


def issue(ledger: Ledger, receipt: str, **changes: Any) -> Head:
    """Append the row that names a receipt."""
    told = {
        "request": REQUEST,
        "receipt": receipt,
        "before": BEFORE,
        "after": AFTER,
        "rung": "local-step",
        "method": "projected-ascent",
        "forgotten": "no-trace-found",
        "useful": "yes",
    }
    return ledger.append(ReceiptBody(**{**told, **changes}), COMPLETED).head


CANARIES_PLANTED = CanaryCommitment(
    commitment=commit_to_samples([bytes([n]) for n in range(16)], bytes(32)),
    kind="made-up",
    copies=3,
    share=0.02,
)
SCOPE = Scope(
    first_round=1,
    last_round=40,
    rounds=38,
    weight=0.2,
    commitment=commit_to_samples([b"one", b"two", b"three"], bytes(32)),
    canaries=CANARIES_PLANTED,
)
METHOD = MethodPart(
    rung="local-step",
    name="projected-ascent",
    parameters={"radius": 4.2, "epochs": 5, "learning_rate": 0.01, "clip": None},
    plan=PLAN,
    settings={"margins.overall": 0.05, "min_rounds": 1, "max_rounds": 5, "leaver_timeout": 60.0},
    training={"learning_rate": 0.1, "batch_size": 16, "seed": 0},
    guard={"distance": 0.25, "farthest": 1.25},
    rounds=2,
    retained=4,
)


def reading(
    model: str,
    ranks: tuple[int, ...],
    wins: int,
    key: PrivateKey | None = None,
    planted: CanaryCommitment = CANARIES_PLANTED,
) -> SignedReading:
    plain = CanaryReading(
        federation="heart-study",
        client=LEAVER,
        request=REQUEST,
        model=model,
        root=planted.commitment.root,
        ranks=(ranks,),
        wins=wins,
        count=sum(ranks),
    )
    return sign_reading(plain, key or private(LEAVER))


def canaries(after: str = AFTER, key: PrivateKey | None = None) -> CanaryPart:
    return CanaryPart(
        rule=CanaryRule(looks=7),
        before=reading(BEFORE, (12, 3, 1, 0), 15, key),
        looks=(
            Look(
                rung="local-step",
                method="projected-ascent",
                round=2,
                after=reading(after, (4, 4, 5, 3), 9, key),
            ),
        ),
    )


CANARIES = canaries()
VERIFICATION = Verification(
    scores=(
        Score(
            about="leaver",
            measure="right on held-out samples like the client's",
            value=0.412,
            low=0.382,
            high=0.443,
            count=1000,
            reference=Reference(model="retrained", value=0.404, low=0.374, high=0.435, count=1000),
        ),
        Score(
            about="leaver",
            measure="membership attack by loss, balanced accuracy",
            value=0.503,
            low=0.481,
            high=0.525,
            count=2000,
            reference=Reference(model="chance", value=0.5, low=0.5, high=0.5, count=2000),
        ),
        Score(
            about="usefulness",
            measure="clean accuracy of the other clients",
            value=0.981,
            low=0.978,
            high=0.984,
            count=10_000,
            reference=Reference(
                model="retrained", value=0.984, low=0.981, high=0.986, count=10_000
            ),
        ),
    ),
    forgotten="no-trace-found",
    canaries=CANARIES,
    useful="yes",
)


DESTROYED = (
    Destroyed(what=DESTROYED_KINDS["model-before"], at="2026-11-15T12:08:00Z", digest=BEFORE),
    Destroyed(what=DESTROYED_KINDS["leaver-state"], at="2026-11-15T12:07:00Z", digest=WITHOUT),
)
REMAINING = (Remaining(what="the model from before", until="2026-12-15T00:00:00Z"),)


def statement(
    *,
    ledger: Head = START,
    verification: Verification = VERIFICATION,
    method: MethodPart = METHOD,
    destroyed: tuple[Destroyed, ...] = DESTROYED,
    remaining: tuple[Remaining, ...] = REMAINING,
    further_limits: tuple[str, ...] = (),
    federation: FederationPart = FEDERATION,
    scope: Scope = SCOPE,
    completed: str = "2026-11-15T13:00:00Z",
    after: str = AFTER,
    leaver: PrivateKey | None = None,
) -> Statement:
    if after != AFTER or leaver:
        verification = verification.model_copy(update={"canaries": canaries(after, leaver)})
    predicate = Predicate(
        request=RequestPart(
            digest=REQUEST,
            key=KEYS[LEAVER],
            federation="heart-study",
            client=LEAVER,
            trigger="consent-withdrawn",
            issued="2026-11-03T09:30:00Z",
            received="2026-11-03T10:00:00Z",
            acknowledged="2026-11-03T10:00:01Z",
            due="2026-12-03T10:00:00Z",
            promoted="2026-11-15T12:00:00Z",
            completed=completed,
        ),
        federation=federation,
        scope=scope,
        method=method,
        software=(
            Computed(
                versions={"secede": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
                environment={"device": "cpu", "precision": "float32"},
                steps=("local-step", "verified"),
            ),
        ),
        models=Models(before=BEFORE, after=after),
        destroyed=destroyed,
        remaining=remaining,
        costs=Costs(
            rounds=2,
            upload_bytes=13_300_000,
            download_bytes=14_900_000,
            gradient_samples=96_000,
            seconds=41.5,
        ),
        verification=verification,
        ledger=ledger,
        limits=(*STANDING_LIMITS, *further_limits),
    )
    return Statement.about(predicate)


def signed(**changes: object) -> bytes:
    """Return a receipt signed by the server and countersigned by the leaver."""
    data = sign_receipt(statement(**changes), private("server"))  # type: ignore[arg-type]
    return countersign_receipt(data, private(LEAVER))
