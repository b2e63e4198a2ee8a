"""Planning: which rungs are possible here, with which method, and what each will cost.

No client is asked. The cost of a rung is computed from the model's size: a local step is one model
down and one state up, a round one each way for every retained client, and counting right answers
one down and some numbers up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from pydantic import ValidationError
from torch import nn

from secede import state as states
from secede.erasure.backend import FederationBackend
from secede.erasure.documents import CanaryRule, Mean, Omitted, Plan, Request, Step
from secede.erasure.planning.options import EraseOptions, parameters
from secede.erasure.storage import Home, Model, ModelRegistry
from secede.erasure.types import Rung, check_name, describe_errors, format_time
from secede.errors import ConfigError, RecordError, RequestError
from secede.state import State
from secede.text import short_digest
from secede.unlearning import (
    Entry,
    FedEraser,
    Method,
    OrthogonalDescent,
    Rewind,
    Server,
    Situation,
    create,
    prunable_layers,
)
from secede.unlearning import registry as methods

LOOKS = 3  # at the canaries on a rung: when it is good enough, after its last round, after twice
RUNGS: tuple[Rung, ...] = ("local-step", "server-side", "retraining")
# Their rounds take each update by itself, so that no other mean can stand in.
OWN_MEAN = ("orthogonal-descent", "rapid-retrain")
RETRAINING = ("retrain", "rapid-retrain")


def plan_for(
    home: Home,
    backend: FederationBackend,
    registry: ModelRegistry,
    request: Request,
    options: EraseOptions,
    now: datetime,
    due: datetime,
) -> Plan:
    """Return the plan for the model that serves; RequestError if the request cannot be done.

    Nobody is waited for beyond the day that the request is due.
    """
    serving = registry.serving_model(home.federation.run)
    _check_request(request, registry, serving)
    retained = tuple(name for name in serving.clients if name != request.client)
    if not retained:
        raise RequestError(f"{request.client!r} is the only client that the model carries")
    model, _ = states.load(home.model_path(serving.digest))
    options = replace(options, wait=max(timedelta(0), min(options.wait, due - now)))
    try:
        return _plan(backend, request, model=model, retained=retained, options=options, now=now)
    except ValidationError as error:
        raise ConfigError(
            f"no plan can be made of these options: {describe_errors(error)}"
        ) from error


def _check_request(request: Request, registry: ModelRegistry, serving: Model) -> None:
    """Raise unless the request names a model of the run, and the serving one has its client."""
    digests = {model.digest for model in registry.models() if model.run == serving.run}
    if request.model not in digests:
        raise RequestError(f"model {short_digest(request.model)} is not one of this federation's")
    if request.client not in serving.clients:
        erased = request.client in registry.erased_clients()
        past = "was erased from it" if erased else "never was in it"
        raise RequestError(
            f"the serving model {short_digest(serving.digest)} does not carry {request.client!r}: "
            f"it {past}"
        )


def _plan(
    backend: FederationBackend,
    request: Request,
    *,
    model: State,
    retained: Sequence[str],
    options: EraseOptions,
    now: datetime,
) -> Plan:
    situation = backend.situation(request.client)
    rungs, omitted = _ladder(situation, options, backend.scenario)
    if not rungs:
        raise RequestError(f"no rung is possible: {'; '.join(o.reason for o in omitted)}")
    estimate = CostEstimate(
        model=model,
        retained=len(retained),
        classes=backend.classes,
        measure_at_leaver=options.measure_at_leaver and situation.leaver_online,
        network=lambda: backend.fresh_model(0),
        server=lambda: backend.server(request.client, retained, model, options.leaver_timeout),
    )
    ladder = tuple(_step(rung, backend, options, estimate) for rung in rungs)
    if fault := fault_of_mean(options.mean, ladder, len(retained), situation.single_updates):
        raise ConfigError(fault)
    return Plan(
        request=request.digest(),
        federation=request.federation,
        client=request.client,
        model=states.digest(model),
        ladder=ladder,
        omitted=tuple(omitted),
        retained=tuple(retained),
        mean=options.mean,
        margins=options.margins,
        guard=options.guard,
        quorum=options.quorum,
        client_timeout=options.client_timeout,
        measure_at_leaver=options.measure_at_leaver,
        canary_rule=_canary_rule(backend, request.client, options, ladder),
        leaver_timeout=options.leaver_timeout,
        wait_until=format_time(now + options.wait) if options.wait else None,
        backups_until=format_time(options.backups_until) if options.backups_until else None,
        single_updates=situation.single_updates,
        keep_unused_weights=options.keep_unused_weights,
    )


def _canary_rule(
    backend: FederationBackend, client: str, options: EraseOptions, ladder: Sequence[Step]
) -> CanaryRule | None:
    """Return the rule of the canary test; None where nobody is asked, or none were planted."""
    if not options.measure_at_leaver or backend.scope(client).canaries is None:
        return None
    rungs = sum(step.rung != "retraining" for step in ladder)
    return CanaryRule(looks=LOOKS * rungs + 1)


class _Rung(NamedTuple):
    """A rung that is possible, and the method that it is taken with."""

    rung: Rung
    entry: Entry
    method: Method


def _step(
    rung: _Rung, backend: FederationBackend, options: EraseOptions, estimate: CostEstimate
) -> Step:
    """Return a rung as the plan has it."""
    max_rounds = {
        "local-step": options.max_rounds,
        "server-side": options.max_server_rounds,
        "retraining": backend.training_rounds,
    }[rung.rung]
    # However good the model is before, so many rounds are taken.
    min_rounds = {
        "local-step": min(options.min_rounds, max_rounds),
        "server-side": 0,
        "retraining": max_rounds,
    }[rung.rung]
    upload_bytes, download_bytes = estimate.rung_bytes(
        rung.entry, rung.method, max_rounds, counted_once=rung.rung == "retraining"
    )
    given = options.settings.get(rung.entry.name, {})
    return Step(
        rung=rung.rung,
        method=check_name(rung.entry.name, "method"),
        settings={name: tuple(v) if isinstance(v, list) else v for name, v in given.items()},
        parameters=parameters(rung.method),
        needs=rung.entry.needs.words(),
        max_rounds=max_rounds,
        min_rounds=min_rounds,
        upload_bytes=upload_bytes,
        download_bytes=download_bytes,
    )


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """What decides how many bytes travel.

    A method that stops on its own is estimated at its most, a user's own method as the plainest
    one.
    """

    model: State
    retained: int
    classes: int
    measure_at_leaver: bool  # it counts, too, in the end
    network: Callable[[], nn.Module]
    server: Callable[[], Server]

    def rung_bytes(
        self, entry: Entry, method: Method, rounds: int, *, counted_once: bool
    ) -> tuple[int, int]:
        """Return the bytes up and down for the start and all of a rung's rounds.

        With `counted_once` clients count after the last round alone.
        """
        state = states.size_bytes(self.model)
        up, down = self._start(entry, method)
        models = rounds * self.retained * state
        compared = self.retained * (1 if counted_once else rounds + 1)
        alone = self.retained + 2 * self.measure_at_leaver
        counts = (2 * alone + 4 * compared) * 8 * self.classes
        return up + models + counts, down + models + (alone + compared) * state

    def _start(self, entry: Entry, method: Method) -> tuple[int, int]:
        """Return the bytes up and down before the first round."""
        state, everyone = states.size_bytes(self.model), self.retained + 1
        if isinstance(method, FedEraser | Rewind):
            both = self._replays(method) * self.retained * state
            return both, both
        if isinstance(method, OrthogonalDescent):
            asked = method.rounds * everyone
            return asked * self._gradient(), asked * state
        if entry.name == "class-pruning":
            return everyone * self._activations(), everyone * state
        asked = {"leaver": 1, "everyone": everyone, "server": 0}[entry.runs_at]
        return asked * state, asked * state

    def _replays(self, method: FedEraser | Rewind) -> int:
        """Return how many exchanges the start takes: a replay's first round takes none."""
        try:
            server = self.server()
            if isinstance(method, Rewind):
                return method.rounds_to_train(server)
            rounds = () if server.history is None else server.history.rounds
        except (ConfigError, RecordError):  # it is damaged, and the rung will say so
            return 0
        return max(0, sum((number - 1) % method.interval == 0 for number in rounds) - 1)

    def _gradient(self) -> int:
        """Return the size of a gradient: of all that training moves."""
        movable = [n for n, p in self.network().named_parameters() if p.requires_grad]
        return states.size_bytes({name: self.model[name] for name in movable if name in self.model})

    def _activations(self) -> int:
        """Return the size of sums by class and channel, without rows of normalisation layers."""
        network = self.network()
        channels = [
            len(network.get_submodule(n).get_parameter("weight")) for n in prunable_layers(network)
        ]
        return 4 * self.classes * (sum(channels) + 1)


