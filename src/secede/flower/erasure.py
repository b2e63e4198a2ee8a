"""Erase a client from a live federation: the server's one call.

The same workflow as the simulator's, in the store's home folder. Killed at any time, the same call
goes on from the last transition; it needs the store and the client's own disk and nothing else, so
it may come months after the training, in another run.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from pydantic import Field, ValidationError

from secede import files
from secede.erasure import (
    MAX_RECEIPT_BYTES,
    PLANNED,
    PROMOTED,
    RECEIVED,
    SERVER,
    TRIGGERS,
    Document,
    Entry,
    Home,
    Journal,
    Plan,
    Request,
    describe_errors,
    format_time,
    keep_signature,
    new_request,
    options_from_json,
    read_bounded,
    receive,
    sign_request,
    verify_request,
)
from secede.erasure import EraseOptions as EraseOptions
from secede.erasure import Outcome as Outcome
from secede.erasure import erase as run_erasure
from secede.erasure import plan as make_plan
from secede.errors import ConfigError, GuardError, RequestError
from secede.flower._flwr import LegacyStrategy
from secede.flower.backend import FlowerBackend
from secede.flower.protocol import messages
from secede.flower.protocol.nodes import Node, online_nodes, select
from secede.flower.rounds import Recording, Transport, prepared, supported_strategies
from secede.flower.secagg import SecAggSettings, Secure, SecureRecording, legacy_api
from secede.flower.storage import Store, register
from secede.unlearning import LIVE, METHODS, create

logger = logging.getLogger(__name__)

_DELETION_TIMEOUT = 60.0  # seconds for an erased client to report that it deleted its updates


def erase(
    grid: Grid,
    strategy: Strategy | LegacyStrategy,
    store: Store,
    *,
    leaver: str,
    request: bytes | Path | None = None,
    trigger: str | None = None,
    options: EraseOptions | None = None,
    leaver_gone: bool = False,
    round_timeout: float = 3600.0,
    online_timeout: float = 120.0,
    passes: int = 1,
    seed: int = 0,
    pause: float = 1.0,
    secure: Secure | None = None,
) -> Outcome:
    """Erase the one client that `leaver` names, as name:NAME, key:SHA-256 or node:ID.

    `request` is the client's signed request. Without it the operator asks for the client and gives
    the reason as `trigger`; not for a client whose public key lies in the home's `keys/`. Erasing
    waits for a leaver that is offline for `options.leaver_timeout` seconds, for one that is
    `leaver_gone` not at all; `online_timeout` bounds the wait for other clients, `round_timeout`
    each round. `passes` is how often a client goes over its samples in a round, for the costs. The
    plan is logged before any client is asked.

    Under secure aggregation `strategy` is the LegacyContext's, and rounds run in the workflow
    `secure`, so that no other client's update is seen.
    """
    grid, options = prepared(grid), options or EraseOptions()
    mean = _checked_mean(strategy, secure, store, options)
    # The lock keeps out any training between what is read and done.
    with files.private(), store.lock(purpose="an erasure") as lock:
        home = register.register_federation(store)
        client = find_leaver(grid, store, leaver)
        logger.info(f"leaver {leaver} is client {client.name!r} ({client.selectors()})")
        asked = not (leaver_gone or options.untrusted_leaver)
        _check_enough(mean, store, client.name, asked=asked)
        entry, by_operator = _open_request(store, home, client.name, request, trigger)
        transport = Transport(grid=grid, pause=pause, now=store.clock)
        backend = FlowerBackend(
            transport,
            mean,
            store,
            round_timeout=round_timeout,
            online_timeout=online_timeout,
            passes=passes,
            seed=seed,
            by_operator=by_operator,
            leaver_gone=leaver_gone,
        )
        with Journal(home.journal, read_only=True) as journal:
            backend.name_request(journal.signed_request(entry.id))
        already = entry.state == PROMOTED
        if not already:
            logger.info(f"request {entry.id} of {entry.client}, due {entry.due:%Y-%m-%d}")
        if entry.state in (RECEIVED, PLANNED) and asked:
            _log_if_offline(transport, client)
        outcome = run_erasure(
            home,
            backend,
            entry.id,
            key=home.server_key(),
            clock=store.clock,
            options=options,
            lock=lock,
        )
    logger.info(_earlier_result(outcome, home) if already else _result(outcome, home))
    if outcome.model is not None:
        _ask_to_delete_updates(
            transport, store, client, entry, min(round_timeout, _DELETION_TIMEOUT)
        )
    return outcome


def plan(
    grid: Grid,
    strategy: Strategy | LegacyStrategy,
    store: Store,
    *,
    leaver: str,
    options: EraseOptions | None = None,
    leaver_gone: bool = False,
    secure: Secure | None = None,
) -> Plan:
    """Return the plan of `erase` without asking any client."""
    grid, options = prepared(grid), options or EraseOptions()
    mean = _checked_mean(strategy, secure, store, options)
    with files.private(), store.lock(purpose="planning an erasure"):
        home = register.register_federation(store)
        client = find_leaver(grid, store, leaver)
        asked = not (leaver_gone or options.untrusted_leaver)
        _check_enough(mean, store, client.name, asked=asked)
        backend = FlowerBackend(Transport(grid=grid), mean, store, leaver_gone=leaver_gone)
        with Journal(home.journal) as journal:
            if entry := _existing_request(store, journal, client.name):
                request = journal.request(entry.id)
            else:
                request = _new_request(store, client.name, "other")
        return make_plan(home, backend, request, options=options, now=store.clock())


def find_leaver(grid: Grid, store: Store, leaver: str) -> Node:
    """Return the one client that `leaver` names, among those recorded and those online."""
    recorded = store.clients()
    strangers = [
        node for node in online_nodes(grid) if not any(node.same(other) for other in recorded)
    ]
    client = select(leaver, (*recorded, *strangers))
    if client in strangers:
        raise ConfigError(
            f"client {client.name!r} is online but never contributed to the model: nothing to erase"
        )
    return client


def _log_if_offline(transport: Transport, client: Node) -> None:
    """Log that the leaver is offline, if so, before it is asked."""
    if client.name not in transport.wait_for_nodes([client], 0.0):
        logger.warning(
            f"{client.name} is not online: the erasure waits for it until its deadline; if it is "
            "gone for good, pass --leaver-gone (leaver_gone=True) to skip the local step"
        )


def _ask_to_delete_updates(
    transport: Transport, store: Store, client: Node, entry: Entry, timeout: float
) -> None:
    """Ask an erased client to delete its own updates, which are of no use any more."""
    online = transport.wait_for_nodes([client], 0.0).get(client.name)
    if online is not None:
        node, home = online.node, store.home
        receipt = read_bounded(home.receipt_path(entry.digest), MAX_RECEIPT_BYTES)
        deletion = messages.Deletion(
            home=store.identity,
            key=(home.keys / f"{SERVER}.pub").read_text(),
            receipt=keep_signature(receipt, home.server_key().public_key).decode(),
        )
        message = messages.deletion_request(node, deletion, ttl=timeout)
        reply = transport.send([message], {node: client.name}, timeout).received.get(node)
        try:
            if reply is not None:
                removed = messages.read_deletion_reply(reply)
                deleted = f"deleted its own updates, {removed} of them"
                result = deleted if removed else "none of its updates left"
                logger.info(f"client {client.name!r} has {result}")
                return
        except GuardError as error:
            logger.warning(f"client {client.name!r}: {error}")
    logger.warning(
        f"client {client.name!r} did not report that it deleted its own updates, which are on its "
        "own disk: delete them there, or start this again while it is online"
    )


def _checked_mean(
    strategy: Strategy | LegacyStrategy, secure: Secure | None, store: Store, options: EraseOptions
) -> FedAvg | SecAggSettings:
    """Return the strategy, with its workflow under SecAgg+; ConfigError if it cannot be used.

    It must be a mean, and hide updates in the erasure's rounds just as they were in training.
    """
    _check_live(options)
    mean: FedAvg | SecAggSettings
    if secure is not None:
        workflow = secure.workflow if isinstance(secure, SecureRecording) else secure
        mean = legacy_api.check_secagg(strategy, workflow)
    else:
        mean = supported_strategies.check_strategy(
            strategy.inner if isinstance(strategy, Recording) else strategy
        )
    register.check_recorded(store)
    last = store.last_round()
    if last is None or last.secure == (secure is not None):
        return mean
    if last.secure:
        raise ConfigError(
            "the model was trained under secure aggregation: give the SecAggPlusWorkflow of that "
            "training as secure=, so that the other clients' updates stay hidden"
        )
    raise ConfigError(
        "the model was trained in the open, without hiding its clients' updates: leave out "
        "secure=, or train a round with secure_recording first"
    )


def _check_enough(mean: FedAvg | SecAggSettings, store: Store, leaver: str, *, asked: bool) -> None:
    """Raise if too few clients are left to hide their updates, or were in the last mean."""
    serving, last = store.serving_model(), store.last_round()
    if not isinstance(mean, SecAggSettings) or serving is None or last is None:
        return
    mean.check_enough(len({*serving.clients} - {leaver}))
    others = {contribution.client for contribution in last.clients} - {leaver}
    if asked and last.share(leaver) and len(others) < 2:
        raise ConfigError(
            f"the last mean is of {leaver!r} and one other client, whose update the step of "
            f"{leaver!r} would reveal: train a round with three clients or more first, or erase "
            "it at the server alone (leaver_gone=True)"
        )


def _check_live(options: EraseOptions) -> None:
    for name in options.methods:
        entry, _ = create(name, options.settings.get(name))
        if entry.name not in LIVE:
            raise ConfigError(
                f"method {name!r} needs more of clients than a live federation can send; methods "
                f"that work live: {', '.join(name for name in LIVE if METHODS[name].erases)}"
            )


def _open_request(
    store: Store, home: Home, client: str, request: bytes | Path | None, trigger: str | None
) -> tuple[Entry, bool]:
    """Return the request to work on, and whether the operator made it for the client."""
    if request is not None:
        data = request if isinstance(request, bytes) else request.read_bytes()
        signed_by = verify_request(
            data, home.client_keys(), federation=store.name, server=home.server_id
        ).client
        if signed_by != client:
            raise RequestError(f"the request is {signed_by!r}'s, but the leaver is {client!r}")
        return receive(home, data, store.clock()), False
    operator = home.operator_key()
    with Journal(home.journal) as journal:
        entry = _existing_request(store, journal, client)
        if entry is not None:  # it goes on, or has ended
            return entry, operator.public_key.keyid in journal.signed_with(entry.id)
    public = home.keys / f"{client}.pub"
    if public.exists():
        raise RequestError(
            f"{client!r} signs its own requests, with the key of {public}: give the file that "
            "`secede request` wrote for it as request="
        )
    if not trigger:
        raise ConfigError(
            "`trigger` is required because the receipt states the reason for the erasure: choose "
            f"one of {', '.join(TRIGGERS)}"
        )
    signed = sign_request(_new_request(store, client, trigger), operator)
    allowed = {client: operator.public_key}  # here only: it must not pass for the client's own
    return receive(home, signed, store.clock(), operator=allowed), True


def _existing_request(store: Store, journal: Journal, client: str) -> Entry | None:
    """Return the client's open request, or the one that it was erased for."""
    every = [entry for entry in journal.entries() if entry.client == client]
    matches = [entry for entry in every if entry.open]
    if not matches and client in store.erased_clients():
        matches = [entry for entry in every if entry.state == PROMOTED]
    return matches[-1] if matches else None


