"""Found a federation, erase from it, close requests."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from secede.cli.progress import repeating_when_quiet
from secede.cli.requests import signed
from secede.cli.trust import about
from secede.erasure.documents.request import verify_request
from secede.erasure.planning.options import EraseOptions
from secede.erasure.storage.home import Home
from secede.erasure.storage.model_registry import ModelRegistry
from secede.erasure.workflow import erase as workflow
from secede.erasure.workflow.erase import Outcome
from secede.errors import RecordError, RequestError, RolledBackError, StoppedError
from secede.experiments.config import Config
from secede.simulation.backend import Recipe, SimulatedBackend
from secede.simulation.new_federation import create_federation


def federation_init(
    path: Path, config: Config, *, name: str, seed: int, search: Path | None, as_json: bool
) -> None:
    """Train a simulated federation and set up its home."""
    now, there_before = datetime.now(UTC), path.exists()
    try:
        home = create_federation(path, config, name=name, seed=seed, search=search, now=now)
    except KeyboardInterrupt:
        raise StoppedError(_given_up(path, there_before=there_before)) from None
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
    if config.settings:
        print("The config's settings of methods are for `secede run`; an erasure has --set.")


def _given_up(path: Path, *, there_before: bool) -> str:
    """Take away what was begun, unless the folder is older, and say so."""
    if (path / "federation.json").exists():
        return f"interrupted when all was done: {path} is a federation's home"
    if not there_before:
        shutil.rmtree(path, ignore_errors=True)
    left = f"what lies in {path} is no home" if path.exists() else f"nothing was written to {path}"
    return f"interrupted: {left}; the same command begins anew"


def name_of(config: Config) -> str:
    """Return what a federation is called after its experiment."""
    return re.sub(r"[^A-Za-z0-9._:-]+", "-", config.name)[:64] or "federation"


def serving(home: Home) -> str:
    """Return the digest of the model that serves."""
    run = home.federation.run
    with ModelRegistry(home.registry, read_only=True) as registry:
        model = registry.serving(run)
    if model is None:
        raise RecordError(f"run {run!r} has no serving model in {home.registry}")
    return model.digest


def erase(
    path: Path, folder: Path, *, wishes: EraseOptions, gone: bool, dry_run: bool, as_json: bool
) -> None:
    """Carry a signed request to its end; the same command again goes on after a kill."""
    home, now = Home(folder), datetime.now(UTC)
    data, name = signed(path), home.federation.name
    with about(path):
        asked = verify_request(data, home.client_keys(), federation=name)
    absent = (asked.client,) if gone else ()
    if dry_run:
        plan = workflow.plan(
            home, SimulatedBackend(home, gone=absent), asked, options=wishes, now=now
        )
        if as_json:
            print(plan.model_dump_json(indent=2))
        else:
            Console().print(plan.show())
        return
    key = home.server_key()  # before any work is done
    Recipe.load(home)
    entry = workflow.receive(home, data, now)
    say(f"request {entry.id} of {entry.client}, due {entry.due:%Y-%m-%d}")
    say(f"acknowledgement for {entry.client}: {home.acknowledgement(entry.digest)}")
    try:
        with repeating_when_quiet(say):
            outcome = workflow.erase(
                home,
                SimulatedBackend(home, gone=absent),
                entry.id,
                key=key,
                clock=lambda: datetime.now(UTC),
                options=wishes,
            )
    except KeyboardInterrupt:
        raise StoppedError("interrupted; the same command goes on from here") from None
    _tell(outcome, as_json=as_json)


def close(folder: Path, number: int, reason: str, *, as_json: bool) -> None:
    """End an open request without erasing."""
    home = Home(folder)
    outcome = workflow.close(
        home,
        SimulatedBackend(home),
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


def say(line: str) -> None:
    """Tell how it goes."""
    print(line, file=sys.stderr, flush=True)


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
