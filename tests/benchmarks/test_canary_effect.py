from __future__ import annotations

import pytest

from benchmarks import canary_effect
from secede.audit import Ranks, Reading


def test_the_win_rate_is_the_share_of_other_candidates_that_the_drawn_one_beats() -> None:
    first, last = Ranks.of([(1, 10)] * 4), Ranks.of([(10, 10)] * 4)
    both = [Reading(ranks=first, wins=4, count=4), Reading(ranks=last, wins=0, count=4)]
    assert canary_effect.win_rate(both[:1]) == 1
    assert canary_effect.win_rate(both) == 0.5


def test_it_prints_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--seeds", "1", "--rounds", "1", "--repeats", "1", "--copies", "1"]
    canary_effect.main(["--networks", "mlp", *few])
    times, effects = capsys.readouterr().out.split("\n\n")
    assert times.splitlines()[2].startswith("| mlp | ")
    assert effects.splitlines()[2].startswith("| mlp | 1 | 0.")
