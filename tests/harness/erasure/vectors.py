"""Example documents with their canonical bytes and digests, for verifiers in other languages.

`python -m harness.erasure.vectors` in `tests` renews them in the file of vectors. The rest of that
file is written by hand.
"""

from __future__ import annotations

import json
from typing import Any

from harness.erasure import papers
from harness.paths import ROOT
from secede.erasure.canonical_json import digest, to_canonical
from secede.erasure.documents.ledger_rows import START, ReceiptBody, link_row
from secede.erasure.documents.plan import GuardLimits, Margins, Plan, Step
from secede.erasure.documents.request import Request

FILE = ROOT / "tests" / "erasure" / "vectors" / "canonical_json.json"


def request() -> dict[str, Any]:
    example = Request(
        federation="heart-study",
        client=papers.LEAVER,
        trigger="consent-withdrawn",
        model=papers.BEFORE,
        nonce="44" * 32,
        issued="2026-11-03T09:30:00Z",
        expires="2026-11-10T09:30:00Z",
    )
    return example.model_dump(mode="json")


def plan() -> dict[str, Any]:
    step = Step(
        rung="local-step",
        method="projected-ascent",
        settings={"radius": 4.2},
        parameters={"radius": 4.2, "epochs": 5, "learning_rate": 0.01, "clip": None},
        needs=("the leaver online",),
        max_rounds=5,
        min_rounds=1,
        upload_bytes=13_300_000,
        download_bytes=14_900_000,
    )
    example = Plan(
        request=digest(request()),
        federation="heart-study",
        client=papers.LEAVER,
        model=papers.BEFORE,
        ladder=(step,),
        omitted=(),
        retained=papers.OTHERS,
        mean="mean",
        margins=Margins(),
        guard=GuardLimits(),
        quorum=0.5,
        client_timeout=3600.0,
        measure_at_leaver=True,
        leaver_timeout=3600.0,
        wait_until=None,
        backups_until="2026-12-15T00:00:00Z",
    )
    return parsed(example.content())


def receipt() -> dict[str, Any]:
    example = papers.statement().model_dump(mode="json", by_alias=True)
    canaries = example["predicate"]["verification"]["canaries"]
    for reading in (canaries["before"], *(look["after"] for look in canaries["looks"])):
        reading["envelope"] = None  # the example's key is drawn anew
    return example


def ledger_row() -> dict[str, Any]:
    """Return a row without its hash: that is the digest of all the rest."""
    body = ReceiptBody(
        request=papers.REQUEST,
        receipt=digest(receipt()),
        before=papers.BEFORE,
        after=papers.AFTER,
        rung="local-step",
        method="projected-ascent",
        forgotten="no-trace-found",
        useful="yes",
    )
    return link_row(START, body, papers.COMPLETED).model_dump(exclude={"hash"})


def parsed(data: bytes) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(data)
    return value


def documents() -> list[dict[str, Any]]:
    """Return each example with its canonical text and digest."""
    examples = {
        "request": request(),
        "plan": plan(),
        "ledger row without its hash": ledger_row(),
        "receipt payload": receipt(),
    }
    return [
        {
            "name": name,
            "value": value,
            "canonical": to_canonical(value).decode(),
            "sha256": digest(value),
        }
        for name, value in examples.items()
    ]


if __name__ == "__main__":
    vectors = json.loads(FILE.read_text())
    content = json.dumps({**vectors, "documents": documents()}, indent=1, ensure_ascii=True)
    FILE.write_text(content + "\n")
