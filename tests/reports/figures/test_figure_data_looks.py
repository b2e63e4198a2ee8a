from itertools import combinations

import pytest

from secede.reports import names
from secede.reports.figures.figure_data import LOOKS, THEME, look_keys

MAIN = (names.FEDAVG, names.RETRAIN, names.ERASED)


def luminance(colour: str) -> float:
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_every_arm_stands_out_from_the_page(dark: bool) -> None:
    paper = THEME["paper"][dark]
    for arm in LOOKS:
        assert contrast(THEME[f"arm-{arm}"][dark], paper) >= 3, arm


def test_the_main_arms_differ_in_lightness() -> None:
    for one, other in combinations(MAIN, 2):
        assert contrast(LOOKS[one].colour, LOOKS[other].colour) >= 1.4, (one, other)


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_readable(dark: bool) -> None:
    for text in ("ink", "quiet"):
        assert contrast(THEME[text][dark], THEME["paper"][dark]) >= 4.5


def test_the_ablations_are_told_by_their_dashes() -> None:
    dashes = {LOOKS[arm].dashes for arm in (names.FINE_TUNE, names.REFERENCE)}
    assert len(dashes) == 2
    assert () not in dashes
    assert LOOKS[names.ERASED].linestyle == "-"
    assert LOOKS[names.FINE_TUNE].linestyle == (0.0, (4.5, 2.0))


def test_no_two_arms_share_a_colour_or_a_page_could_not_tell_them_apart() -> None:
    colours = [colour for pair in THEME.values() for colour in pair]
    assert len(set(colours)) == len(colours)


def test_further_methods_get_distinct_looks_by_their_order() -> None:
    others = [f"method-{index}" for index in range(8)]
    keys = look_keys(["fedavg", "erased", others[0], "fine-tune", *others[1:]])
    assert [keys[arm] for arm in ("fedavg", "erased", "fine-tune")] == [
        "fedavg",
        "erased",
        "fine-tune",
    ]
    assert [keys[arm] for arm in others] == [f"other-{number}" for number in range(1, 9)]
    marks = {LOOKS[keys[arm]].mark for arm in others}
    assert len(marks) == 8
    assert look_keys([*others, "one-more"])["one-more"] == "other-1"
