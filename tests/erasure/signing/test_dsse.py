from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.erasure.questions import People, people
from secede.erasure.canonical_json import to_canonical
from secede.erasure.signing import dsse
from secede.errors import SecedeError, TrustError

TYPE = "application/vnd.secede.test+json"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> People:
    return people(tmp_path_factory.mktemp("keys"), "server", "leaver", "auditor")


def parts(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data)
    return found


def test_what_is_signed_is_verified_and_says_by_whom(three: People) -> None:
    data = dsse.sign(b"\x00hello", TYPE, three.private["server"])
    assert dsse.verify(data, TYPE, three.ring) == (b"\x00hello", ("server",))
    assert parts(data).keys() == {"payload", "payloadType", "signatures"}
    assert dsse.unverified_payload(data, TYPE) == b"\x00hello"


def test_a_signature_is_that_of_the_dsse_standard(three: People) -> None:
    # PAE of the DSSE specification, checked with the cryptography library alone.
    data = dsse.sign(b"hello world", "http://example.com/HelloWorld", three.private["server"])
    pae = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key: Any = load_pem_public_key((three.folder / "server.pub").read_bytes())
    key.verify(base64.b64decode(parts(data)["signatures"][0]["sig"]), pae)


def test_countersigning_in_any_order_gives_the_same_bytes(three: People) -> None:
    server, leaver, auditor = (three.private[n] for n in ("server", "leaver", "auditor"))
    one = dsse.countersign(dsse.countersign(dsse.sign(b"x", TYPE, server), leaver), auditor)
    other = dsse.sign(b"x", TYPE, auditor, leaver, server)
    assert one == other
    assert dsse.verify(one, TYPE, three.ring)[1] == ("auditor", "leaver", "server")
    with pytest.raises(TrustError, match="already"):
        dsse.countersign(one, leaver)


def test_nothing_is_signed_without_a_key(three: People) -> None:
    data = dsse.sign(b"x", TYPE, three.private["server"])
    assert dsse.verify(data, TYPE, three.ring)[1] == ("server",)
    with pytest.raises(TrustError, match="at least one key"):
        dsse.sign(b"x", TYPE)


def test_a_key_under_two_names_is_not_two_signers(three: People) -> None:
    data = dsse.sign(b"x", TYPE, three.private["server"])
    twice = {"server": three.ring["server"], "auditor": three.ring["server"]}
    with pytest.raises(TrustError, match="same public key"):
        dsse.verify(data, TYPE, twice)


def test_unknown_keys_other_types_and_borrowed_signatures_are_refused(three: People) -> None:
    data = dsse.sign(b"x", TYPE, three.private["server"], three.private["leaver"])
    with pytest.raises(TrustError, match="unknown key"):
        dsse.verify(data, TYPE, {"server": three.ring["server"]})
    with pytest.raises(TrustError, match="not an envelope of 'text/plain'"):
        dsse.verify(data, "text/plain", three.ring)
    with pytest.raises(TrustError, match="unknown key"):
        dsse.verify(data, TYPE, {})
    # another payload, another type, another's key id: the signature does not fit
    server = dsse.sign(b"x", TYPE, three.private["server"])
    for change in (
        {"payload": base64.b64encode(b"y").decode()},
        {"payloadType": "text/plain"},
        {
            "signatures": [
                {
                    "keyid": three.ring["leaver"].keyid,
                    "sig": parts(server)["signatures"][0]["sig"],
                }
            ]
        },
    ):
        forged = to_canonical({**parts(server), **change})
        with pytest.raises(TrustError, match="is not valid"):
            dsse.verify(forged, parts(forged)["payloadType"], three.ring)


def test_every_flipped_byte_fails(three: People) -> None:
    data = dsse.sign(
        to_canonical({"some": "document", "of": [1, 2]}),
        TYPE,
        three.private["server"],
        three.private["auditor"],
    )
    for mask in (0x01, 0x02, 0x20, 0x80, 0xFF):
        for place in range(len(data)):
            changed = bytearray(data)
            changed[place] ^= mask
            with pytest.raises(TrustError):
                dsse.verify(bytes(changed), TYPE, three.ring)


def test_every_removed_doubled_or_added_byte_fails(three: People) -> None:
    data = dsse.sign(b"payload", TYPE, three.private["server"])
    for place in range(len(data) + 1):
        changed = [data[:place], data[:place] + b" " + data[place:]]
        if place < len(data):
            changed += [data[:place] + data[place + 1 :], data[: place + 1] + data[place:]]
        for other in changed:
            if other != data:
                with pytest.raises(TrustError):
                    dsse.verify(other, TYPE, three.ring)


