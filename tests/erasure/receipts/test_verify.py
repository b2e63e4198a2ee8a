"""Tests `erasure/receipts/build.py` too."""

from __future__ import annotations

import hashlib
import json
import time
import tracemalloc
from base64 import b64decode, b64encode
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.erasure import papers
from secede.erasure.canonical_json import to_canonical
from secede.erasure.documents.receipt import RECEIPT_TYPE
from secede.erasure.receipts.verify import (
    Verified,
    countersign_receipt,
    sign_receipt,
    verify_receipt,
)
from secede.erasure.signing import dsse
from secede.errors import SecedeError, TrustError

SERVER, LEAVER = "server", papers.LEAVER
ENVELOPE = papers.signed()


@pytest.fixture(scope="module")
def data() -> bytes:
    return papers.signed()


def verify(data: bytes, *names: str, **checks: Any) -> Verified:
    return verify_receipt(data, papers.publics(*(names or (SERVER, LEAVER))), **checks)


def test_a_receipt_holds_with_public_keys_alone(data: bytes) -> None:
    found = verify(data)
    assert found.statement == papers.statement()
    assert found.countersigned_by == (LEAVER,)
    assert not found.model_checked
    assert found.ledger is None
    assert found.digest == hashlib.sha256(papers.statement().payload()).hexdigest()


def test_it_is_an_in_toto_statement_in_a_dsse_envelope(data: bytes) -> None:
    told = json.loads(data)
    assert told["payloadType"] == "application/vnd.in-toto+json"
    payload = json.loads(b64decode(told["payload"]))
    assert payload["_type"] == "https://in-toto.io/Statement/v1"
    assert payload["predicateType"] == "https://secede.dev/erasure/v2"
    assert payload["subject"] == [{"name": "erased-model", "digest": {"sha256": papers.AFTER}}]


@pytest.mark.parametrize("offset", range(3))
def test_every_flipped_byte_fails(data: bytes, offset: int) -> None:
    masks, keys = (0x01, 0x20, 0xFF), papers.publics(SERVER, LEAVER)
    for place in range(len(data)):
        spoilt = bytearray(data)
        spoilt[place] ^= masks[(place + offset) % 3]
        with pytest.raises(TrustError):
            verify_receipt(bytes(spoilt), keys)


def test_every_cut_and_every_added_byte_fails(data: bytes) -> None:
    for end in range(0, len(data), 37):
        with pytest.raises(TrustError):
            verify(data[:end])
    for more in (b"\n", b" ", b"{}", data):
        with pytest.raises(TrustError):
            verify(data + more)
        with pytest.raises(TrustError):
            verify(more + data)


def test_the_server_must_have_signed() -> None:
    alone = sign_receipt(papers.statement(), papers.private(LEAVER))
    with pytest.raises(TrustError, match="signed by clinic-north, not by the server 'server'"):
        verify(alone)
    with pytest.raises(TrustError, match="no public key of the server 'server'"):
        verify(alone, LEAVER)


def test_a_forger_s_key_does_not_pass_as_the_server_s() -> None:
    forged = sign_receipt(papers.statement(), papers.private("forger"))
    with pytest.raises(TrustError, match="unknown key"):
        verify(forged)
    # Its own name for the server's key does not help where the verifier has the real one.
    told = json.loads(forged)
    told["signatures"][0]["keyid"] = papers.publics(SERVER)[SERVER].keyid
    with pytest.raises(TrustError, match="'server' is not valid"):
        verify(to_canonical(told))


def test_countersignatures_are_demanded_by_name(data: bytes) -> None:
    single = sign_receipt(papers.statement(), papers.private(SERVER))
    assert verify(single, SERVER).countersigned_by == ()
    with pytest.raises(TrustError, match="not countersigned by clinic-north, but by nobody"):
        verify(single, countersigned_by=[LEAVER])
    both = countersign_receipt(data, papers.private("auditor"))
    auditors = papers.publics("auditor")
    found = verify(both, auditors=auditors, countersigned_by=["auditor", LEAVER])
    assert found.countersigned_by == ("auditor", LEAVER)
    with pytest.raises(TrustError, match="not countersigned by auditor, but by clinic-north"):
        verify(data, auditors=auditors, countersigned_by=["auditor"])


def test_only_the_leaver_and_auditors_may_have_signed_too(data: bytes) -> None:
    other = papers.OTHERS[0]
    both = countersign_receipt(data, papers.private(other))
    with pytest.raises(TrustError, match="'clinic-south' signed the receipt too, but is neither"):
        verify(both, SERVER, LEAVER, other)
    with pytest.raises(TrustError, match="unknown key"):
        verify(both, SERVER, LEAVER)
    with pytest.raises(TrustError, match="among the auditors and among the clients"):
        verify(both, SERVER, LEAVER, other, auditors=papers.publics(other))