def rung_of(entry: Entry) -> Rung:
    """Return the rung that a method belongs to."""
    if entry.name in RETRAINING:
        return "retraining"
    return "local-step" if entry.needs.leaver_online else "server-side"


def _ladder(
    situation: Situation, options: EraseOptions, scenario: str
) -> tuple[list[_Rung], list[Omitted]]:
    """Return the rungs that are possible, in order, and why others are not."""
    chosen: dict[Rung, list[str]] = {rung: [] for rung in RUNGS}
    for name in options.methods:
        entry, _ = create(name, options.settings.get(name))
        methods.check_possible(entry, situation, scenario, comparing=False)
        chosen[rung_of(entry)].append(name)
    has_updates = situation.history and situation.single_updates
    usual: dict[Rung, str] = {
        "local-step": "second-choice",
        "server-side": "federaser" if has_updates else "weight-negation",
        "retraining": "retrain",
    }
    rungs, omitted = list[_Rung](), list[Omitted]()
    first, reason = _first_rung(options, chosen)
    for rung in RUNGS:
        if RUNGS.index(rung) < RUNGS.index(first):
            omitted.append(Omitted(rung=rung, reason=reason))
            continue
        if rung == "local-step" and options.untrusted_leaver:
            omitted.append(Omitted(rung=rung, reason="nothing is taken from the leaver here"))
            continue
        for name in chosen[rung] or [usual[rung]]:
            entry, method = create(name, options.settings.get(name))
            if lacking := situation.missing(entry.needs):
                reason = f"{name} needs {' and '.join(lacking)}, which is not there"
                omitted.append(Omitted(rung=rung, reason=reason))
            else:
                rungs.append(_Rung(rung, entry, method))
    if unused := options.settings.keys() - {rung.entry.name for rung in rungs}:
        raise ConfigError(f"settings for {min(unused)!r}, which is not on the ladder")
    return rungs, omitted


