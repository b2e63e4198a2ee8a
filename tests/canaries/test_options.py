from __future__ import annotations

import json
from typing import Any

import pytest

from secede.canaries import CanaryOptions, Size
from secede.errors import ConfigError


def test_the_defaults_take_two_in_a_hundred_of_1500_samples() -> None:
    assert CanaryOptions().size(1500) == Size(10, 3)
    assert Size(10, 3).planted == 30


def test_a_smaller_client_has_fewer_canaries_first_then_fewer_copies() -> None:
    options = CanaryOptions()
    sizes = {n: options.size(n) for n in (1200, 1050, 1049, 700, 350)}
    assert sizes == {
        1200: Size(8, 3),
        1050: Size(7, 3),
        1049: Size(10, 2),
        700: Size(7, 2),
        350: Size(7, 1),
    }


def test_planted_samples_never_exceed_the_share() -> None:
    options = CanaryOptions(count=16, copies=4, max_share=0.04)
    for samples in range(175, 3000):
        size = options.size(samples)
        assert size is not None
        assert size.planted <= 0.04 * samples + 1e-6


def test_a_client_that_is_too_small_gets_the_reason() -> None:
    assert CanaryOptions().size(349) is None
    assert CanaryOptions().why_too_small(349) == (
        "no canaries were planted: the client has 349 samples, and 7 canaries within 2 % need 350"
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"count": 6},
        {"count": 10.0},
        {"count": True},
        {"copies": 0},
        {"kind": "made up"},
        {"max_share": 0},
        {"max_share": 0.6},
        {"max_share": float("nan")},
        {"noise": -0.1},
        {"noise": "0.1"},
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="canaries: "):
        CanaryOptions(**settings)


def test_settings_survive_json() -> None:
    options = CanaryOptions(count=12, kind="mislabelled", noise=0)
    assert CanaryOptions(**json.loads(json.dumps(options.to_dict()))) == options
