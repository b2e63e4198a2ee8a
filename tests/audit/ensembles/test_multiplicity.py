from __future__ import annotations

import pytest

from secede.audit.ensembles.multiplicity import benjamini_hochberg, holm
from secede.errors import DataError


def test_holm_by_hand() -> None:
    # 4 · 0.01, 3 · 0.013, which may not fall below the one before, 2 · 0.03 and 0.5.
    assert holm([0.03, 0.01, 0.5, 0.013]) == pytest.approx([0.06, 0.04, 0.5, 0.04])


def test_benjamini_hochberg_by_hand() -> None:
    # 4/1 · 0.01 and 4/2 · 0.013 (the smaller holds for both), 4/3 · 0.03, 4/4 · 0.5.
    assert benjamini_hochberg([0.03, 0.01, 0.5, 0.013]) == pytest.approx([0.04, 0.026, 0.5, 0.026])


def test_no_p_value_exceeds_one_and_one_alone_stays() -> None:
    for adjust in (holm, benjamini_hochberg):
        assert adjust([0.9, 0.8]) == pytest.approx(
            [1 if adjust is holm else 0.9] * 1 + [1 if adjust is holm else 0.9]
        )
        assert adjust([0.2]) == [0.2]
        assert adjust([]) == []


@pytest.mark.parametrize("wrong", [[-0.1], [1.1], [float("nan")]])
def test_what_is_no_p_value_is_refused(wrong: list[float]) -> None:
    with pytest.raises(DataError, match="expected numbers from 0 to 1"):
        holm(wrong)
