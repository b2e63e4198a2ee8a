from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.erasure.questions import FEDERATION, MODEL, NOW, People, later, people
from secede.erasure.canonical_json import to_canonical
from secede.erasure.documents.request import (
    CLOCK_SKEW,
    LIFETIME,
    MAX_LIFETIME,
    REQUEST_TYPE,
    Request,
    check_times,
    new_request,
    sign_request,
    verify_request,
)
from secede.erasure.signing import dsse
from secede.errors import ConfigError, RequestError, SecedeError, TrustError


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> People:
    return people(tmp_path_factory.mktemp("keys"), "north", "south")


def made(**changed: Any) -> Request:
    fields = {
        "federation": FEDERATION,
        "client": "north",
        "trigger": "objection",
        "model": MODEL,
        "now": NOW,
        **changed,
    }
    return new_request(**fields)


def read(two: People, data: bytes, now: datetime = NOW) -> Request:
    request = verify_request(data, two.ring, federation=FEDERATION)
    check_times(request, now)
    return request


def signed(two: People, document: object, by: str = "north") -> bytes:
    return dsse.sign(to_canonical(document), REQUEST_TYPE, two.private[by])


def test_a_request_comes_back_as_it_was_signed(two: People) -> None:
    request = made()
    data = sign_request(request, two.private["north"])
    assert read(two, data) == request
    assert request.issued == "2026-11-15T12:00:00Z"
    assert request.expires == "2026-11-22T12:00:00Z"
    assert len(data) < 1500


def test_two_requests_of_one_second_differ_and_hide_their_nonces() -> None:
    one, other = made(), made()
    assert one.nonce != other.nonce
    assert one.digest() != other.digest()
    assert one.nonce not in repr(one)
    assert one.nonce not in str(one)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"trigger": "objections"}, "did you mean 'objection'.*consent-withdrawn"),
        ({"client": "a b"}, "client"),
        ({"federation": ""}, "federation"),
        ({"model": "xyz"}, "model"),
        ({"lifetime": timedelta(0)}, "days after `issued`"),
        ({"lifetime": MAX_LIFETIME + timedelta(seconds=1)}, "at most 31 days"),
    ],
)
def test_a_request_that_cannot_be_is_not_made(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        made(**changed)


def test_a_clock_without_a_zone_is_a_mistake_in_the_program() -> None:
    with pytest.raises(ValueError, match="zone"):
        made(now=datetime(2026, 1, 1))


def test_fractions_of_seconds_and_other_zones_are_written_the_same_way() -> None:
    from zoneinfo import ZoneInfo

    berlin = datetime(2026, 11, 15, 13, 0, 0, 999_999, tzinfo=ZoneInfo("Europe/Berlin"))
    assert made(now=berlin).issued == "2026-11-15T12:00:00Z"


def test_only_the_client_that_is_named_can_ask(two: People) -> None:
    stolen = two.signed(made(client="north"), by="south")
    with pytest.raises(TrustError, match="signed with south's key, expected north's"):
        read(two, stolen)
    both = dsse.countersign(two.ask("north"), two.private["south"])
    with pytest.raises(TrustError, match="unknown key"):
        read(two, both)
    with pytest.raises(RequestError, match="client 'nort' is unknown: did you mean 'north'"):
        read(two, two.signed(made(client="nort"), by="north"))


def test_a_request_to_another_federation_does_not_count_here(two: People) -> None:
    with pytest.raises(RequestError, match="for federation 'banks', this is 'clinics'"):
        read(two, two.signed(made(federation="banks"), by="north"))


def test_the_edges_of_time(two: People) -> None:
    data = two.ask("north")
    second = timedelta(seconds=1)
    assert read(two, data, NOW - CLOCK_SKEW)
    assert read(two, data, NOW + LIFETIME - second)
    with pytest.raises(RequestError, match=r"issued at .* clock"):
        read(two, data, NOW - CLOCK_SKEW - second)
    for late in (NOW + LIFETIME, NOW + LIFETIME + second, later(days=4000)):
        with pytest.raises(RequestError, match="expired at 2026-11-22T12:00:00Z"):
            read(two, data, late)


def test_documents_that_are_no_requests_are_refused_though_signed(two: People) -> None:
    good = made().model_dump()
    for changed in (
        {"version": 2},
        {"version": "1"},
        {"version": True},
        {"trigger": "because"},
        {"nonce": "00"},
        {"nonce": "AB" * 32},
        {"model": None},
        {"client": "x" * 65},
        {"client": "north\n"},
        {"issued": "2026-11-15 12:00:00Z"},
        {"issued": "2026-11-15T12:00:00+00:00"},
        {"issued": "2026-02-30T12:00:00Z"},
        {"issued": "0000-01-01T00:00:00Z"},
        {"issued": "２０26-11-15T12:00:00Z"},
        {"expires": good["issued"]},
        {"expires": "2027-11-15T12:00:00Z"},
        {"contact": "somebody@example.org"},
        {"\x1b[31mred": "1"},
    ):
        with pytest.raises(TrustError) as caught:
            read(two, signed(two, {**good, **changed}))
        assert str(caught.value).isprintable()
        assert good["nonce"] not in str(caught.value)
    for missing in good:
        with pytest.raises(TrustError):
            read(two, signed(two, {k: v for k, v in good.items() if k != missing}))


def test_a_payload_written_another_way_is_refused_though_signed(two: People) -> None:
    request = made()
    spaced = json.dumps(request.model_dump()).encode()
    decimal = request.payload().replace(b'"version":1', b'"version":1.0')
    for text in (spaced, decimal):
        with pytest.raises(TrustError, match=r"canonical|version"):
            read(two, dsse.sign(text, REQUEST_TYPE, two.private["north"]))


def test_other_signed_documents_and_long_ones_are_no_requests(two: People) -> None:
    with pytest.raises(
        TrustError, match="this is an envelope of 'application/json', not a request"
    ):
        read(two, dsse.sign(made().payload(), "application/json", two.private["north"]))
    with pytest.raises(TrustError, match="the limit is 16,384"):
        read(two, signed(two, {"a": "x" * 20_000}))


def test_every_flipped_byte_of_a_request_is_refused(two: People) -> None:
    data = two.ask("north")
    for mask in (0x01, 0x20, 0x80):
        for place in range(len(data)):
            changed = bytearray(data)
            changed[place] ^= mask
            with pytest.raises(SecedeError):
                read(two, bytes(changed))


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=80) | st.floats()