def _new_request(store: Store, client: str, trigger: str) -> Request:
    model = store.serving_digest()
    if model is None:
        raise ConfigError(f"{store.path} has no serving model")
    return new_request(
        federation=store.name,
        client=client,
        trigger=trigger,
        model=model,
        server=store.home.server_id,
        now=store.clock(),
    )


def _earlier_result(outcome: Outcome, home: Home) -> str:
    with Journal(home.journal, read_only=True) as journal:
        time = journal.transitions(outcome.request)[-1].at
    return (
        f"{outcome.client} was erased already, at {format_time(time)}, and is not erased again; "
        f"receipt {outcome.receipt}"
    )


def _result(outcome: Outcome, home: Home) -> str:
    if outcome.model is None:
        return f"{outcome.client} was not erased: {outcome.state}: {outcome.reason}"
    return (
        f"{outcome.client} is erased by {outcome.method}; model {home.model_path(outcome.model)}, "
        f"receipt {outcome.receipt}"
    )


class RunOptions(Document):
    """The JSON in a run's `erasure.options`."""

    options: dict[str, Any] = Field(default_factory=dict)  # fields of EraseOptions
    leaver_gone: bool = False
    request: str = ""
    dry_run: bool = False


def erase_if_asked(
    grid: Grid,
    strategy: Strategy | LegacyStrategy,
    store: Store,
    context: Context,
    *,
    secure: Secure | None = None,
) -> bool:
    """Erase the client that the run's config names and return True; False if it names none: train.

    RolledBackError if the erasure was rolled back, so that the run ends as failed. A dry run prints
    the plan as one line of JSON. `secure` is the workflow of a training under secure aggregation.
    """
    config = context.run_config
    leaver, trigger = str(config.get("erasure.leaver", "")), config.get("erasure.trigger")
    if not leaver:
        return False
    run_options = _run_options(str(config.get("erasure.options", "") or "{}"))
    options = options_from_json(run_options.options)
    if run_options.dry_run:
        planned = plan(
            grid,
            strategy,
            store,
            leaver=leaver,
            options=options,
            leaver_gone=run_options.leaver_gone,
            secure=secure,
        )
        # Printed, not logged: whoever started the run reads the line, whatever the app's handlers.
        print(planned.line(), flush=True)
        return True
    erase(
        grid,
        strategy,
        store,
        leaver=leaver,
        request=Path(run_options.request) if run_options.request else None,
        trigger=str(trigger) if trigger else None,
        options=options,
        leaver_gone=run_options.leaver_gone,
        secure=secure,
    ).check()
    return True


def _run_options(text: str) -> RunOptions:
    try:
        return RunOptions.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"erasure.options: {describe_errors(error)}") from error