def _first_rung(options: EraseOptions, chosen: Mapping[Rung, Sequence[str]]) -> tuple[Rung, str]:
    """Return the rung to begin with, and why none before it is taken.

    Whoever asks for a method does not want another one to run, and perhaps serve, before it.
    """
    asked = [rung for rung in RUNGS if chosen[rung]]
    if options.from_rung is None:
        first = asked[0] if asked else RUNGS[0]
        return first, f"{' and '.join(chosen[first])} was asked for, which comes later"
    if asked and RUNGS.index(asked[0]) < RUNGS.index(options.from_rung):
        raise ConfigError(
            f"method {chosen[asked[0]][0]!r} belongs to the {asked[0]} rung, and the erasure is to "
            f"begin with {options.from_rung}: leave out one of the two"
        )
    return options.from_rung, f"the erasure was asked to begin with {options.from_rung}"


def fault_of_mean(
    mean: Mean, steps: Sequence[Step], retained: int, single_updates: bool
) -> str | None:
    """Return why updates cannot be joined by `mean` on this ladder; None if they can."""
    if mean == "mean":
        return None
    if not single_updates:
        return (
            f"--aggregation {mean} needs single updates, which secure aggregation hides: use mean"
        )
    if retained < 3:
        return f"--aggregation {mean} needs three retained clients or more, there are {retained}"
    for step in steps:
        if step.method in OWN_MEAN or ":" in step.method:
            return (
                f"method {step.method!r} has a mean of its own: --aggregation {mean} cannot be used"
            )
    return None
