"""What the options of an erasure ask for, checked before any work is done."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from secede.erasure.documents.plan import GuardLimits, Mean
from secede.erasure.planning import options
from secede.erasure.planning.options import EraseOptions
from secede.erasure.types import describe_errors
from secede.errors import ConfigError
from secede.unlearning.create import create


def of(
    *,
    methods: Sequence[str],
    settings: Sequence[str],
    distrust: bool,
    rounds: int | None,
    least_rounds: int | None,
    mean: str,
    answer_seconds: float | None,
    wait: timedelta,
    backups_until: datetime | None,
    nearest: float | None = None,
    quorum: float | None = None,
    retained_seconds: float | None = None,
    measure_at_leaver: bool = False,
    fading: bool = True,
) -> EraseOptions:
    """Return what the options ask for."""
    if backups_until is not None and backups_until.date() < datetime.now(UTC).date():
        raise ConfigError(f"--backups-until {backups_until:%Y-%m-%d} is past: give the last day")
    if mean not in ("mean", "trimmed", "median"):
        raise ConfigError(f"mean is {mean!r}, expected mean, trimmed or median")
    chosen_settings = _settings(settings)
    for name in dict.fromkeys([*methods, *chosen_settings]):
        create(name, chosen_settings.get(name))  # before any work is done
    chosen: Mean = mean  # type: ignore[assignment]  # checked above
    plain = EraseOptions()
    found = EraseOptions(
        methods=tuple(methods),
        settings=chosen_settings,
        untrusted_leaver=distrust,
        max_rounds=plain.max_rounds if rounds is None else rounds,
        max_server_rounds=plain.max_server_rounds if rounds is None else rounds,
        min_rounds=plain.min_rounds if least_rounds is None else least_rounds,
        mean=chosen,
        leaver_timeout=answer_seconds or plain.leaver_timeout,
        wait=wait,
        guard=plain.guard if nearest is None else _limits(nearest),
        quorum=plain.quorum if quorum is None else quorum,
        client_timeout=retained_seconds or plain.client_timeout,
        measure_at_leaver=measure_at_leaver,
        keep_unused_weights=not fading,
        backups_until=backups_until and backups_until.replace(tzinfo=UTC),
    )
    options.check_options(found)
    return found


def _limits(nearest: float) -> GuardLimits:
    try:
        return GuardLimits(
            min_distance=nearest,
            min_line_distance=min(nearest, GuardLimits().min_line_distance),
        )
    except ValidationError as error:
        raise ConfigError(
            f"--nearest {nearest} cannot be used: {describe_errors(error)}"
        ) from error


def _settings(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read METHOD.KEY=VALUE, values as in TOML."""
    found: dict[str, dict[str, Any]] = {}
    for text in given:
        name, equals, value = text.partition("=")
        method, dot, key = name.rpartition(".")
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value
        if not (equals and dot and method and key):
            raise ConfigError(f"--set {text!r} cannot be used: give METHOD.KEY=VALUE")
        found.setdefault(method, {})[key] = parsed
    return found
