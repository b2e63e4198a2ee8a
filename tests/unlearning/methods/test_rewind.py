from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from harness import servers
from harness.recorded import keep, linear_server, weights
from secede import state as states
from secede.errors import ConfigError, RecordError
from secede.unlearning.methods.rewind import Rewind
from secede.unlearning.registry import METHODS


def test_one_round_from_before_the_leaver_joined_matches_the_hand_sum(tmp_path: Path) -> None:
    # The leaver joined in round 2 of 2, before which the model was (1, -1): s = 1 / (1 + e⁻²) for
    # class 0. The client of class 0 steps by (1 - s, s - 1), that of class 1 by (-s, s); they
    # weigh 1 : 3, so the mean moves by (1 - s)/4 - 3 s/4 = 1/4 - s.
    at = linear_server(tmp_path)
    keep(at, 1, weights(0, 0), (1, weights(1, -1), 1), (2, weights(1, -1), 3))
    keep(at, 2, weights(1, -1), (0, weights(9, 9), 2), (1, weights(0, 0), 1))
    start = Rewind().start(at)
    moved = 1.25 - 1 / (1 + math.exp(-2))
    torch.testing.assert_close(start.state["weight"], torch.tensor([[moved], [-moved]]))
    assert start.report == {"kept_rounds": 1, "trained_rounds": 1}
    assert (start.cost.rounds, start.cost.gradient_samples) == (1, 4)


def test_a_leaver_of_the_first_round_leaves_the_initial_model(tmp_path: Path) -> None:
    at = servers.server(rounds=5, history=tmp_path)
    start = Rewind(rounds=0).start(at)
    initial = at.engine.initial_state("initial")  # type: ignore[attr-defined]
    assert states.digest(start.state) == states.digest(initial)
    assert Rewind().rounds_to_train(at) == 5
    assert Rewind(rounds=2).rounds_to_train(at) == 2


def test_the_model_is_the_latest_recorded_one(tmp_path: Path) -> None:
    # Every second round is recorded, and the leaver joined in round 4.
    at = linear_server(tmp_path, interval=2)
    for number in range(1, 6):
        leaver = [(0, weights(9, 9), 2)] if number > 3 else []
        keep(at, number, weights(number, 0), *leaver, (1, weights(0, 0), 1))
    start = Rewind(rounds=0).start(at)
    assert start.state["weight"].flatten().tolist() == [3, 0]
    assert start.report == {"kept_rounds": 2, "trained_rounds": 0}
    assert Rewind().rounds_to_train(at) == 3


def test_what_comes_out_does_not_depend_on_the_leavers_data(tmp_path: Path) -> None:
    ends = []
    for turn in range(2):
        clients = [servers.blobs(n, seed=s) for n, s in ((20, 90 + turn), (24, 1), (24, 2))]
        at = servers.server(clients=clients, rounds=3, history=tmp_path / str(turn))
        _, state = servers.erase(Rewind(), at, rounds=1)
        ends.append((states.digest(at.global_state), states.digest(state)))
    assert ends[0][0] != ends[1][0]
    assert ends[0][1] == ends[1][1]


def test_the_same_seed_gives_the_same_digest_and_nobody_is_asked_for_more(tmp_path: Path) -> None:
    runs = [
        servers.erase(Rewind(), servers.server(rounds=3, history=tmp_path / name))
        for name in ("first", "second")
    ]
    assert states.digest(runs[0][1]) == states.digest(runs[1][1])
    assert runs[0][0].cost.rounds == 3
    assert not METHODS["rewind"].needs.leaver_online


def test_without_global_models_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rewind needs the global models of the training"):
        Rewind().check_history(None)
    with pytest.raises(RecordError, match="train again"):
        Rewind().start(linear_server(tmp_path))


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="rounds must be 0 or more, got -1"):
        Rewind(rounds=-1)
