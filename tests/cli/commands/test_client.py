from __future__ import annotations

import json
from pathlib import Path

from harness.commands import secede
from secede.flower.client.consent import released
from secede.flower.client.question_log import Question, QuestionLog


def client(folder: Path) -> Path:
    """Return the folder of a client that was asked twice, below a site's."""
    log = QuestionLog(folder / "partition-1")
    asked = Question(at="2026-11-15T12:00:00Z", task="count-right", model="a" * 64)
    log.append(asked)
    log.append(
        asked.model_copy(update={"outcome": "refused", "reason": "no such model", "home": "b" * 64})
    )
    return folder / "partition-1"


def test_a_release_is_made_and_taken_back(tmp_path: Path) -> None:
    folder = client(tmp_path)
    done = secede(
        *("client", "release", str(tmp_path), "--federation", "north", "--until", "2030-01-31")
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "a step may be taken for requests of 'north' until 2030-" in done.stdout
    assert secede("client", "release", str(folder), "--request", "c" * 64).returncode == 0
    assert [(r.federation, r.request) for r in released(folder)] == [
        ("north", None),
        (None, "c" * 64),
    ]
    assert (folder / "released.json").stat().st_mode & 0o777 == 0o600
    done = secede("client", "revoke", str(tmp_path), "--json")
    assert json.loads(done.stdout)["revoked"] == 2
    assert released(folder) == ()


def test_the_log_shows_each_question_and_why_it_was_refused(tmp_path: Path) -> None:
    client(tmp_path)
    first, second = secede("client", "log", str(tmp_path)).stdout.splitlines()
    assert first == "2026-11-15T12:00:00Z  count-right  model aaaaaaaaaaaa…  taken"
    assert second.endswith("home bbbbbbbbbbbb…  refused: no such model")
    shown = json.loads(secede("client", "log", str(tmp_path), "--json").stdout)
    assert [question["outcome"] for question in shown["questions"]] == ["taken", "refused"]


def test_what_cannot_be_released_is_said(tmp_path: Path) -> None:
    done = secede("client", "release", str(tmp_path), "--federation", "north")
    assert (done.returncode, done.stdout) == (2, "")
    assert "holds 0 clients, expected the folder in which one client keeps its updates" in (
        done.stderr
    )
    client(tmp_path)
    for options, words in (
        ((), "give --request or --federation"),
        (("--request", "x"), "the release is not valid: request"),
    ):
        done = secede("client", "release", str(tmp_path), *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr
    (tmp_path / "partition-2").mkdir()
    (tmp_path / "partition-2" / "index.json").write_text("{}")
    done = secede("client", "log", str(tmp_path))
    assert "holds 2 clients" in done.stderr
    assert "name one of partition-1, partition-2" in done.stderr
