"""Read and check each file of a run folder; errors name file and line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from secede import files, strict
from secede.errors import DataError, RecordError
from secede.reports import names
from secede.reports.records.runs import Attack, Config, History, LocalStep, Point, Score
from secede.text import printable_lines

T = TypeVar("T")
_MEGABYTE = 1024**2
_LIMITS = {"result.json": 4 * _MEGABYTE, "curves.jsonl": 32 * _MEGABYTE}  # others have one
_MAX_METHODS = 200


@dataclass(frozen=True)
class ArmEnd:
    """Where an arm's curve ends."""

    rounds: int
    digest: str


@dataclass(frozen=True)
class Result:
    """A seed's `result.json`."""

    seed: int
    config_digest: str
    seconds: float
    arms: dict[str, ArmEnd]
    reports: dict[str, dict[str, object]]
    history: History | None
    membership: dict[str, dict[str, Attack]]
    failed: dict[str, str] = field(default_factory=dict)  # the reason, by destructive method


@dataclass(frozen=True)
class _Clients:
    count: int
    leaver: int


@dataclass(frozen=True)
class _Scenario:
    name: str


@dataclass(frozen=True)
class _Training:
    retrain_again: bool = False


@dataclass(frozen=True)
class _Config:
    name: str
    data: str
    model: str
    clients: _Clients
    scenario: _Scenario
    methods: Annotated[list[str], Field(min_length=1, max_length=_MAX_METHODS)]
    title: str | None = None
    limit: int | None = None
    training: _Training = _Training()


_RESULT = TypeAdapter(Result)
_CONFIG = TypeAdapter(_Config)
_POINT = TypeAdapter(Point)
_LOCAL_STEP = TypeAdapter(LocalStep)


def read_config(path: Path) -> Config:
    """Read a run's `config.json`."""
    raw = _json(path)
    config = _validated(_CONFIG, raw, str(path))
    if config.scenario.name not in names.MAIN_PROBE:
        expected = ", ".join(names.MAIN_PROBE)
        raise RecordError(f"{path}: scenario {config.scenario.name!r}, expected one of {expected}")
    read = Config(
        name=config.name,
        title=config.title or config.name,
        data=config.data,
        model=config.model,
        clients=config.clients.count,
        leaver=config.clients.leaver,
        scenario=config.scenario.name,
        limit=config.limit,
        methods=tuple(config.methods),
        settings=tuple(_flat(raw)),
        retrains_again=config.training.retrain_again,
    )
    if repeated := [arm for arm in read.arms if read.arms.count(arm) > 1]:
        raise RecordError(f"{path}: methods: arm {repeated[0]!r} is listed twice, expected once")
    return read


def read_curves(path: Path, arms: Sequence[str]) -> dict[str, tuple[Point, ...]]:
    """Read a finished seed's `curves.jsonl`: every arm's points in the order of rounds."""
    curves: dict[str, dict[int, Point]] = {}
    for number, line in enumerate(_text(path).splitlines(), start=1):
        where = f"{path}, line {number}"
        point = _point(line, where, arms)
        arm = curves.setdefault(point.arm, {})
        if point.round in arm:
            raise RecordError(f"{where}: {point.arm} round {point.round} is recorded twice")
        arm[point.round] = point
    return {arm: _in_order(arm, points, path) for arm, points in curves.items()}


def _point(line: str, where: str, arms: Sequence[str]) -> Point:
    try:
        parsed = strict.parse_json(line)
    except ValueError as error:
        raise RecordError(
            f"{where}: incomplete or not JSON ({strict.json_fault(error)}); expected one row per "
            "arm and round"
        ) from error
    point = _validated(_POINT, parsed, where)
    if point.arm not in arms:
        raise RecordError(f"{where}: arm {point.arm!r}, expected one of {', '.join(arms)}")
    if point.round < 0:
        raise RecordError(f"{where}: round {point.round}, expected 0 or more")
    for name, score in point.scores.items():
        _check_score(name, score, where)
    return _with_canaries(point, where)


