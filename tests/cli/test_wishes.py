from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from secede.cli import wishes
from secede.erasure.planning.options import EraseOptions
from secede.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mean": "middle"}, "mean is 'middle', expected mean, trimmed or median"),
        ({"rounds": 3, "least_rounds": 5}, "at most 3 rounds, but at least 5 after"),
        ({"rounds": 0, "least_rounds": None}, "at most 0 rounds, but at least 1 after"),
        ({"settings": ["epochs=3"]}, "give METHOD.KEY=VALUE"),
        ({"methods": ["fine-tune"]}, "method 'fine-tune' is there to compare with"),
        ({"methods": ["gradient-ascent"]}, "method 'gradient-ascent' is there to compare with"),
        ({"methods": ["second-choise"]}, "unknown method 'second-choise'; did you mean 'second-ch"),
        ({"settings": ["second-choice.epoch=3"]}, "did you mean 'epochs'"),
        ({"settings": ["a.b=3"]}, "unknown method 'a'"),
        ({"backups_until": datetime(2020, 1, 1)}, "2020-01-01 is past"),
    ],
)
def test_options_that_cannot_be_used_are_named(changes: dict[str, Any], words: str) -> None:
    options: dict[str, Any] = {
        "methods": (),
        "settings": (),
        "distrust": False,
        "rounds": None,
        "least_rounds": 0,
        "mean": "mean",
        "answer_seconds": None,
        "wait": timedelta(0),
        "backups_until": None,
    }
    with pytest.raises(ConfigError, match=words):
        wishes.of(**(options | changes))
    given = ["projected-ascent.epochs=3", 'second-choice.labels="all"', "second-choice.epochs=1"]
    found = wishes.of(**(options | {"settings": given}))
    assert found.settings == {
        "projected-ascent": {"epochs": 3},
        "second-choice": {"labels": "all", "epochs": 1},
    }


def test_options_that_are_not_given_leave_the_usual_wishes() -> None:
    plain: dict[str, Any] = {"methods": (), "settings": (), "distrust": False, "mean": "mean"}
    plain |= dict.fromkeys(("rounds", "least_rounds", "answer_seconds", "backups_until"))
    assert wishes.of(**plain, wait=timedelta(0)) == EraseOptions()
    found = wishes.of(
        **{**plain, "least_rounds": 0},
        wait=timedelta(0),
        nearest=0.5,
        quorum=0.9,
        retained_seconds=9.0,
        measure_at_leaver=True,
        fading=False,
    )
    assert (found.min_rounds, found.guard.min_distance, found.quorum) == (0, 0.5, 0.9)
    assert (found.client_timeout, found.measure_at_leaver) == (9.0, True)
    assert (EraseOptions().keep_unused_weights, found.keep_unused_weights) == (False, True)
    with pytest.raises(ConfigError, match="--nearest -1 cannot be used"):
        wishes.of(**plain, wait=timedelta(0), nearest=-1)
