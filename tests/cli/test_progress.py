"""Tests `logs.py` too."""

from __future__ import annotations

import io
import logging
import threading
import time

import pytest
from rich.console import Console

from harness.lines import Lines
from secede import logs
from secede.cli import progress as module
from secede.cli.app import show_log
from secede.experiments.config import Config

CONFIG = Config(name="cell")
ROW = {"clean_accuracy": {"value": 0.5}}


def drawn(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Let progress believe that it writes to a terminal, and return what it writes."""
    screen = io.StringIO()
    monkeypatch.setattr(
        module, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=120)
    )
    return screen


def test_lines_of_one_lane_look_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    show_log()
    with module.progress() as reporter:
        reporter.expect(2, 1)
        reporter.reused(CONFIG, 0)
        turn = reporter.begin(CONFIG, 1, 12)
        turn.round("fedavg", 1, ROW)
        turn.round("fedavg", 2, ROW)
        turn.end()
    assert capsys.readouterr().err.splitlines() == [
        "cell, seed 0: finished already, not computed again",
        "cell, seed 1: 12 rounds in all",
        "  training with everybody, round 1: clean accuracy 50.0 %",
    ]


def test_lines_of_several_lanes_name_cell_and_seed_and_stay_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_log()
    with module.progress() as reporter:
        reporter.expect(4, 4)
        turns = [reporter.begin(CONFIG, seed, 500) for seed in range(4)]

        def report(seed: int) -> None:
            for number in range(1, 501):
                turns[seed].round("retrain", number, ROW)

        threads = [threading.Thread(target=report, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = capsys.readouterr().err.splitlines()[4:]
    assert len(lines) == 4 * 101
    for seed in range(4):
        start = f"cell, seed {seed}: retraining without the leaver, round "
        assert sum(line.startswith(start) for line in lines) == 101


def test_a_single_turn_has_one_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = drawn(monkeypatch)
    with module.progress() as reporter:
        reporter.expect(1, 1)
        turn = reporter.begin(CONFIG, 0, 2)
        turn.round("fedavg", 1, ROW)
        turn.round("fedavg", 2, ROW)
        turn.end()
    last = screen.getvalue()
    assert "cell, seed 0" in last
    assert "2/2" in last
    assert "all seeds" not in last


def test_several_turns_have_a_bar_each_and_one_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = drawn(monkeypatch)
    with module.progress() as reporter:
        reporter.expect(3, 2)
        reporter.reused(CONFIG, 0)
        first, second = reporter.begin(CONFIG, 1, 2), reporter.begin(CONFIG, 2, 2)
        first.round("fedavg", 1, ROW)
        second.round("fedavg", 1, {})
        first.end()
    shown = screen.getvalue().rpartition("all seeds")[2]
    assert "2/3" in shown
    assert "cell, seed 2" in shown
    assert "cell, seed 1" not in shown


def test_who_works_in_silence_is_named_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.02)
    lines, deadline = Lines(), time.monotonic() + 10
    before = len(logs.LOGGER.handlers)
    with module.repeating_when_quiet():
        logging.getLogger("secede.erasure").info("asking site-0 for a local step")
        while len(lines) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    again = "still running after 0 s: asking site-0 for a local step"
    assert lines[:3] == ["asking site-0 for a local step", again, again]
    assert len(logs.LOGGER.handlers) == before