@settings(max_examples=300, deadline=None)
@given(
    changed=st.dictionaries(
        st.sampled_from(sorted(Request.model_fields)) | st.text(max_size=8),
        VALUES | st.lists(VALUES, max_size=3),
        min_size=1,
        max_size=4,
    )
)
def test_mutated_documents_are_refused_or_mean_what_they_say(
    two: People, changed: dict[str, Any]
) -> None:
    document = {**made().model_dump(), **changed}
    try:
        payload = to_canonical(document)
    except TrustError:
        return  # has no text, so it cannot be signed
    try:
        data = dsse.sign(payload, REQUEST_TYPE, two.private["north"])
        found = read(two, data)
    except SecedeError as error:
        told = str(error)
    else:
        told = ""
        assert found.model_dump() == document
        assert found.client == "north"
    assert "\n" not in told


@settings(max_examples=300, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=6)), min_size=1))
def test_mutated_bytes_are_refused(two: People, changes: list[tuple[int, bytes]]) -> None:
    data = two.ask("north")
    changed = bytearray(data)
    for place, piece in changes:
        place %= len(changed) + 1
        changed[place : place + len(piece)] = piece
    if bytes(changed) != data:
        with pytest.raises(SecedeError):
            read(two, bytes(changed))


@pytest.mark.slow
def test_ten_thousand_mutated_requests_are_refused(two: People) -> None:
    dice = random.Random(7)
    good = made()
    data = sign_request(good, two.private["north"])
    inner = good.payload()
    number = 0
    while number < 10_000:
        # half of them changed after signing, half before: a malicious client signs anything
        changed = bytearray(data if number % 2 else inner)
        before = bytes(changed)
        for _ in range(dice.randint(1, 6)):
            place = dice.randrange(len(changed))
            piece = dice.choice((dice.randbytes(dice.randint(0, 8)), before[place : place + 9]))
            changed[place : place + dice.randint(0, 8)] = piece
        if bytes(changed) == before:
            continue
        number += 1
        if before == data:
            with pytest.raises(SecedeError):
                read(two, bytes(changed))
            continue
        try:
            found = read(two, dsse.sign(bytes(changed), REQUEST_TYPE, two.private["north"]))
        except SecedeError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert found.payload() == bytes(changed)  # another genuine request, such as a new nonce


def test_years_far_away_are_read_too(two: People) -> None:
    data = two.ask("north", now=datetime(9000, 1, 1, tzinfo=UTC))
    assert read(two, data, datetime(9000, 1, 2, tzinfo=UTC)).issued == "9000-01-01T00:00:00Z"
