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
from secede.erasure.documents.plan import Plan
from secede.erasure.documents.request import (
    TRIGGERS,
    Request,
    new_request,
    sign_request,
    verify_request,
)
from secede.erasure.planning.options import EraseOptions, from_json
from secede.erasure.signing.keys import key_id
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.journal_entries import Entry
from secede.erasure.storage.transition_details import PLANNED, PROMOTED, RECEIVED
from secede.erasure.types import Document, describe_errors, format_time
from secede.erasure.workflow import erase as workflow
from secede.erasure.workflow.erase import Outcome
from secede.errors import ConfigError, GuardError, RequestError
from secede.flower._flwr import LegacyStrategy
from secede.flower.backend import FlowerBackend
from secede.flower.protocol import messages
from secede.flower.protocol.nodes import Node, online_nodes, select
from secede.flower.rounds import supported_strategies
from secede.flower.rounds.recording import Recording
from secede.flower.rounds.transport import Transport
from secede.flower.secagg import legacy_api
from secede.flower.secagg.legacy_api import SecAggSettings
from secede.flower.secagg.recording import Secure, SecureRecording
from secede.flower.storage import register
from secede.flower.storage.store import Store
from secede.unlearning.client_tasks import LIVE
from secede.unlearning.create import create
from secede.unlearning.registry import METHODS

logger = logging.getLogger(__name__)

_GOODBYE = 60.0  # seconds that an erased client has to say that it deleted its updates


def erase(
    grid: Grid,
    strategy: Strategy | LegacyStrategy,
    store: Store,
    *,
    leaver: str,
    request: bytes | Path | None = None,
    trigger: str | None = None,
    options: EraseOptions | None = None,
    gone: bool = False,
    round_timeout: float = 3600.0,
    online_timeout: float = 120.0,
    passes: int = 1,
    seed: int = 0,
    pause: float = 1.0,
    secure: Secure | None = None,
) -> Outcome:
    """Erase the one client that `leaver` names, as name:NAME, key:SHA-256 or node:ID.

    `request` is what the client signed; without it the operator asks for the client and says why
    (`trigger`), which is not possible for one whose public key lies in the home's `keys/`. A leaver
    that is offline is waited for as long as `options.leaver_timeout`; one that is `gone`, not at
    all. `round_timeout` bounds each transport, `online_timeout` the wait for other clients that are
    offline; `passes` is how often a client goes over its samples in a round, for the costs. The
    plan is told before anybody is asked; it and the receipt echo the name.

    Under secure aggregation `strategy` is the one that LegacyContext has, and rounds run in the
    workflow `secure`, so that no other client's update is seen.
    """
    options = options or EraseOptions()
    _check_live(options)
    found = _strategy(strategy, secure)
    register.check_recorded(store)
    _check_secrecy(found, store)
    # Nobody trains between what is read and done.
    with files.private(), store.lock(purpose="an erasure") as lock:
        home = register.register_federation(store)
        client = find_leaver(grid, store, leaver)
        logger.info(f"leaver {leaver} is client {client.name!r} ({client.selectors()})")
        _check_enough(found, store, client.name, asked=not (gone or options.untrusted_leaver))
        entry, by_operator = _open_request(store, home, client.name, request, trigger)
        transport = Transport(grid=grid, pause=pause, now=store.clock)
        ground = FlowerBackend(
            transport,
            found,
            store,
            round_timeout=round_timeout,
            online_timeout=online_timeout,
            passes=passes,
            seed=seed,
            by_operator=by_operator,
            gone=gone,
        )
        again = entry.state == PROMOTED
        if not again:
            logger.info(f"request {entry.id} of {entry.client}, due {entry.due:%Y-%m-%d}")
        if entry.state in (RECEIVED, PLANNED) and not gone and not options.untrusted_leaver:
            _log_if_offline(transport, store, client)
        outcome = workflow.erase(
            home,
            ground,
            entry.id,
            key=home.server_key(),
            clock=store.clock,
            options=options,
            lock=lock,
        )
    logger.info(_earlier_result(outcome, home) if again else _result(outcome, home))
    if outcome.model is not None:
        _ask_to_delete_updates(transport, store, client, min(round_timeout, _GOODBYE))
    return outcome


