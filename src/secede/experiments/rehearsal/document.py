"""The file of a rehearsal, `rehearsal.json`: what was measured, and the method that it names."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from secede import files
from secede.errors import ConfigError
from secede.experiments.rehearsal.rule import RETRAIN, RULE, Choice, Measured, Scores
from secede.experiments.rehearsal.twin import HomeFacts, Serving, Twin, serving_model

_LIMIT_BYTES = 1 << 20


class Rehearsal(BaseModel):
    """A finished rehearsal; `choice` is None where it could not say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    config: dict[str, Any]
    clients: int
    seeds: int
    max_rounds: int
    home: HomeFacts | None
    rule: str
    choice: str | None
    reason: str
    settings: dict[str, Any]  # of the method that is named
    accuracy_spread: float
    loss_spread: float
    reference: dict[str, dict[str, Any]]  # the model before, and retrained twice
    candidates: dict[str, dict[str, Any]]
    failed: dict[str, str]

    def check_fits(self, home: Path, leaver: str | None = None) -> None:
        """Raise unless a home is what was rehearsed, as far as file and home can tell.

        A live federation that nobody was erased from yet says nothing. A command that is repeated
        after the erased model came into service still fits.
        """
        if not (home / "federation.json").exists():
            return
        there = serving_model(home)
        if self.clients not in there.counts:
            raise ConfigError(
                f"the rehearsal was of {self.clients} clients, and the model in {home} carries "
                f"{len(there.clients)}: rehearse again, with --home {home}"
            )
        if self.home is not None:
            _check_same(self.home, there, home, leaver)


def _check_same(rehearsed: HomeFacts, there: Serving, home: Path, leaver: str | None) -> None:
    is_done = rehearsed.leaver not in there.clients
    serves = rehearsed.model == there.model or is_done
    if rehearsed.federation != there.federation or not serves:
        raise ConfigError(
            f"the rehearsal was of model {rehearsed.model[:12]} of federation "
            f"{rehearsed.federation!r}, and in {home} model {there.model[:12]} of "
            f"{there.federation!r} serves: rehearse again, with --home {home}"
        )
    if leaver not in (None, rehearsed.leaver):
        raise ConfigError(
            f"the rehearsal was of {rehearsed.leaver!r} leaving, and {leaver!r} leaves: rehearse "
            f"again, with --client {leaver}"
        )


def describe(twin: Twin, seeds: int, measured: Measured, choice: Choice) -> Rehearsal:
    """Return a rehearsal's document."""
    candidates = {
        name: {
            **_row(scores),
            "verdict": choice.judgements[name].verdict,
            "reason": choice.judgements[name].reason,
        }
        for name, scores in measured.candidates.items()
    }
    return Rehearsal(
        config=twin.config.resolved(),
        clients=twin.config.clients.count,
        seeds=seeds,
        max_rounds=twin.max_rounds,
        home=twin.home,
        rule=RULE,
        choice=choice.method,
        reason=choice.reason,
        settings=twin.config.settings.get(choice.method or RETRAIN, {}),
        accuracy_spread=measured.accuracy_spread,
        loss_spread=measured.loss_spread,
        reference={
            "before": _row(measured.before),
            "retrained": _row(measured.retrained),
            "retrained again": _row(measured.again),
        },
        candidates=candidates,
        failed=dict(measured.failed),
    )


def _row(scores: Scores) -> dict[str, Any]:
    reading = scores.canaries
    return {**asdict(scores), "canaries": {**asdict(reading), "p_value": reading.p_value}}


def save_rehearsal(rehearsal: Rehearsal, path: Path) -> None:
    """Write a rehearsal in one step."""
    files.write_text(path, rehearsal.model_dump_json(indent=2) + "\n")


def load_rehearsal(path: Path) -> Rehearsal:
    """Read a rehearsal; ConfigError if the file is none."""
    try:
        return Rehearsal.model_validate_json(files.read_limited(path, _LIMIT_BYTES))
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"
    except OSError as error:
        reason = error.strerror or str(error)
    raise ConfigError(
        f"{path} is no rehearsal ({reason}): give the file that `secede rehearse` wrote"
    )
