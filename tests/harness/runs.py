"""Tiny runs of an experiment, and what they recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness import tiny
from harness.recorded_progress import RecordedProgress
from secede import state as states
from secede.experiments import presets, runner


def run(
    folder: Path, config: str = tiny.PAPER, *, seeds: int = 1, lanes: int | None = None
) -> tuple[Path, RecordedProgress]:
    path = tiny.write(folder, config)
    progress = RecordedProgress()
    (run_folder,) = runner.run(
        [presets.load(str(path))],
        range(seeds),
        folder / "runs",
        progress,
        search=folder,
        lanes=lanes,
    )
    return run_folder, progress


def rows(seed: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (seed / "curves.jsonl").read_text().splitlines()]


def outcome(seed: Path) -> dict[str, Any]:
    """Everything a seed ended with, except how long it took."""
    result = json.loads((seed / "result.json").read_text())
    result.pop("seconds")
    curve = rows(seed)
    for row in curve:
        row["cost"].pop("seconds")
    files = (*seed.glob("states/*"), *seed.glob("evidence/*"))
    saved = {path.name: states.digest(states.load(path)[0]) for path in files}
    return {"result": result, "curve": curve, "saved": saved}
