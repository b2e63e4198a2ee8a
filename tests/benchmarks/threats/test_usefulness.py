from __future__ import annotations

from pathlib import Path

from benchmarks.threats.usefulness import attack, honest


def test_an_attacker_that_inflated_a_class_is_erased(tmp_path: Path) -> None:
    # Rolled back before, with a backdoor that succeeded on 100 % of images in the model that stays.
    row = attack(tmp_path, 0.35, inflates=True)
    assert row.outcome.startswith("promoted")
    assert row.success[0] > 0.9
    assert row.success[1] < 0.1
    assert row.accuracy[1] > row.accuracy[0]


def test_an_honest_leaver_with_most_of_two_classes_is_erased(tmp_path: Path) -> None:
    # Rolled back before: retraining lets class 8 fall from 87 % to 43 % of 60 samples.
    row = honest(tmp_path, 0.1)
    assert row.outcome == "promoted, retraining"
