from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.erasure import papers
from secede.erasure.canonical_json import digest, to_canonical
from secede.erasure.documents.ledger_rows import (
    BODIES,
    MAX_ROW_BYTES,
    START,
    DeliveredBody,
    ExtendedBody,
    Head,
    TransitionBody,
    check_body,
    checked_row,
    link_row,
)
from secede.erasure.storage import ledger as ledgers
from secede.erasure.storage.ledger import Ledger, chain_end, parse_lines
from secede.errors import RecordError, SecedeError, TrustError


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Head]:
    folder = tmp_path_factory.mktemp("ledger")
    with Ledger(folder / "ledger.db") as ledger:
        papers.fill(ledger)
        put_off = ExtendedBody(request=papers.REQUEST, extended_to="2027-01-03T10:00:00Z")
        ledger.append(put_off, papers.NOW)
        head = ledgers.export_ledger(ledger.rows(), folder / "ledger.jsonl")
    return (folder / "ledger.jsonl").read_bytes(), head


def verify(data: bytes, expected: Head | None = None) -> Head:
    return chain_end(parse_lines(io.BytesIO(data)), expected)


def test_a_row_s_hash_is_over_everything_else_in_it() -> None:
    body = DeliveredBody(model=papers.AFTER, clients=("a",))
    row = link_row(START, body, papers.NOW)
    told = {
        "number": 1,
        "at": "2026-11-15T12:00:00Z",
        "kind": "delivered",
        "body": {"model": papers.AFTER, "clients": ["a"]},
        "previous": "0" * 64,
    }
    assert row.hash == digest(told)
    assert row.line == to_canonical({**told, "hash": row.hash}) + b"\n"


def test_a_whole_chain_ends_at_its_head(written: tuple[bytes, Head]) -> None:
    data, head = written
    assert verify(data, head) == head
    assert {json.loads(line)["kind"] for line in data.splitlines()} == BODIES.keys()
    assert verify(b"") == START


def test_a_ledger_that_grew_still_holds_an_earlier_head(written: tuple[bytes, Head]) -> None:
    data, head = written
    early = json.loads(data.splitlines()[2])
    assert verify(data, Head(number=3, hash=early["hash"])) == head


def test_every_flipped_byte_is_found(written: tuple[bytes, Head]) -> None:
    data, head = written
    masks = (0x01, 0x20, 0x80, 0xFF, 0x10)  # in turn, so that each falls on every kind of place
    for place in range(len(data)):
        spoilt = bytearray(data)
        spoilt[place] ^= masks[place % len(masks)]
        with pytest.raises(TrustError):
            verify(bytes(spoilt), head)


Change = Callable[[list[bytes], int], list[bytes]]
CHANGES: dict[str, Change] = {
    "removed": lambda rows, at: rows[:at] + rows[at + 1 :],
    "doubled": lambda rows, at: rows[: at + 1] + rows[at:],
    "swapped": lambda rows, at: [*rows[:at], *rows[at : at + 2][::-1], *rows[at + 2 :]],
    "moved to the end": lambda rows, at: [*rows[:at], *rows[at + 1 :], rows[at]],
    "moved to the start": lambda rows, at: [rows[at], *rows[:at], *rows[at + 1 :]],
    "blank line before": lambda rows, at: [*rows[:at], b"\n", *rows[at:]],
    "cut from here on": lambda rows, at: rows[:at],
    "torn": lambda rows, at: [*rows[:at], rows[at][:-1]],
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_row_removed_doubled_swapped_moved_or_cut_is_found(
    written: tuple[bytes, Head], change: str
) -> None:
    data, head = written
    rows = data.splitlines(keepends=True)
    for at in range(len(rows)):
        changed = CHANGES[change](rows, at)
        if changed == rows:  # the last row swapped with nothing or moved to where it is
            continue
        with pytest.raises(TrustError):
            verify(b"".join(changed), head)


def test_all_but_a_cut_tail_is_found_without_a_known_head(written: tuple[bytes, Head]) -> None:
    rows = written[0].splitlines(keepends=True)
    for at in range(len(rows) - 1):
        for change in ("removed", "doubled", "swapped", "moved to the end"):
            with pytest.raises(TrustError):
                verify(b"".join(CHANGES[change](rows, at)))


def rewritten(data: bytes, at: int) -> bytes:
    """Return a chain that somebody altered at `at` and made whole again from there on."""
    head, out = START, b""
    for number, line in enumerate(data.splitlines()):
        row = json.loads(line)
        body = BODIES[row["kind"]].model_validate_json(to_canonical(row["body"]))
        if number == at:
            row["at"] = "2026-11-15T13:37:00Z"
        told = {"at": row["at"], "body": body.model_dump(mode="json"), "kind": row["kind"]}
        told |= {"number": head.number + 1, "previous": head.hash}
        made = checked_row({**told, "hash": digest(told)})
        head, out = made.head, out + made.line
    return out


def test_a_chain_rewritten_from_any_row_on_is_found_by_a_known_head(
    written: tuple[bytes, Head],
) -> None:
    data, head = written
    for at in range(head.number):
        forged = rewritten(data, at)
        assert verify(forged).number == head.number
        with pytest.raises(TrustError, match="rewritten, or it is another one"):
            verify(forged, head)


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize(
    "extra",
    [{"email": "a@b.c"}, {"sample": [1, 2]}, {"note": "x"}, {"update": {"w": 0.5}}],
)
def test_no_body_takes_anything_that_is_not_its_own(
    written: tuple[bytes, Head], kind: str, extra: dict[str, object]
) -> None:
    rows = [json.loads(line) for line in written[0].splitlines()]
    body = next(row["body"] for row in rows if row["kind"] == kind)
    check_body(kind, to_canonical(body))  # type: ignore[arg-type]
    with pytest.raises(TrustError, match="Extra inputs"):
        check_body(kind, to_canonical({**body, **extra}))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["two words", "a@b.c", "x" * 65, [1], {"a": 1}, 10**400, 1e400])