def plan(
    grid: Grid,
    strategy: Strategy | LegacyStrategy,
    store: Store,
    *,
    leaver: str,
    options: EraseOptions | None = None,
    gone: bool = False,
    secure: Secure | None = None,
) -> Plan:
    """Return what `erase` would do, without asking anybody for anything."""
    options = options or EraseOptions()
    _check_live(options)
    found = _strategy(strategy, secure)
    register.check_recorded(store)
    _check_secrecy(found, store)
    with files.private(), store.lock(purpose="planning an erasure"):
        home = register.register_federation(store)
        client = find_leaver(grid, store, leaver)
        _check_enough(found, store, client.name, asked=not (gone or options.untrusted_leaver))
        transport = Transport(grid=grid)
        ground = FlowerBackend(transport, found, store, gone=gone)
        with Journal(home.journal) as journal:
            known = _existing_request(store, journal, client.name)
            asked = (
                journal.request(known.id) if known else _new_request(store, client.name, "other")
            )
        return workflow.plan(home, ground, asked, options=options, now=store.clock())


def find_leaver(grid: Grid, store: Store, leaver: str) -> Node:
    """Return the one client that `leaver` names, among those recorded and those online."""
    known = store.clients()
    strangers = [
        node for node in online_nodes(grid) if not any(node.same(other) for other in known)
    ]
    found = select(leaver, (*known, *strangers))
    if found in strangers:
        raise ConfigError(
            f"client {found.name!r} is online but never contributed to the model: nothing to erase"
        )
    return found


def _log_if_offline(transport: Transport, store: Store, client: Node) -> None:
    """Say it if the leaver is offline when it is about to be asked."""
    if client.name not in transport.wait_for_nodes([client], 0.0):
        logger.info(
            f"{client.name} is not online: it is waited for until its deadline; if it is gone for "
            "good, say so (--leaver-gone), and the next rung is taken at once"
        )


def _ask_to_delete_updates(
    transport: Transport, store: Store, client: Node, seconds: float
) -> None:
    """Let an erased client delete its own updates, which are of no use any more."""
    there = transport.wait_for_nodes([client], 0.0).get(client.name)
    if there is not None:
        message = messages.deletion_request(there.node, store.identity, ttl=seconds)
        reply = transport.send([message], {there.node: client.name}, seconds).sound.get(there.node)
        try:
            if reply is not None:
                removed = messages.read_deletion_reply(reply)
                deleted = f"deleted its own updates, {removed} of them"
                what = deleted if removed else "none of its updates left"
                logger.info(f"client {client.name!r} has {what}")
                return
        except GuardError as error:
            logger.info(f"client {client.name!r}: {error}")
    logger.info(
        f"client {client.name!r} did not say that it deleted its own updates: they lie on its own "
        "disk, delete them there, or start this again while it is online"
    )


def _strategy(
    strategy: Strategy | LegacyStrategy, secure: Secure | None
) -> FedAvg | SecAggSettings:
    if secure is not None:
        workflow = secure.workflow if isinstance(secure, SecureRecording) else secure
        return legacy_api.check_secagg(strategy, workflow)
    return supported_strategies.check_strategy(
        strategy.inner if isinstance(strategy, Recording) else strategy
    )


def _check_secrecy(found: FedAvg | SecAggSettings, store: Store) -> None:
    """Raise if the rounds of an erasure would show what training hid, or the other way round."""
    last, masked = store.last_round(), isinstance(found, SecAggSettings)
    if last is None or last.secure == masked:
        return
    if last.secure:
        raise ConfigError(
            "the model was trained under secure aggregation: give secure=, the SecAggPlusWorkflow "
            "of that training, so that the others' updates stay hidden"
        )
    raise ConfigError(
        "the model was trained in the open, and its clients' updates were not hidden: leave out "
        "secure=, or train a round with secure_recording first"
    )


def _check_enough(
    found: FedAvg | SecAggSettings, store: Store, leaver: str, *, asked: bool
) -> None:
    """Raise if too few would be left to hide among each other, or were in the last mean."""
    served, last = store.serving_model(), store.last_round()
    if not isinstance(found, SecAggSettings) or served is None or last is None:
        return
    found.check_enough(len({*served.clients} - {leaver}))
    others = {each.client for each in last.clients} - {leaver}
    if asked and last.share(leaver) and len(others) < 2:
        raise ConfigError(
            f"the last mean holds {leaver!r} and one other, whose update would come with the step "
            f"of {leaver!r}: train a round with three clients or more first, or erase it at the "
            "server alone (gone=True)"
        )


