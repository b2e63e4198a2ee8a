from __future__ import annotations

from functools import partial

import pytest

from benchmarks.threats import single_image
from benchmarks.threats.reconstruction import Lab

TARGET = [1]
SECRET = bytes([4]) * 32


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    lab = single_image.prepared(tmp_path_factory.mktemp("lab"), 100)
    (lab.kept.folder / "own.secret").write_bytes(SECRET)
    return lab


def told(lab: Lab, read: object, *, limited: bool) -> str:
    ask = None if limited else lab.without_limits
    return single_image.recognised(lab, read, ask, TARGET)  # type: ignore[arg-type]


def test_losses_do_not_tell_an_image(lab: Lab) -> None:
    read = partial(single_image.by_losses, count=60)
    assert told(lab, read, limited=False) == "1 of 1 images"
    assert told(lab, read, limited=True) == "0 of 1 images"


def test_a_months_counts_do_not_tell_an_image(lab: Lab) -> None:
    # With one coin for all models it is read, if the coin of its class rounds up.
    read = partial(single_image.by_counts, count=single_image.MONTH)
    assert told(lab, read, limited=False) == "1 of 1 images"
    assert told(lab, read, limited=True) == "0 of 1 images"
