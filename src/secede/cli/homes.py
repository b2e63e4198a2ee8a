"""Found a federation, erase from it, close requests."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console

from secede.cli.progress import telling
from secede.cli.trust import about
from secede.erasure import request as requests
from secede.erasure import workflow
from secede.erasure.canonical import read
from secede.erasure.fields import faults
from secede.erasure.home import Home
from secede.erasure.lineage import Lineage
from secede.erasure.plan import Limits, Mean
from secede.erasure.planning import Wishes
from secede.erasure.workflow import Outcome
from secede.errors import ConfigError, RecordError, RequestError, RolledBackError, StoppedError
from secede.experiments.config import Config
from secede.experiments.founding import found
from secede.experiments.simulated import Simulated
from secede.unlearning.create import create
from secede.unlearning.methods import METHODS


def federation_init(
    path: Path, config: Config, *, name: str, seed: int, search: Path | None, as_json: bool
) -> None:
    """Train a simulated federation and set up its home."""
    home = found(path, config, name=name, seed=seed, search=search, now=datetime.now(UTC), tell=say)
    federation, model = home.federation, serving(home)
    names = [client.name for client in federation.clients]
    if as_json:
        told = {"home": str(path), "federation": name, "model": model, "clients": names}
        print(json.dumps(told, indent=2))
        return
    print(f"{path}  home of federation {name}: {', '.join(names)}")
    print(f"model {model} serves")
    print(f"{home.keys}  everybody's public keys; the server's private one is {path}/server.key")
    print(f"{path / 'sites'}  what would lie at the clients, their private keys among it")


def name_of(config: Config) -> str:
    """Return what a federation is called after its experiment."""
    return re.sub(r"[^A-Za-z0-9._:-]+", "-", config.name)[:64] or "federation"


def serving(home: Home) -> str:
    """Return the digest of the model that serves."""
    run = home.federation.run
    with Lineage(home.registry, read_only=True) as registry:
        model = registry.serving(run)
    if model is None:
        raise RecordError(f"run {run!r} has no serving model in {home.registry}")
    return model.digest


def erase(
    path: Path, folder: Path, *, wishes: Wishes, gone: bool, dry_run: bool, as_json: bool
) -> None:
    """Carry a signed request to its end; the same command again goes on after a kill."""
    home, now = Home(folder), datetime.now(UTC)
    data, name = read(path, requests.LIMIT), home.federation.name
    with about(path):
        asked = requests.verify(data, home.client_keys(), federation=name)
    absent = (asked.client,) if gone else ()
    if dry_run:
        plan = workflow.foresee(home, Simulated(home, gone=absent), asked, wishes=wishes, now=now)
        if as_json:
            print(plan.model_dump_json(indent=2))
        else:
            Console().print(plan.show())
        return
    key = home.server_key()  # before any work is done
    entry = workflow.receive(home, data, now)
    say(f"request {entry.id} of {entry.client}, due {entry.due:%Y-%m-%d}")
    say(f"acknowledgement for {entry.client}: {home.acknowledgement(entry.digest)}")
    try:
        with telling(say) as tell:
            outcome = workflow.erase(
                home,
                Simulated(home, gone=absent),
                entry.id,
                key=key,
                clock=lambda: datetime.now(UTC),
                wishes=wishes,
                tell=tell,
            )
    except KeyboardInterrupt:
        raise StoppedError("interrupted; the same command goes on from here") from None
    _tell(outcome, as_json=as_json)


def close(folder: Path, number: int, reason: str, *, as_json: bool) -> None:
    """End an open request without erasing."""
    home = Home(folder)
    outcome = workflow.close(
        home,
        Simulated(home),
        number,
        reason,
        key=home.server_key(),
        clock=lambda: datetime.now(UTC),
    )
    if as_json:
        told = {"request": number, "client": outcome.client, "state": outcome.state}
        print(json.dumps({**told, "reason": outcome.reason}, indent=2))
        return
    print(f"request {number} of {outcome.client} is {outcome.state}: {outcome.reason}")


def wishes_of(
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
) -> Wishes:
    """Return what the options ask for."""
    if backups_until is not None and backups_until.date() < datetime.now(UTC).date():
        raise ConfigError(f"--backups-until {backups_until:%Y-%m-%d} is past: give the last day")
    if mean not in ("mean", "trimmed", "median"):
        raise ConfigError(f"mean is {mean!r}, expected mean, trimmed or median")
    for name in methods:
        entry = METHODS.get(name)
        if entry is not None and not entry.forgets:
            raise ConfigError(
                f"method {name!r} hardly forgets: it is there for comparison in `secede run`; take "
                f"one of {', '.join(n for n, other in METHODS.items() if other.forgets)}"
            )
    chosen_settings = _settings(settings)
    for name in dict.fromkeys([*methods, *chosen_settings]):
        create(name, chosen_settings.get(name))  # before any work is done
    chosen: Mean = mean  # type: ignore[assignment]  # checked above
    plain = Wishes()
    return Wishes(
        methods=tuple(methods),
        settings=chosen_settings,
        distrust=distrust,
        rounds=plain.rounds if rounds is None else rounds,
        server_rounds=plain.server_rounds if rounds is None else rounds,
        least_rounds=plain.least_rounds if least_rounds is None else least_rounds,
        mean=chosen,
        answer_seconds=answer_seconds or plain.answer_seconds,
        wait=wait,
        guard=plain.guard if nearest is None else _limits(nearest),
        quorum=plain.quorum if quorum is None else quorum,
        retained_seconds=retained_seconds or plain.retained_seconds,
        measure_at_leaver=measure_at_leaver,
        backups_until=backups_until and backups_until.replace(tzinfo=UTC),
    )


def _limits(nearest: float) -> Limits:
    try:
        return Limits(nearest=nearest, nearest_line=min(nearest, Limits().nearest_line))
    except ValidationError as error:
        raise ConfigError(f"--nearest {nearest} cannot be used: {faults(error)}") from error


def say(line: str) -> None:
    """Tell how it goes."""
    print(line, file=sys.stderr, flush=True)


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


def _tell(outcome: Outcome, *, as_json: bool) -> None:
    if as_json:
        told = asdict(outcome)
        for key in ("receipt", "page"):
            told[key] = told[key] and str(told[key])
        told["failures"] = [
            {k: f[k] for k in ("rung", "method", "outcome", "reason")} for f in outcome.failures
        ]
        print(json.dumps(told, indent=2))
    if outcome.state == "refused":
        raise RequestError(f"request {outcome.request} is refused: {outcome.reason}")
    if outcome.state == "rolled-back":
        raise RolledBackError(f"request {outcome.request} is rolled back: {outcome.reason}")
    if as_json:
        return
    print(f"{outcome.client} is erased: {outcome.method} ({outcome.rung})")
    print(f"model {outcome.model} serves")
    print(f"receipt {outcome.receipt}")
    print(f"page {outcome.page}")