def test_scalars_are_scalars_and_names(value: object) -> None:
    body = {"request": papers.REQUEST, "number": 0, "state": "guarded", "scalars": {"a": value}}
    with pytest.raises(TrustError):
        check_body("transition", json.dumps(body).encode())


def test_scalars_keep_their_kind() -> None:
    scalars: dict[str, bool | int | float | str | None] = {
        "flag": True,
        "count": 3,
        "share": 1.0,
        "name": "stop-distance",
        "none": None,
    }
    body = TransitionBody(request=papers.REQUEST, number=0, state="guarded", scalars=scalars)
    row = link_row(START, body, papers.NOW)
    assert row.body["scalars"] == scalars
    assert [type(row.body["scalars"][key]) for key in ("flag", "count", "share")] == [
        bool,
        int,
        float,
    ]


def test_a_line_without_end_is_not_read_whole() -> None:
    source = io.BytesIO(b"x" * (3 * MAX_ROW_BYTES))
    with pytest.raises(TrustError, match="line 1: too long"):
        chain_end(parse_lines(source))
    assert source.tell() == MAX_ROW_BYTES + 1


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=2000)
@given(st.data())
def test_mutated_lines_raise_nothing_but_our_errors(
    written: tuple[bytes, Head], data: st.DataObject
) -> None:
    rows = [json.loads(line) for line in written[0].splitlines()]
    row = data.draw(st.sampled_from(rows))
    key = data.draw(st.sampled_from(sorted(row)))
    spoilt = {**row, key: data.draw(VALUES)}
    if data.draw(st.booleans()):
        spoilt[data.draw(st.text(max_size=5))] = data.draw(VALUES)
    rows[rows.index(row)] = spoilt
    content = b"".join(
        json.dumps(r, sort_keys=True, separators=(",", ":")).encode() + b"\n" for r in rows
    )
    if spoilt != row:
        with pytest.raises(SecedeError):
            verify(content, written[1])


@settings(max_examples=300, deadline=2000)
@given(st.binary(max_size=400))
def test_any_bytes_raise_nothing_but_our_errors(data: bytes) -> None:
    if data:
        with pytest.raises(SecedeError):
            verify(data)


@pytest.mark.parametrize("path", ["missing.jsonl", ".", "pipe"])
def test_a_ledger_that_is_no_file_is_named(tmp_path: Path, path: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordError, match="cannot read the ledger"):
        ledgers.verify_ledger(tmp_path / path)


@pytest.mark.slow
def test_ten_thousand_mutated_ledgers_are_refused(written: tuple[bytes, Head]) -> None:
    random, (data, head) = Random(5), written
    for _ in range(10_000):
        spoilt = bytearray(data)
        for _ in range(random.randint(1, 5)):
            at, size = random.randrange(len(spoilt)), random.randint(0, 4)
            spoilt[at : at + size] = random.randbytes(random.randint(0, 4))
        if bytes(spoilt) != data:
            with pytest.raises(SecedeError):
                verify(bytes(spoilt), head)
