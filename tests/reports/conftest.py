"""Synthetic run folders in the runner's format, with curves of a plausible shape."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from secede.reports.build import Report, write_report
from secede.reports.records.load import read_run
from secede.reports.records.runs import Run

PARAMETERS = {"mnist": 1_663_370, "emnist47": 1_682_351, "cifar10": 2_156_490}
BEST = {"mnist": 0.988, "emnist47": 0.852, "cifar10": 0.69}
FLOOR = {"mnist": 0.1, "emnist47": 0.02, "cifar10": 0.1}
PROBES = {
    "backdoor": "attack_success",
    "flipped": "flipped_accuracy",
    "clean": "holdout_accuracy",
    "exclusive": "exclusive_accuracy",
    "class": "class_accuracy",
}
PLANTED = ("backdoor", "flipped")
TRAINED = ("fedavg", "retrain", "retrain-again")
METHODS = ("projected-ascent", "fine-tune", "reference")
# Methods that the paper does not compare: how much of the leaver is left after a round, how far
# from the best clean accuracy it is then, and what the method asked for by itself.
OTHERS: dict[str, tuple[float, float, int]] = {
    "second-choice": (0.008, 0.001, 1),
    "gradient-ascent": (0.002, 0.12, 1),
    "virtual-teacher": (0.011, 0.002, 1),
    "weight-negation": (0.4, 0.02, 0),
    "orthogonal-descent": (0.09, 0.004, 20),
    "negated-update": (0.25, 0.005, 5),
    "own.methods:Forget": (0.012, 0.003, 4),
}
COMPARED = (*METHODS, *OTHERS)
LOCAL_STEP = {
    "steps": 12,
    "ended_by": "stop-distance",
    "distance_to_own": 1.51,
    "distance_to_reference": 1.3,
    "accuracy": 0.12,
    "loss": 5.1,
    "gradient_samples": 12288,
    "radius": 7.4,
    "projections": 0,
    "stop_distance": 1.48,
    "stop_accuracy": None,
    "searched": [{"stop_distance": 1.48, "steps": 12, "accuracy": 0.12}],
    "search_target": None,
}
HISTORY = {"bytes": 159_683_520, "rounds": 10, "privacy": "every single update lies at the server"}

Override = Callable[[int, str, int], dict[str, float]]
Canaries = Callable[[int, str, int], dict[str, Any]]


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Write a run folder below tmp_path/runs and return it."""

    def write(**settings: Any) -> Path:
        return write_synthetic(tmp_path / "runs", **settings)

    return write


