"""Tests the records of the comparison, its kept models and its candidates."""

from __future__ import annotations

import json
import lzma
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.erasures import __main__ as program
from benchmarks.erasures.candidates import ERASURES, bounded, contributed, exchange
from benchmarks.erasures.cells import Cell
from benchmarks.erasures.models import trained
from benchmarks.erasures.records import load
from secede import state as states

CELL = Cell(data="digits", network="mlp", scenario="clean", share=0.4, seed=0)


def test_what_is_measured_already_is_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--data", "digits", "--networks", "mlp", "--scenarios", "clean", "--shares", "0.4"]
    asked += ["--seeds", "0", "--rounds", "2", "--folder", str(tmp_path)]
    program.main([*asked, "--only", "take-back, removal"])
    first = (tmp_path / "scores-2.jsonl").read_text()
    printed = capsys.readouterr().out
    program.main([*asked, "--only", "take-back, removal"])
    assert (tmp_path / "scores-2.jsonl").read_text() == first
    assert capsys.readouterr().out == printed
    program.main([*asked, "--only", "fine-tune"])
    methods = [line["method"] for line in load(tmp_path / "scores-2.jsonl")]
    assert methods == ["original", "retrained", "again", "take-back, removal", "fine-tune"]


def test_a_packed_record_prints_what_it_holds_of_the_cells_and_measures_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = {"probe": 0.4, "clean": 0.9, "loss": 2.0, "auc": 0.5, "canary_p": 0.5}
    lines = [
        {**asdict(CELL), "seed": seed, "method": name, **scores}
        for seed in (0, 100)
        for name in ("retrained", "again", f"own {seed}")
    ]
    file = tmp_path / "record.jsonl.xz"
    file.write_bytes(lzma.compress("\n".join(map(json.dumps, lines)).encode()))
    asked = ["--data", "digits", "--networks", "mlp", "--seeds", "100", "--record", str(file)]
    program.main(asked)
    printed = capsys.readouterr().out
    assert "own 100" in printed
    assert "own 0" not in printed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def test_kept_models_erase_to_the_same_bits_and_every_erasure_runs(folder: Path) -> None:
    fresh, kept = trained(CELL, folder), trained(CELL, folder)
    assert states.digest(fresh.original) == states.digest(kept.original)
    for name, erase in ERASURES.items():
        first = next(erase(kept))
        states.check_schema(first, kept.original)
        if name in ("take-back", "second choice"):
            assert states.digest(first) == states.digest(next(erase(fresh)))


def test_what_is_taken_back_is_bounded_by_length_or_follows_the_share(folder: Path) -> None:
    here = trained(CELL, folder)
    made = exchange(here, here.original)
    sizes = [len(samples) for samples in here.federation.engine.clients]
    assert contributed(made, 10) == pytest.approx(10 * sizes[0] / sum(sizes))
    lengths = [states.distance(update.state, here.original) for update in made.updates]
    typical, own = sum(lengths) / len(lengths), states.norm(made.leaver)
    assert bounded(made, 2) == pytest.approx(2 * min(1, typical / own))
