"""The records of an audit's federations: margins and scores, written when one is finished.

    <out>/audit-<name>-<digest>/audit.json, environment.json
                                members/000.safetensors, 000.json, 001.safetensors, ...

The JSON file is written last and marks a finished federation; it has the digest of the other. No
model is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from secede import files
from secede.audit.ensembles.margins import ENSEMBLES, SAMPLE_SETS, Ensemble, Ensembles
from secede.errors import RecordError
from secede.experiments.ensembles.examine import Answers
from secede.experiments.records import read_json, write_json

PLAIN, QUANTISED, TRAINED_ON = "as erased", "quantised", "trained on"
VARIANTS = (PLAIN, QUANTISED, TRAINED_ON)


@dataclass(frozen=True, kw_only=True)
class Member:
    """One finished federation."""

    number: int
    member: NDArray[np.bool_]
    answers: Mapping[str, Mapping[Ensemble, Answers]]  # by variant
    further: Mapping[str, Mapping[Ensemble, float]]  # scores of the models as they are
    notes: Mapping[str, object]  # what was done, digests and seconds


def is_finished(folder: Path, number: int) -> bool:
    """Return whether a federation has been finished."""
    return _path(folder, number, "json").exists()


def write(folder: Path, audit: str, done: Member) -> None:
    """Write a finished federation, the JSON file last."""
    arrays: dict[str, NDArray[Any]] = {"member": done.member}
    scores: dict[str, dict[str, Mapping[str, float]]] = {}
    for variant, ensembles in done.answers.items():
        for ensemble, answers in ensembles.items():
            for name, margins in answers.margins.items():
                arrays[f"{variant}/{ensemble}/{name}"] = margins
            scores.setdefault(variant, {})[ensemble] = answers.scores
    content = safetensors.numpy.save(arrays)
    path = _path(folder, done.number, "safetensors")
    files.write_bytes(path, content)
    record = {
        "audit": audit,
        "federation": done.number,
        "scores": scores,
        "further": done.further,
        "margins": files.digest(path),
        **done.notes,
    }
    write_json(_path(folder, done.number, "json"), record)


def load(folder: Path, audit: str, count: int) -> dict[str, Ensembles]:
    """Return the ensembles of the first `count` federations, by variant."""
    records = [_read_record(folder, audit, number) for number in range(count)]
    arrays = [_read_arrays(folder, record) for record in records]
    variants = [name for name in VARIANTS if name in records[0]["scores"]]
    return {variant: _joined(variant, records, arrays) for variant in variants}


def notes(folder: Path, audit: str, count: int) -> list[dict[str, Any]]:
    """Return what was written down of the first `count` federations beside the scores."""
    kept = ("federation", "erasure", "models", "seconds")
    records = (_read_record(folder, audit, number) for number in range(count))
    return [{key: record[key] for key in kept} for record in records]


def _joined(
    variant: str, records: Sequence[dict[str, Any]], arrays: Sequence[dict[str, NDArray[Any]]]
) -> Ensembles:
    margins = {
        ensemble: {
            name: np.stack([a[f"{variant}/{ensemble}/{name}"] for a in arrays]).astype(np.float64)
            for name in SAMPLE_SETS
        }
        for ensemble in ENSEMBLES
    }
    first = records[0]["scores"][variant][ENSEMBLES[0]]
    scalars = {
        name: {
            ensemble: np.array([r["scores"][variant][ensemble][name] for r in records])
            for ensemble in ENSEMBLES
        }
        for name in first
    }
    for name in records[0]["further"] if variant == PLAIN else ():
        values = {e: np.array([r["further"][name][e] for r in records]) for e in ENSEMBLES}
        scalars[name] = values
    return Ensembles(
        margins=margins, member=np.stack([a["member"] for a in arrays]), scalars=scalars
    )


def _read_record(folder: Path, audit: str, number: int) -> dict[str, Any]:
    path = _path(folder, number, "json")
    record = read_json(path)
    if record.get("audit") != audit:
        raise RecordError(f"{path} is of another audit; move it away or use another --out")
    missing = {"federation", "scores", "further", "margins", "erasure", "models", "seconds"}
    if missing := missing - record.keys():
        raise RecordError(f"{path}: {min(missing)!r} is missing; delete the file to redo it")
    return record


def _read_arrays(folder: Path, record: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    path = _path(folder, record["federation"], "safetensors")
    try:
        if files.digest(path) == record["margins"]:
            return safetensors.numpy.load_file(path)
        reason = "its content is not what was written"
    except (OSError, SafetensorError) as error:
        reason = str(error)
    raise RecordError(f"{path}: {reason}; delete {path.stem}.json beside it to redo it")


def _path(folder: Path, number: int, ending: str) -> Path:
    return folder / "members" / f"{number:03}.{ending}"