@pytest.fixture
def make_run(write_run: Callable[..., Path]) -> Callable[..., Run]:
    """Write a run folder and read it back."""

    def make(**settings: Any) -> Run:
        return read_run(write_run(**settings))

    return make


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report on one run with three finished seeds and an unfinished one."""
    root = tmp_path_factory.mktemp("report")
    folder = write_synthetic(root / "runs", seeds=range(4))
    (folder / "seed-3" / "result.json").unlink()
    return write_report([root / "runs"], root / "out")


def write_synthetic(
    root: Path,
    *,
    scenario: str = "backdoor",
    data: str = "mnist",
    clients: int = 5,
    name: str | None = None,
    seeds: Iterable[int] = (0, 1, 2),
    rounds: int = 20,
    post_rounds: int = 10,
    limit: int | None = None,
    methods: Sequence[str] = METHODS,
    fixed: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
    override: Override | None = None,
    again: bool = False,
    canaries: Canaries | None = None,
) -> Path:
    """Write a run; `fixed[score][arm]` and `override(seed, arm, round)` replace its curves.

    With `again` it has a second retraining; `canaries(seed, arm, round)` counts the leaver's.
    """
    name = f"paper/{data}-{scenario}-{clients}" if name is None else name
    config = _config(name, scenario, data, clients, rounds, post_rounds, limit, methods)
    config["training"] |= {"retrain_again": True} if again else {}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    folder = root / f"{name.replace('/', '-')}-{digest[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for seed in seeds:
        rows = [
            _row(config, seed, arm, round, override or _taken_from(fixed or {}))
            for arm in (*TRAINED[: 3 if again else 2], *methods)
            for round in range((rounds if arm in TRAINED else post_rounds) + 1)
        ]
        if canaries is not None:
            for row in rows:
                row["canaries"] = canaries(seed, row["arm"], row["round"])
        write_seed(folder / f"seed-{seed}", config, seed, digest, rows)
    return folder


def _taken_from(fixed: Mapping[str, Mapping[str, Sequence[float]]]) -> Override:
    return lambda _, arm, round: {
        score: curves[arm][round] for score, curves in fixed.items() if arm in curves
    }


def write_seed(
    folder: Path, config: dict[str, Any], seed: int, digest: str, rows: list[dict[str, Any]]
) -> None:
    """Write one finished seed."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {"secede": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "device": "cpu"}
    (folder / "environment.json").write_text(
        json.dumps({**environment, "device_name": "x86_64", "threads": 2})
    )
    (folder / "curves.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "result.json").write_text(json.dumps(_result(config, seed, digest, rows)))


def _config(
    name: str,
    scenario: str,
    data: str,
    clients: int,
    rounds: int,
    post: int,
    limit: int | None,
    methods: Sequence[str],
) -> dict[str, Any]:
    title = f"{data.upper()}, {scenario}, N={clients}"
    planted = {"share": 0.66 if clients == 5 else 0.8} if scenario in PLANTED else {}
    return {
        "name": name,
        "title": title,
        "data": data,
        "limit": limit,
        "model": "paper-cnn",
        "device": "cpu",
        "clients": {
            "count": clients,
            "leaver": 0,
            "partition": "equal",
            "sizes": None,
            "alpha": None,
        },
        "scenario": {"name": scenario, **planted},
        "training": {
            "rounds": rounds,
            "epochs": 1,
            "learning_rate": 0.01,
            "momentum": 0.9,
            "batch_size": 128,
        },
        "methods": list(methods),
        "settings": {"projected-ascent": {"stop_distance": 1.48}},
        "situation": {
            "leaver_online": True,
            "history": False,
            "server_data": 0,
            "secure_aggregation": False,
        },
        "post_training": {"rounds": post},
    }


def _row(
    config: dict[str, Any], seed: int, arm: str, round: int, override: Override
) -> dict[str, Any]:
    values = {**_values(config, seed, arm, round), **override(seed, arm, round)}
    probe = PROBES[config["scenario"]["name"]]
    if probe in override(seed, arm, round) and "leaver_loss" not in override(seed, arm, round):
        values["leaver_loss"] = 1 + 2 * (1 - values[probe])  # follows the probe
    counts = {"leaver_accuracy": 12000, "leaver_loss": 12000, "attack_success": 8991}
    return {
        "arm": arm,
        "round": round,
        "scores": {
            key: {"value": value, "count": counts.get(key, 10000)} for key, value in values.items()
        },
        "cost": _cost(config, arm, round),
        "digest": hashlib.sha256(f"{seed}/{arm}/{round}".encode()).hexdigest(),
    }


def _values(config: dict[str, Any], seed: int, arm: str, round: int) -> dict[str, float]:
    scenario, data = config["scenario"]["name"], config["data"]
    draw = random.Random(f"{config['name']}/{seed}/{arm}/{round}")
    best, floor = BEST.get(data, 0.97), FLOOR.get(data, 0.1)
    slow = {"mnist": 0.75, "emnist47": 0.8, "cifar10": 0.88}.get(data, 0.75)
    fresh = best - (best - floor) * slow ** (2.2 * round)
    clean = {
        "fedavg": fresh,
        "retrain": fresh,
        "retrain-again": fresh,
        "fine-tune": best,
        "reference": best - 0.004 / (1 + round),
        "projected-ascent": best - (best - floor) * (0.82 if round == 0 else 0.03 / round),
        **{other: best - lost / (1 + round) for other, (_, lost, _) in OTHERS.items()},
    }[arm]
    trace = {
        "fedavg": 1 - math.exp(-0.5 * round),
        "retrain": 0.004,
        "retrain-again": 0.004,
        "fine-tune": 0.93 * 0.97**round,
        "reference": 0.9 * 0.93**round,
        "projected-ascent": 0.0 if round == 0 else 0.012 + 0.003 * math.sin(round),
        **{other: left * (1 + 0.03 * round) for other, (left, _, _) in OTHERS.items()},
    }[arm]
    clean = min(max(clean + draw.gauss(0, 0.0015), 0.0), 1.0)
    trace = min(max(trace + draw.gauss(0, 0.002), 0.0), 1.0)
    known = 0.1 if scenario in PLANTED else 2.2  # what is planted decides its loss, not skill
    loss = 0.03 + 0.05 * (1 - trace) + known * (1 - clean)
    scores = {"clean_accuracy": clean, "leaver_accuracy": 0.4 + 0.58 * trace, "leaver_loss": loss}
    if scenario == "backdoor":
        success = min(trace, 0.99) * clean
        return {
            **scores,
            "attack_success": success,
            "backdoor_accuracy": floor + (1 - floor) * success,
        }
    if scenario == "flipped":
        return {**scores, "flipped_accuracy": clean * (0.41 + 0.45 * trace)}
    if scenario in ("exclusive", "class"):
        classes = clean * trace
        scores["clean_accuracy"] = 0.8 * clean + 0.2 * classes
        return {**scores, PROBES[scenario]: classes, "others_accuracy": clean}
    return {**scores, "leaver_accuracy": clean, "holdout_accuracy": clean}


def _cost(config: dict[str, Any], arm: str, round: int) -> dict[str, Any]:
    size = 4 * PARAMETERS.get(config["data"], 1_000_000)
    clients = config["clients"]["count"]
    taking_part = clients if arm == "fedavg" else clients - 1
    own = 1 if arm == "projected-ascent" else OTHERS.get(arm, (0.0, 0.0, 0))[2]
    return {
        "rounds": round + (own if own > 1 else 0),
        "upload_bytes": size * (taking_part * round + own),
        "download_bytes": size * (taking_part * round + own),
        "gradient_samples": 60000 // clients * taking_part * round + own * 12 * 1024,
        "seconds": 6.2 * round + own,
    }


def _result(
    config: dict[str, Any], seed: int, digest: str, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    ends = {row["arm"]: {"rounds": row["round"], "digest": row["digest"]} for row in rows}
    membership = {}
    judged = config["methods"][0]
    trained = [(arm, None) for arm in TRAINED if arm in ends]
    for arm, round in (*trained, (judged, 1), (judged, 2), (judged, None)):
        at = ends[arm]["rounds"] if round is None else min(round, ends[arm]["rounds"])
        membership[f"{arm}@{at}"] = {
            "yeom": _attack(0.78 if arm == "fedavg" else 0.31, 0.42 if arm == "fedavg" else 0.7),
            "shokri": _attack(0.66 if arm == "fedavg" else 0.45, 0.5 if arm == "fedavg" else 0.53),
        }
    return {
        "seed": seed,
        "config_digest": digest,
        "seconds": 512.5,
        "arms": ends,
        "reports": {arm: _report(arm, seed) for arm in config["methods"] if arm != "fine-tune"},
        "history": HISTORY if "own.methods:Forget" in config["methods"] else None,
        "membership": membership,
    }


def _report(arm: str, seed: int) -> dict[str, Any]:
    if arm in OTHERS:
        return {"passes": 3 + seed, "strength": 0.25, "layers": ["conv1"], "why": None}
    return {**LOCAL_STEP, "steps": 12 + seed}


def _attack(member_rate: float, nonmember_accuracy: float) -> dict[str, Any]:
    return {
        "member_rate": {"value": member_rate, "count": 12000},
        "nonmember_accuracy": {"value": nonmember_accuracy, "count": 10000},
        "advantage": member_rate - (1 - nonmember_accuracy),
    }
