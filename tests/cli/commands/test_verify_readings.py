"""What `secede verify` says of the readings of canaries, and when it refuses them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.erasure import papers
from secede.cli.commands.verify import verify
from secede.erasure.canonical_json import to_canonical
from secede.erasure.documents.receipt import RECEIPT_TYPE
from secede.erasure.receipts.verify import sign_receipt
from secede.erasure.signing import dsse
from secede.erasure.signing.keys import Keyring, load_private_key
from secede.errors import TrustError

Capture = pytest.CaptureFixture[str]


def test_every_reading_is_told_with_its_numbers(folder: Path, capsys: Capture) -> None:
    verify([folder / "receipt.json"], folder / "keys")
    said = capsys.readouterr().out
    root = papers.CANARIES_PLANTED.commitment.root
    key = Keyring.load(folder / "keys")[papers.LEAVER].keyid
    line = f"16 canaries, root {root}; 2 readings, signed by the client, key {key}"
    assert re.search(f"^canaries +{line}$", said, re.MULTILINE)
    lines = [line.strip() for line in said.splitlines()]
    assert "before the erasure: p = 4.7e-06, mean rank 1.31 (chance 2.50), wins 15 of 16" in lines
    assert (
        "projected-ascent, after round 2: p = 0.46, mean rank 2.44 (chance 2.50), wins 9 of 16, "
        "at most 84.3 % in the long run"
    ) in lines


def test_the_numbers_are_in_the_json(folder: Path, capsys: Capture) -> None:
    verify([folder / "receipt.json"], folder / "keys", json=True)
    told = json.loads(capsys.readouterr().out)["forgotten"]
    assert told["verdict"] == "no-trace-found"
    assert told["reason"].startswith("The canaries showed before the erasure")
    assert told["readings_signed"] is True
    canaries = told["canaries"]
    assert canaries["planted"]["commitment"]["root"] == papers.CANARIES_PLANTED.commitment.root
    assert canaries["rule"] == {"level": 0.01, "bound_level": 0.95, "looks": 7}
    judgement, (before, after) = canaries["judgement"], canaries["readings"]
    assert (before["p_value"], after["p_value"]) == (judgement["p_before"], judgement["p_after"])
    assert after["win_bound"] == judgement["win_upper_bound"]
    assert (after["round"], after["wins"], after["signed"]) == (2, 9, True)


def test_readings_that_nobody_compared_with_a_key_are_said(folder: Path, capsys: Capture) -> None:
    server = load_private_key(folder / "server.key")
    (folder / "receipt.json").write_bytes(sign_receipt(papers.statement(), server))
    (folder / "keys" / f"{papers.LEAVER}.pub").unlink()
    verify([folder / "receipt.json"], folder / "keys")
    assert "not compared with the client's key" in capsys.readouterr().out


def one_more_win(reading: dict[str, Any]) -> None:
    reading["wins"] += 1


def more_wins_than_ranks_allow(reading: dict[str, Any]) -> None:
    reading["wins"] = reading["count"]


def a_canary_less(reading: dict[str, Any]) -> None:
    reading["ranks"][0][0] -= 1


def another_model(reading: dict[str, Any]) -> None:
    reading["model"] = "0" * 64


@pytest.mark.parametrize(
    ("alter", "said"),
    [
        (one_more_win, "signed another reading of its canaries than is stated"),
        (more_wins_than_ranks_allow, "where the ranks allow"),
        (a_canary_less, "expected 16"),
        (another_model, "is 'undetermined' by the rung and the readings"),
    ],
)
def test_a_reading_that_does_not_fit_makes_the_receipt_invalid(
    folder: Path, alter: Callable[[dict[str, Any]], None], said: str
) -> None:
    path, key = folder / "receipt.json", load_private_key(folder / "server.key")
    payload = json.loads(dsse.unverified_payload(path.read_bytes(), RECEIPT_TYPE))
    alter(payload["predicate"]["verification"]["canaries"]["looks"][0]["after"]["reading"])
    path.write_bytes(dsse.sign(to_canonical(payload), RECEIPT_TYPE, key))
    with pytest.raises(TrustError, match=said):
        verify([path], folder / "keys")


def test_a_reading_that_another_signed_makes_the_receipt_invalid(folder: Path) -> None:
    path, key = folder / "receipt.json", load_private_key(folder / "server.key")
    path.write_bytes(sign_receipt(papers.statement(leaver=papers.private("forger")), key))
    with pytest.raises(TrustError, match="unknown key"):
        verify([path], folder / "keys")