def test_another_way_to_write_the_same_is_refused(three: People) -> None:
    data = dsse.sign(b"payload!", TYPE, three.private["server"], three.private["leaver"])
    found = parts(data)
    reordered = {**found, "signatures": found["signatures"][::-1]}
    sloppy = {**found, "payload": found["payload"][:-2] + "F="}  # the same bytes to many decoders
    unpadded = {**found, "payload": found["payload"].rstrip("=")}
    extra = {**found, "note": "x"}
    noted = {**found, "signatures": [{**s, "note": "x"} for s in found["signatures"]]}
    doubled = {**found, "signatures": [found["signatures"][0]] * 2}
    none: dict[str, Any] = {**found, "signatures": []}
    many = {**found, "signatures": [found["signatures"][0]] * 100}
    for other in (reordered, sloppy, unpadded, extra, noted, doubled, none, many):
        with pytest.raises(TrustError):
            dsse.verify(to_canonical(other), TYPE, three.ring)
    for text in (json.dumps(found), json.dumps(found, indent=1), data.decode() + "\n"):
        with pytest.raises(TrustError):
            dsse.verify(text.encode(), TYPE, three.ring)


def test_no_second_signature_of_the_same_content_passes(three: People) -> None:
    # Ed25519 signatures (R, S) and (R, S + L) were once both taken: OpenSSL refuses the second.
    order = 2**252 + 27742317777372353535851937790883648493
    data = dsse.sign(b"x", TYPE, three.private["server"])
    found = parts(data)
    raw = base64.b64decode(found["signatures"][0]["sig"])
    other = int.from_bytes(raw[32:], "little") + order
    found["signatures"][0]["sig"] = base64.b64encode(
        raw[:32] + other.to_bytes(32, "little")
    ).decode()
    with pytest.raises(TrustError, match="is not valid"):
        dsse.verify(to_canonical(found), TYPE, three.ring)


def test_a_long_envelope_is_refused_unread(three: People) -> None:
    data = dsse.sign(b"x" * 1000, TYPE, three.private["server"])
    with pytest.raises(TrustError, match="the limit is 999"):
        dsse.verify(data, TYPE, three.ring, limit=999)
    with pytest.raises(TrustError, match="the limit is"):
        dsse.sign(b"x" * (1 << 20), TYPE, three.private["server"])


def test_errors_quote_no_signature(three: People) -> None:
    data = dsse.sign(b"x", TYPE, three.private["server"])
    signature = parts(data)["signatures"][0]["sig"]
    changed = data.replace(signature[:4].encode(), b"!!!!")
    with pytest.raises(TrustError) as caught:
        dsse.verify(changed, TYPE, three.ring)
    assert signature[10:30] not in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=6)), min_size=1))
def test_mutated_envelopes_are_refused_with_our_error(
    three: People, changes: list[tuple[int, bytes]]
) -> None:
    data = dsse.sign(b"payload", TYPE, three.private["server"])
    changed = bytearray(data)
    for place, piece in changes:
        place %= len(changed) + 1
        changed[place : place + len(piece)] = piece
    if bytes(changed) != data:
        with pytest.raises(TrustError):
            dsse.verify(bytes(changed), TYPE, three.ring)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=2000))
def test_any_bytes_are_refused_with_our_error(three: People, data: bytes) -> None:
    for attempt in (data, b'{"payload":' + data):
        with pytest.raises(SecedeError):
            dsse.verify(attempt, TYPE, three.ring)


@pytest.mark.slow
def test_ten_thousand_mutated_envelopes_are_refused(three: People, tmp_path: Path) -> None:
    data = dsse.sign(b"payload" * 20, TYPE, three.private["server"], three.private["leaver"])
    dice = random.Random(5)
    refused = 0
    while refused < 10_000:
        changed = bytearray(data)
        for _ in range(dice.randint(1, 8)):
            place, length = dice.randrange(len(changed)), dice.randint(0, 12)
            changed[place : place + dice.randint(0, 12)] = dice.randbytes(length)
        if bytes(changed) == data:
            continue
        with pytest.raises(TrustError):
            dsse.verify(bytes(changed), TYPE, three.ring)
        refused += 1
