"""Makes the plan: which rungs are possible here, with which method, and what each will take.

Nobody is asked for anything. What a rung takes is computed (`predicting.py`): a local step is one
model down and one state up, a round one each way for every retained client, and counting right
answers one down and some numbers up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from secede import state as states
from secede.erasure.backend import FederationBackend
from secede.erasure.documents.ledger_rows import Rung
from secede.erasure.documents.plan import Mean, Omitted, Plan, Step
from secede.erasure.documents.receipt import Setting
from secede.erasure.documents.request import Request
from secede.erasure.planning.cost_estimate import Size
from secede.erasure.planning.options import EraseOptions
from secede.erasure.types import check_name, format_time
from secede.errors import ConfigError, RequestError
from secede.state import State
from secede.unlearning import registry as methods
from secede.unlearning.create import create, settings_of
from secede.unlearning.method import Method
from secede.unlearning.registry import Entry, Situation

RUNGS: tuple[Rung, ...] = ("local-step", "server-side", "retraining")
# Their rounds take each update for itself, so that no other mean can stand in.
OWN_MEAN = ("orthogonal-descent", "rapid-retrain")
RETRAINING = ("retrain", "rapid-retrain")


def make(
    ground: FederationBackend,
    request: Request,
    *,
    model: State,
    retained: Sequence[str],
    options: EraseOptions,
    now: datetime,
) -> Plan:
    """Return the plan for `request`; with no rung possible it is refused."""
    situation = ground.situation(request.client)
    taken, omitted = _ladder(situation, options, ground.scenario)
    if not taken:
        raise RequestError(f"no rung is possible: {'; '.join(o.reason for o in omitted)}")
    measured = options.measure_at_leaver and situation.leaver_online
    size = Size(
        model=model,
        retained=len(retained),
        classes=ground.classes,
        measured=measured,
        network=lambda: ground.fresh_model(0),
        history=lambda: (
            ground.server(request.client, retained, model, options.leaver_timeout).history
        ),
    )
    steps = []
    for rung, entry, method in taken:
        rounds = {
            "local-step": options.max_rounds,
            "server-side": options.max_server_rounds,
            "retraining": ground.training_rounds,
        }[rung]
        up, down = size.predict(entry, method, rounds, whole=rung == "retraining")
        steps.append(
            Step(
                rung=rung,
                method=check_name(entry.name, "method"),
                settings=_settings(options.settings.get(entry.name, {})),
                parameters=parameters(method),
                needs=entry.needs.words(),
                max_rounds=rounds,
                min_rounds=_least(rung, rounds, options),
                upload_bytes=up,
                download_bytes=down,
            )
        )
    _check_mean(options.mean, steps, situation, len(retained))
    return Plan(
        request=request.digest(),
        federation=request.federation,
        client=request.client,
        model=states.digest(model),
        ladder=tuple(steps),
        omitted=tuple(omitted),
        retained=tuple(retained),
        mean=options.mean,
        margins=options.margins,
        guard=options.guard,
        quorum=options.quorum,
        client_timeout=options.client_timeout,
        measure_at_leaver=options.measure_at_leaver,
        leaver_timeout=options.leaver_timeout,
        wait_until=format_time(now + options.wait) if options.wait else None,
        backups_until=format_time(options.backups_until) if options.backups_until else None,
        single_updates=situation.single_updates,
        keep_unused_weights=options.keep_unused_weights,
    )


def rung_of(entry: Entry) -> Rung:
    """Return the rung that a method belongs to."""
    if entry.name in RETRAINING:
        return "retraining"
    return "local-step" if entry.needs.leaver_online else "server-side"


def parameters(method: Method) -> dict[str, Setting]:
    """Return every parameter of a method by name, as a receipt states it."""
    return {name: _plain(value) for name, value in settings_of(method).items()}


def planned(step: Step) -> Method:
    """Return a rung's method with the parameters of its plan, though defaults may have changed."""
    _, method = create(step.method, step.settings)
    now = parameters(method)
    changed = {key: value for key, value in step.parameters.items() if now.get(key) != value}
    if changed and changed.keys() <= now.keys():
        _, method = create(step.method, {**step.settings, **changed})
        now = parameters(method)
    if now != step.parameters:
        stated, absent = step.parameters, object()
        differing = [k for k in {**stated, **now} if stated.get(k, absent) != now.get(k, absent)]
        raise ConfigError(
            f"this erasure was planned with other parameters of {step.method} than this version "
            f"of secede has ({', '.join(differing)}): go on with the version that planned it"
        )
    return method


def _least(rung: Rung, rounds: int, options: EraseOptions) -> int:
    """Return the rounds to take however good the model is before them."""
    if rung == "retraining":
        return rounds
    return min(options.min_rounds, rounds) if rung == "local-step" else 0


def _ladder(
    situation: Situation, options: EraseOptions, scenario: str
) -> tuple[list[tuple[Rung, Entry, Method]], list[Omitted]]:
    named: dict[Rung, list[str]] = {rung: [] for rung in RUNGS}
    for name in options.methods:
        entry, _ = create(name, options.settings.get(name))
        methods.check_possible(entry, situation, scenario, comparing=False)
        named[rung_of(entry)].append(name)
    usual: dict[Rung, str] = {
        "local-step": "second-choice",
        "server-side": "federaser"
        if situation.history and situation.single_updates
        else "weight-negation",
        "retraining": "retrain",
    }
    taken, omitted = list[tuple[Rung, Entry, Method]](), list[Omitted]()
    for rung in RUNGS:
        if rung == "local-step" and options.untrusted_leaver:
            omitted.append(Omitted(rung=rung, reason="nothing is taken from the leaver here"))
            continue
        for name in named[rung] or [usual[rung]]:
            entry, method = create(name, options.settings.get(name))
            if lacking := situation.missing(entry.needs):
                reason = f"{name} needs {' and '.join(lacking)}, which is not there"
                omitted.append(Omitted(rung=rung, reason=reason))
            else:
                taken.append((rung, entry, method))
    if strangers := options.settings.keys() - {entry.name for _, entry, _ in taken}:
        raise ConfigError(f"settings for {min(strangers)!r}, which is not on the ladder")
    return taken, omitted


def _check_mean(mean: Mean, steps: Sequence[Step], situation: Situation, retained: int) -> None:
    if mean == "mean":
        return
    if not situation.single_updates:
        raise ConfigError(
            f"mean {mean!r} needs single updates, which secure aggregation hides: use 'mean'"
        )
    if retained < 3:
        raise ConfigError(
            f"mean {mean!r} needs three retained clients or more, there are {retained}"
        )
    for step in steps:
        if step.method in OWN_MEAN or ":" in step.method:
            raise ConfigError(
                f"method {step.method!r} has a mean of its own: mean {mean!r} cannot be used"
            )


def _settings(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}


def _plain(value: object) -> Setting:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)[:300] or "none"
