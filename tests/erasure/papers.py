"""An example of everything that is written down about an erasure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from secede.erasure import commitment, receipt
from secede.erasure.bodies import (
    DeliveredBody,
    DestroyedBody,
    ModelBody,
    PlanBody,
    ReceiptBody,
    RequestBody,
    TransitionBody,
)
from secede.erasure.chain import START, Head
from secede.erasure.keys import PrivateKey, PublicKey, generate, load_private, load_public
from secede.erasure.ledger import Ledger
from secede.erasure.predicate import (
    Costs,
    Destroyed,
    MethodPart,
    Models,
    Remaining,
    RequestPart,
    Scope,
    Software,
)
from secede.erasure.scores import Reference, Score, Verification
from secede.erasure.statement import Statement

NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
REQUEST, BEFORE, AFTER, WITHOUT = ("11" * 32, "ab" * 32, "cd" * 32, "ef" * 32)
LEAVER, OTHERS = "clinic-north", ("clinic-south", "clinic-west")


@cache
def key_pair(name: str) -> tuple[PrivateKey, PublicKey]:
    with TemporaryDirectory() as folder:
        private, public = generate(Path(folder), name)
        return load_private(private), load_public(public)


def private(name: str) -> PrivateKey:
    return key_pair(name)[0]


def publics(*names: str) -> dict[str, PublicKey]:
    return {name: key_pair(name)[1] for name in names}


def fill(ledger: Ledger, *, receipts: bool = True) -> Head:
    """Append one row of every kind, the receipt's last."""
    bodies = (
        RequestBody(
            request=REQUEST,
            client=LEAVER,
            trigger="consent-withdrawn",
            model=BEFORE,
            issued="2026-11-03T09:30:00Z",
            expires="2026-11-10T09:30:00Z",
            due="2026-12-03T10:00:00Z",
        ),
        PlanBody(
            request=REQUEST,
            rung="local-step",
            method="projected-ascent",
            settings={"radius": 1.5, "epochs": 5, "clip": None, "momentum": 0.0},
            clients=OTHERS,
            rounds=2,
            upload_bytes=10,
            download_bytes=12,
        ),
        TransitionBody(request=REQUEST, number=0, state="guarded", scalars={"distance": 0.25}),
        ModelBody(model=AFTER, parent=BEFORE, run="cardio", round=2, status="serving"),
        DeliveredBody(model=AFTER, clients=OTHERS),
        DestroyedBody(request=REQUEST, what="leaver-state", digest=WITHOUT),
        ReceiptBody(
            request=REQUEST,
            receipt="22" * 32,
            before=BEFORE,
            after=AFTER,
            rung="local-step",
            forgotten="yes",
            useful="yes",
        ),
    )
    for minutes, body in enumerate(bodies if receipts else bodies[:-1]):
        kind = type(body).__name__.removesuffix("Body").lower()
        ledger.append(kind, body, NOW + timedelta(minutes=minutes))  # type: ignore[arg-type]
    return ledger.head()


SCOPE = Scope(
    first_round=1,
    last_round=40,
    rounds=38,
    weight=0.2,
    commitment=commitment.commit([b"one", b"two", b"three"], bytes(32)),
)
METHOD = MethodPart(
    rung="local-step",
    name="projected-ascent",
    parameters={"radius": 4.2, "epochs": 5, "learning_rate": 0.01, "clip": None},
    rounds=2,
    retained=4,
)
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
    margin_points=3,
    forgotten="yes",
    useful="yes",
)


DESTROYED = (
    Destroyed(what="the client's unlearned state", at="2026-11-15T11:00:00Z"),
    Destroyed(what="the model from before", at="2026-11-15T11:30:00Z", digest=BEFORE),
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
) -> Statement:
    return receipt.build(
        request=RequestPart(
            digest=REQUEST,
            federation="heart-study",
            client=LEAVER,
            trigger="consent-withdrawn",
            issued="2026-11-03T09:30:00Z",
            received="2026-11-03T10:00:00Z",
            acknowledged="2026-11-03T10:00:01Z",
            due="2026-12-03T10:00:00Z",
            completed="2026-11-15T12:00:00Z",
        ),
        scope=SCOPE,
        method=method,
        software=Software(
            versions={"secede": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
            environment={"device": "cpu", "precision": "float32"},
        ),
        models=Models(before=BEFORE, after=AFTER),
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
        further_limits=further_limits,
    )


def signed(**changes: object) -> bytes:
    """Return a receipt signed by the server and countersigned by the leaver."""
    data = receipt.sign(statement(**changes), private("server"))  # type: ignore[arg-type]
    return receipt.countersign(data, private(LEAVER))