def test_nobody_countersigns_what_is_no_receipt(data: bytes) -> None:
    request = dsse.sign(b"{}", RECEIPT_TYPE, papers.private(SERVER))
    with pytest.raises(TrustError, match="not a receipt of an erasure"):
        countersign_receipt(request, papers.private(LEAVER))
    with pytest.raises(TrustError, match="already"):
        countersign_receipt(data, papers.private(LEAVER))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda told: told.update(extra=1), "Extra inputs"),
        (lambda told: told.update(predicateType="https://secede.dev/erasure/v9"), "predicateType"),
        (lambda told: told["predicate"]["scope"].update(weight=2), "less than or equal to 1"),
        (lambda told: told["predicate"]["limits"].pop(), "must all be stated"),
    ],
)
def test_what_the_server_signed_must_be_a_receipt_too(change: Any, said: str) -> None:
    told = json.loads(papers.statement().payload())
    change(told)
    with pytest.raises(TrustError, match=said):
        verify(dsse.sign(to_canonical(told), RECEIPT_TYPE, papers.private(SERVER)))


def test_a_payload_that_is_not_canonical_is_refused() -> None:
    payload = papers.statement().payload().replace(b'"weight":0.2', b'"weight":0.20')
    with pytest.raises(TrustError, match="canonical"):
        verify(dsse.sign(payload, RECEIPT_TYPE, papers.private(SERVER)))


def test_another_type_of_payload_is_refused() -> None:
    payload = papers.statement().payload()
    with pytest.raises(TrustError, match="an envelope of 'text/plain', not a receipt"):
        verify(dsse.sign(payload, "text/plain", papers.private(SERVER)))


def test_the_model_must_be_the_erased_one(data: bytes) -> None:
    assert verify(data, model_digest=papers.AFTER).model_checked
    with pytest.raises(TrustError, match="from before the erasure"):
        verify(data, model_digest=papers.BEFORE)
    with pytest.raises(TrustError, match="is about model cdcdcdcdcdcd…, this one is 7777"):
        verify(data, model_digest="7" * 64)


def test_a_receipt_is_made_of_parts_that_fit() -> None:
    with pytest.raises(ValidationError, match="limits"):
        papers.statement(further_limits=("x" * 301,))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3)
    ),
    max_leaves=6,
)


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every place in a document."""
    keys: Any = ()
    if isinstance(value, dict):
        keys = value.keys()
    elif isinstance(value, list):
        keys = range(len(value))
    return [path, *(spot for key in keys for spot in spots(value[key], (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


STATEMENT = json.loads(papers.statement().payload())


@settings(max_examples=300, deadline=2000)
@given(st.sampled_from(spots(STATEMENT)), VALUES)
def test_mutated_statements_that_are_signed_raise_nothing_but_our_errors(
    spot: tuple[Any, ...], value: Any
) -> None:
    payload = json.dumps(changed(STATEMENT, spot, value), sort_keys=True).encode()
    signed = dsse.sign(payload, RECEIPT_TYPE, papers.private(SERVER))
    with pytest.raises(SecedeError) as caught:  # spaces: it is never canonical
        verify(signed)
    assert "\n" not in str(caught.value)


@settings(max_examples=300, deadline=2000)
@given(st.data())
def test_mutated_envelopes_raise_nothing_but_our_errors(data: st.DataObject) -> None:
    told = json.loads(ENVELOPE)
    spot = data.draw(st.sampled_from(spots(told)))
    mutated = canonical_or_not(changed(told, spot, data.draw(VALUES)))
    if mutated != ENVELOPE:
        with pytest.raises(SecedeError):
            verify(mutated)


@settings(max_examples=300, deadline=2000)
@given(st.binary(max_size=300), st.integers(0, 2000))
def test_spliced_bytes_raise_nothing_but_our_errors(piece: bytes, place: int) -> None:
    spliced = ENVELOPE[:place] + piece + ENVELOPE[place + len(piece) :]
    if spliced != ENVELOPE:
        with pytest.raises(SecedeError):
            verify(spliced)


def canonical_or_not(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        errors="surrogatepass"
    )


@pytest.mark.parametrize(
    "bomb",
    [
        b"[" * 5_000_000,
        b'{"a":' * 1_000_000,
        b'{"payload":"' + b"A" * 5_000_000 + b'"}',
        b'"' * 5_000_000,
        b"9" * 200_000,
        b'{"payload":' + b"9" * 200_000 + b"}",
    ],
)
def test_bombs_are_refused_soon_and_in_little_memory(bomb: bytes) -> None:
    begun = time.monotonic()
    tracemalloc.start()
    with pytest.raises(TrustError):
        verify(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
    assert time.monotonic() - begun < 5


def test_a_signed_bomb_is_refused_too() -> None:
    for payload in (b"[" * 100_000, b'{"predicate":{"limits":[' + b'"x",' * 40_000 + b'"x"]}}'):
        signed = dsse.sign(payload, RECEIPT_TYPE, papers.private(SERVER))
        with pytest.raises(TrustError):
            verify(signed)
    told = json.loads(ENVELOPE)
    told["payload"] = b64encode(b" " * 10).decode()
    with pytest.raises(TrustError, match="is not valid"):
        verify(to_canonical(told))


@pytest.mark.slow
def test_ten_thousand_mutated_receipts_are_refused() -> None:
    random = Random(5)
    for _ in range(10_000):
        spoilt = bytearray(ENVELOPE)
        for _ in range(random.randint(1, 5)):
            at, size = random.randrange(len(spoilt)), random.randint(0, 4)
            spoilt[at : at + size] = random.randbytes(random.randint(0, 4))
        if bytes(spoilt) != ENVELOPE:
            with pytest.raises(SecedeError):
                verify(bytes(spoilt))
