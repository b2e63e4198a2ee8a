"""Waits are said once, then ever more rarely; nobody is waited for who cannot come."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from flwr.app import ArrayRecord, ConfigRecord

from harness.flower.inprocess import InProcess, sites
from harness.flower.small import Federation, strategy
from harness.lines import Lines
from secede.erasure.storage.locks import BusyError
from secede.errors import SilentError
from secede.flower import recording
from secede.flower.rounds.grid import DeadlineGrid


def test_flowers_own_line_each_second_is_not_heard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told, made = Lines(), sites(2, tmp_path)
    made[1].online = False
    grid = DeadlineGrid(InProcess(made), 5, enough=2)
    threading.Timer(0.3, lambda: setattr(made[1], "online", True)).start()
    messages = list(
        strategy().configure_train(1, ArrayRecord({}), ConfigRecord({}), grid)
    )  # would sleep for a second, and log
    assert len(messages) == 2
    assert told == ["waiting for more clients, 1 of 2 are online: 5 seconds left"]
    assert "Waiting for nodes" not in caplog.text


def test_a_late_look_at_which_enough_are_there_says_nothing(tmp_path: Path) -> None:
    now, told = [0.0], Lines()
    grid = DeadlineGrid(InProcess(sites(2, tmp_path)), 60, enough=2, clock=lambda: now[0])
    now[0] = 5.0
    assert len(list(grid.get_nodes())) == 2
    assert told == []
    now[0] = 8.0
    list(grid.get_nodes())  # sampling was not content
    assert told == ["waiting for more clients, 2 are online: 52 seconds left"]


def test_a_training_waits_for_as_many_as_its_strategy_and_says_so_once(
    federation: Federation,
) -> None:
    for site in federation.sites[1:]:
        site.online = False
    with pytest.raises(SilentError, match="too few clients came"):
        federation.train(1)
    assert sum("waiting for more clients, 1 of 2" in line for line in federation.told) == 1


def test_a_training_does_not_wait_for_those_who_were_erased(federation: Federation) -> None:
    federation.train(1)
    federation.erase("name:site-0")
    federation.erase("name:site-1")
    model = ArrayRecord(federation.store.last_model() or {})
    least = strategy(min_available_nodes=3)
    begun = time.monotonic()
    with pytest.raises(SilentError, match=r"waits for 3 clients, of the known ones 2 may.*site-0"):
        recording(least, federation.store, online_timeout=60).start(federation.grid(), model, 1)
    assert time.monotonic() - begun < 30
    federation.train(1)  # two are enough for the usual strategy


def test_a_home_in_use_names_the_work_that_is_going_on(federation: Federation) -> None:
    federation.train(1)
    federation.erase("name:site-1")  # the last to lease a request, and not who works now
    with federation.store.lock(purpose="training"):
        federation.told.clear()
        begun = time.monotonic()
        with (
            pytest.raises(BusyError, match=r"in use by process \d+ \(training\): wait"),
            federation.store.lock(2.5),
        ):
            pass
        assert time.monotonic() - begun < 10
    (line,) = federation.told
    assert line.startswith("waiting for process ")
    assert " (training) to end, at most " in line
    assert len(line) < 80
