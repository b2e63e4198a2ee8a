from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest
import torch

from benchmarks import flower


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32
    yield
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = before
    for name in [name for name in sys.modules if name.split(".")[0] == "flowerapp"]:
        del sys.modules[name]


@pytest.mark.slow
def test_rounds_are_measured_in_turns_and_bytes_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flower.main(["--device", "cpu", "--quick", "--clients", "3"])
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("| in-process")
    ]
    rounds, processor, erasure = rows
    assert processor[0] == "in-process, processor time"
    assert 0 < float(processor[5].partition("%")[0]) < 100
    assert re.fullmatch(r"[\d.]+× \([\d.]+ to [\d.]+\)", rounds[3])
    plain, ours = float(rounds[-2]), float(rounds[-1])
    assert plain == pytest.approx(2 * 3 * 6.65, rel=0.01)  # one model down and up for each client
    assert ours == pytest.approx(plain, rel=0.001)  # and we add next to nothing
    assert 0 < float(rounds[5].partition("%")[0]) < 100
    assert erasure[2].startswith("promoted")
    assert erasure[3] == "1: 1.00 down, 1.00 up"  # the leaver's step: one model each way
    assert re.fullmatch(r"\d+: [\d.]+ down, 0\.00 up", erasure[5])  # counts are a few bytes


def test_an_unknown_way_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        flower.main(["--ways", "by-mail"])
    assert "expected some of in-process, simulation, deployment" in capsys.readouterr().err