def _check_live(options: EraseOptions) -> None:
    for name in options.methods:
        entry, _ = create(name, options.settings.get(name))
        if entry.name not in LIVE:
            raise ConfigError(
                f"method {name!r} asks clients for more than a live federation can send; methods "
                f"that work live: {', '.join(name for name in LIVE if METHODS[name].erases)}"
            )


def _open_request(
    store: Store, home: Home, client: str, request: bytes | Path | None, trigger: str | None
) -> tuple[Entry, bool]:
    """Return the request to work on, and whether the operator made it for the client."""
    if request is not None:
        data = request if isinstance(request, bytes) else request.read_bytes()
        asked = verify_request(data, home.client_keys(), federation=store.name)
        if asked.client != client:
            raise RequestError(f"the request is {asked.client!r}'s, the leaver {client!r}")
        return workflow.receive(home, data, store.clock()), False
    operator = home.operator_key()
    with Journal(home.journal) as journal:
        if (
            entry := _existing_request(store, journal, client)
        ) is not None:  # it goes on, or is told again
            return entry, key_id(operator.public_key) in journal.signed_with(entry.id)
    public = home.keys / f"{client}.pub"
    if public.exists():
        raise RequestError(
            f"{client!r} signs its own requests, its public key is {public}: give request=, the "
            "file that `secede request` wrote there"
        )
    if not trigger:
        raise ConfigError(
            f"why {client!r} leaves is not said, and its receipt will: give trigger=, one of "
            f"{', '.join(TRIGGERS)}"
        )
    signed = sign_request(_new_request(store, client, trigger), operator)
    allowed = {client: operator.public_key}  # nowhere else: it must not pass for the client's own
    return workflow.receive(home, signed, store.clock(), operator=allowed), True


def _existing_request(store: Store, journal: Journal, client: str) -> Entry | None:
    """Return the client's open request, or the one that it was erased for."""
    known = [entry for entry in journal.entries() if entry.client == client]
    fitting = [entry for entry in known if entry.open]
    if not fitting and client in store.erased_clients():
        fitting = [entry for entry in known if entry.state == PROMOTED]
    return fitting[-1] if fitting else None


def _new_request(store: Store, client: str, trigger: str) -> Request:
    serving = store.serving_digest()
    if serving is None:
        raise ConfigError(f"{store.path} has no serving model")
    return new_request(
        federation=store.name, client=client, trigger=trigger, model=serving, now=store.clock()
    )


def _earlier_result(outcome: Outcome, home: Home) -> str:
    with Journal(home.journal, read_only=True) as journal:
        at = journal.transitions(outcome.request)[-1].at
    return (
        f"{outcome.client} was erased already, at {format_time(at)}, and is not erased again; "
        "receipt "
        f"{outcome.receipt}"
    )


def _result(outcome: Outcome, home: Home) -> str:
    if outcome.model is None:
        return f"{outcome.client} was not erased: {outcome.state}: {outcome.reason}"
    return (
        f"{outcome.client} is erased by {outcome.method}; model {home.model_path(outcome.model)}, "
        f"receipt {outcome.receipt}"
    )


class RunOptions(Document):
    """How it shall be done."""

    options: dict[str, Any] = Field(default_factory=dict)
    gone: bool = False
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
    """Erase whom the run's config names, and return True; False if it names nobody: train.

    RolledBackError if it came to nothing, so that the run ends as failed. A dry run says the plan
    as one line of JSON. `secure` is the workflow of a training under secure aggregation.
    """
    config = context.run_config
    leaver, trigger = str(config.get("erasure.leaver", "")), config.get("erasure.trigger")
    if not leaver:
        return False
    settings = _run_options(str(config.get("erasure.options", "") or "{}"))
    options = from_json(settings.options)
    if settings.dry_run:
        found = plan(
            grid, strategy, store, leaver=leaver, options=options, gone=settings.gone, secure=secure
        )
        logger.info(found.line())
        return True
    erase(
        grid,
        strategy,
        store,
        leaver=leaver,
        request=Path(settings.request) if settings.request else None,
        trigger=str(trigger) if trigger else None,
        options=options,
        gone=settings.gone,
        secure=secure,
    ).check()
    return True


def _run_options(text: str) -> RunOptions:
    try:
        return RunOptions.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"erasure.options: {describe_errors(error)}") from error
