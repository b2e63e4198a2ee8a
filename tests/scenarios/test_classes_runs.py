"""Leavers with classes of their own, through the whole runner and into a verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import tiny
from harness.recorded_progress import RecordedProgress
from secede import state as states
from secede.experiments import presets, runner
from secede.reports.analysis.verdict import judge
from secede.reports.records.load import read_run

PLANTED = 'scenario = { name = "backdoor", share = 0.5 }'


def run(folder: Path, scenario: str) -> Path:
    assert PLANTED in tiny.CONFIG
    path = tiny.write(folder, tiny.CONFIG.replace(PLANTED, f"scenario = {scenario}"))
    (run_folder,) = runner.run(
        [presets.load(str(path))],
        range(1),
        folder / "runs",
        RecordedProgress(),
        search=folder,
        lanes=1,
    )
    return run_folder


def scores(found: Path) -> dict[tuple[str, int], dict[str, Any]]:
    lines = (found / "seed-0" / "curves.jsonl").read_text().splitlines()
    return {(row["arm"], row["round"]): row["scores"] for row in map(json.loads, lines)}


@pytest.mark.parametrize(
    ("scenario", "measure"),
    [
        ('{ name = "exclusive", kept = 0.05 }', "exclusive_accuracy"),
        ('{ name = "class", classes = [1] }', "class_accuracy"),
    ],
)
def test_retraining_does_not_know_what_only_the_leaver_taught(
    tmp_path: Path, scenario: str, measure: str
) -> None:
    found = run(tmp_path, scenario)
    rows = scores(found)
    trained, retrained = rows["fedavg", 3], rows["retrain", 3]
    assert retrained[measure]["value"] < 0.2 < trained[measure]["value"]
    assert retrained["others_accuracy"]["value"] > 0.8
    for row in (trained, retrained):
        parts = [row[name] for name in (measure, "others_accuracy")]
        assert sum(part["count"] for part in parts) == row["clean_accuracy"]["count"] == 60
        hits = sum(part["count"] * part["value"] for part in parts)
        assert row["clean_accuracy"]["value"] == pytest.approx(hits / 60)


def test_attacks_are_judged_on_test_images_of_the_leavers_class(tmp_path: Path) -> None:
    found = run(tmp_path, '{ name = "class", classes = [1] }')
    (evidence,) = (found / "seed-0" / "evidence").glob("retrain@*")
    answers = states.load(evidence)[0]
    assert set(answers["leaver.labels"].tolist()) == {1}
    assert set(answers["nonmembers.labels"].tolist()) == {1}
    indices = answers["nonmembers.indices"]
    assert torch.equal(answers["nonmembers.logits"], answers["test.logits"][indices])
    result = json.loads((found / "seed-0" / "result.json").read_text())
    attack = result["membership"]["retrain@3"]["shokri"]
    assert attack["nonmember_accuracy"]["count"] <= len(indices) / 2 + 1
    assert attack["pooled_classes"] == [1]  # no retained client could teach it this class


def test_a_report_judges_by_the_leavers_classes_and_the_others(tmp_path: Path) -> None:
    verdict = judge(read_run(run(tmp_path, '{ name = "exclusive", classes = [2] }')))
    assert verdict.forgotten.sentence.startswith("Accuracy on the leaver's classes is")
    assert verdict.useful.sentence.startswith("Accuracy on the other classes is")
    assert "% accuracy on the other classes, erasing took" in verdict.cheaper.sentence
