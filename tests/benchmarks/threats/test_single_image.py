from __future__ import annotations

from functools import partial

import pytest

from benchmarks.threats import single_image
from benchmarks.threats.reconstruction import Lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return single_image.prepared(tmp_path_factory.mktemp("lab"), 40)


def told(lab: Lab, read: object, *, limited: bool) -> str:
    return single_image.recognised(lab, read, None if limited else lab.without_limits, 2)  # type: ignore[arg-type]


def test_losses_do_not_tell_an_image(lab: Lab) -> None:
    read = partial(single_image.by_losses, count=60)
    assert told(lab, read, limited=False) == "2 of 2 images"
    assert told(lab, read, limited=True) == "0 of 2 images"


@pytest.mark.parametrize("repeats", [1, single_image.REPEATS])
def test_a_months_counts_do_not_tell_an_image(lab: Lab, repeats: int) -> None:
    read = partial(single_image.by_counts, count=single_image.MONTH, repeats=repeats)
    assert told(lab, partial(single_image.by_counts, count=96), limited=False) == "2 of 2 images"
    assert told(lab, read, limited=True) == "0 of 2 images"