def _with_canaries(point: Point, where: str) -> Point:
    """Return the point with its canaries' mean rank as a score beside the others."""
    if point.canaries is None:
        return point
    try:
        ranks = point.canaries.reading().ranks
    except DataError as error:
        raise RecordError(f"{where}: canaries: {error}") from error
    score = Score(ranks.mean, ranks.count)
    return replace(point, scores={**point.scores, names.CANARY_RANK: score})


def _check_score(name: str, score: Score, where: str) -> None:
    if names.is_proportion(name) and not 0 <= score.value <= 1:
        raise RecordError(f"{where}: {name} is {score.value}, expected a share from 0 to 1")
    if score.count < 1:
        raise RecordError(f"{where}: {name} counts {score.count} samples, expected 1 or more")


def _in_order(arm: str, points: Mapping[int, Point], path: Path) -> tuple[Point, ...]:
    missing = next((round for round in range(len(points)) if round not in points), None)
    if missing is not None:
        raise RecordError(f"{path}: {arm} has no row for round {missing}")
    return tuple(points[round] for round in range(len(points)))


def read_result(folder: Path) -> Result:
    """Read a finished seed's `result.json`."""
    path = folder / "result.json"
    result = _validated(_RESULT, _json(path), str(path))
    if folder.name != f"seed-{result.seed}":
        raise RecordError(f"{path}: states seed {result.seed}, but its folder is {folder.name}")
    for model, attacks in result.membership.items():
        for name, attack in attacks.items():
            _check_score(f"{model} {name} member_rate", attack.member_rate, str(path))
            _check_score(f"{model} {name} nonmember_accuracy", attack.nonmember_accuracy, str(path))
    return result


def read_local_step(result: Result, folder: Path) -> LocalStep | None:
    """Return how projected ascent's local step went; None if the seed has none."""
    report = result.reports.get(names.PROJECTED_ASCENT)
    if report is None:
        return None
    where = f"{folder / 'result.json'}: reports.{names.PROJECTED_ASCENT}"
    return _validated(_LOCAL_STEP, report, where)


def parse_model(key: str, arms: Sequence[str], folder: Path) -> tuple[str, int]:
    """Split a membership key such as `retrain@20` into arm and round."""
    arm, _, round = key.rpartition("@")
    if arm not in arms or not re.fullmatch("[0-9]{1,9}", round):
        raise RecordError(
            f"{folder / 'result.json'}: membership of {key!r}, expected an arm and a round "
            "as in 'retrain@20'"
        )
    return arm, int(round)


def _text(path: Path) -> str:
    try:
        return files.read_limited(path, _LIMITS.get(path.name, _MEGABYTE)).decode()
    except FileNotFoundError as error:
        raise RecordError(f"{path}: missing; a finished run has this file") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RecordError(f"{path}: cannot be read as text ({reason})") from error


def _json(path: Path) -> object:
    try:
        parsed = _printable(strict.parse_json(_text(path)))
    except json.JSONDecodeError as error:
        raise RecordError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from error
    except ValueError as error:
        raise RecordError(f"{path}: refused ({strict.json_fault(error)})") from error
    return parsed


def _printable(value: Any) -> Any:
    """Return a value whose texts a terminal or a page can show as they are."""
    if isinstance(value, str):
        return printable_lines(value)
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {printable_lines(key): _printable(item) for key, item in value.items()}
    return value


def read_object(path: Path) -> dict[str, object]:
    """Read a JSON object, such as a seed's `environment.json`."""
    parsed = _json(path)
    if not isinstance(parsed, dict):
        raise RecordError(f"{path}: contains a {type(parsed).__name__}, expected an object")
    return parsed


def _validated(adapter: TypeAdapter[T], raw: object, where: str) -> T:
    try:
        return adapter.validate_python(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the row"
        raise RecordError(f"{where}: {key}: {first['msg']}") from error


def _flat(raw: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    if not isinstance(raw, Mapping):
        yield prefix, raw if isinstance(raw, str) else json.dumps(raw)
        return
    for key, value in raw.items():
        yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
