"""Tests `erasure/documents/canary_reading.py` too."""

from __future__ import annotations

import pytest

from harness.erasure import papers
from secede.erasure.documents.canary_reading import SignedReading
from secede.erasure.documents.signed_reading import check_reading, sign_reading
from secede.erasure.receipts.verify import sign_receipt, verify_receipt
from secede.errors import TrustError

SIGNED = papers.reading(papers.AFTER, (4, 4, 5, 3), 9)


def test_a_reading_is_its_clients_or_unsigned() -> None:
    key = papers.publics(papers.LEAVER)[papers.LEAVER]
    check_reading(SIGNED, key)
    check_reading(SIGNED, None)
    plain = sign_reading(SIGNED.reading, None)
    assert plain.envelope is None
    check_reading(plain, key)
    with pytest.raises(TrustError):
        check_reading(SIGNED, papers.publics("server")["server"])


def test_what_is_signed_is_what_is_stated() -> None:
    other = papers.reading(papers.AFTER, (4, 4, 4, 4), 9)
    mixed = SignedReading(reading=SIGNED.reading, envelope=other.envelope)
    for key in (None, papers.publics(papers.LEAVER)[papers.LEAVER]):
        with pytest.raises(TrustError, match="signed another reading"):
            check_reading(mixed, key)


def test_a_receipt_says_whether_its_readings_are_the_leavers() -> None:
    data = papers.signed()
    assert verify_receipt(data, papers.publics("server", papers.LEAVER)).readings_signed
    plain = SignedReading(reading=SIGNED.reading)
    (look,) = papers.CANARIES.looks
    canaries = papers.CANARIES.model_copy(
        update={"looks": (look.model_copy(update={"after": plain}),)}
    )
    verification = papers.VERIFICATION.model_copy(update={"canaries": canaries})
    data = papers.signed(verification=verification)
    assert not verify_receipt(data, papers.publics("server", papers.LEAVER)).readings_signed


def test_a_reading_that_another_signed_makes_a_receipt_invalid() -> None:
    forged = sign_reading(SIGNED.reading, papers.private("server"))
    (look,) = papers.CANARIES.looks
    canaries = papers.CANARIES.model_copy(
        update={"looks": (look.model_copy(update={"after": forged}),)}
    )
    verification = papers.VERIFICATION.model_copy(update={"canaries": canaries})
    data = sign_receipt(papers.statement(verification=verification), papers.private("server"))
    with pytest.raises(TrustError):
        verify_receipt(data, papers.publics("server", papers.LEAVER))
    assert not verify_receipt(data, papers.publics("server")).readings_signed
