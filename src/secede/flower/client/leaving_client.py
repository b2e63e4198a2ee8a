"""A client that can leave, of any framework: it keeps its own last updates and replies to tasks.

The server cannot check a hidden update, so its client does: names and shapes, finite values, and
that no value is clipped, which would put the reference off by as much.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from flwr.app import ConfigRecord, Context, Message
from torch import Tensor, nn

from secede import files
from secede import state as states
from secede.canaries import CanaryOptions
from secede.erasure import (
    PrivateKey,
    format_time,
    load_private_key,
    load_public_key,
    new_reading,
    sign_reading,
    unverified_request,
)
from secede.errors import (
    ConfigError,
    DataError,
    GuardError,
    RecordError,
    SecedeError,
    TrustError,
)
from secede.federation.engine import LocalTraining, Loss, OwnState
from secede.flower.client import counted_predictions, own_canaries, secagg_checks
from secede.flower.client.consent import Consent, check_consent, check_planned
from secede.flower.client.counted_predictions import (
    CountedPredictions,
    PairedCount,
    own_secret,
)
from secede.flower.client.kept_updates import KeptUpdate, KeptUpdates
from secede.flower.client.limits import ClientLimits
from secede.flower.client.own_canaries import OwnCanaries
from secede.flower.client.question_log import MAX_WORD, Question, QuestionLog
from secede.flower.client.tasks import (
    ClientSite,
    SampleKeys,
    count_samples,
    first_loader,
    float_dtype,
    load_samples,
    preserved_randomness,
)
from secede.flower.protocol import arrays, messages
from secede.flower.protocol.messages import CanaryReply, TaskHeader
from secede.state import State
from secede.text import printable, short_digest, shorten
from secede.unlearning import (
    CountRight,
    LocalResult,
    ReadCanaries,
    Reply,
    TakeStep,
    Task,
    client_tasks,
)

FOLDER = "secede-folder"  # in the node's config: where this client keeps its updates
OWNER = "secede-owner"  # and the public key whose requests it takes steps for
KEY = "secede-key"  # and the private key that it signs readings of its canaries with
_TRIED = 8  # samples that go through the network before the first round
_COUNTS = ("num-examples", "num_examples")

SourceT = TypeVar("SourceT")  # what `load_data` is called with


class LeavingClient(ABC, Generic[SourceT]):
    """A client of any framework: it keeps its own last updates and replies to tasks.

    `load_data` returns the client's training data: a loader, a map-style data set or a tuple of
    tensors. `keys` name input and label in samples that are mappings. `training` describes how the
    user's own function trains, for local steps that train the same way.

    A step is taken for a request that the key in the file `owner` signed, that was released at the
    site (`secede client release`), or that `consent` allows; `limits` bound all answers.

    `canaries` says how many canaries `with_canaries` plants. Readings of them are signed with the
    private key in the file `key`, whose public half the server has.
    """

    def __init__(
        self,
        load_model: Callable[[], nn.Module],
        load_data: Callable[[SourceT], object],
        *,
        folder: str | os.PathLike[str] | None = None,
        training: LocalTraining | None = None,
        loss: Loss = nn.functional.cross_entropy,
        device: torch.device | str | None = None,
        methods: Collection[str] = client_tasks.ANSWERED,
        keys: SampleKeys | None = None,
        seed: int = 0,
        owner: str | os.PathLike[str] | None = None,
        consent: Consent = False,
        limits: ClientLimits | None = None,
        canaries: CanaryOptions | None = None,
        key: str | os.PathLike[str] | None = None,
    ) -> None:
        if unknown := set(methods) - set(client_tasks.ANSWERED):
            raise ConfigError(
                f"{min(unknown)!r} is no local step that a client takes over the wire, expected "
                f"some of {', '.join(client_tasks.ANSWERED)}"
            )
        if folder is not None:
            self._check_folder(folder)
        self._load_model, self._load_data = load_model, load_data
        self._folder = None if folder is None else Path(folder)
        self._training, self._loss, self._seed = training or LocalTraining(), loss, seed
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._methods, self._keys = tuple(methods), keys
        self._owner, self._consent, self._limits = owner, consent, limits or ClientLimits()
        self._canary_options, self._key = canaries or CanaryOptions(), key
        self._unplanted = dict[Path, str]()  # by folder, why nothing was planted; "": it was

    def updates(self, context: Context) -> KeptUpdates:
        """Return this client's updates, in a folder of its own on its own disk."""
        config = context.node_config
        base = Path(str(config[FOLDER])) if FOLDER in config else self._folder
        if base is None:
            base = Path(os.environ.get("SECEDE_FOLDER") or Path.home() / ".secede" / "updates")
        return KeptUpdates(base / self._folder_name(context))

    @abstractmethod
    def _folder_name(self, context: Context) -> str:
        """Return the name of this client's own folder, the same in every run."""

    @abstractmethod
    def _source(self, context: Context) -> SourceT:
        """Return what `load_data` is called with."""

    def _check_folder(self, folder: str | os.PathLike[str]) -> None:
        """Raise if updates cannot be kept in `folder`."""

    def _plant(self, source: Any, context: Context, **how: Any) -> Any:
        """Return training data with this client's canaries in it."""
        own = self._own_canaries(context)
        planted = own.plant(source, self._keys, **how)
        self._unplanted[own.folder] = planted.reason
        return planted.source

    def _canaries_record(self, message: Message, context: Context) -> ConfigRecord | None:
        """Return what to tell the server with an update of a training; None: nothing."""
        own = self._own_canaries(context)
        reason = self._unplanted.get(own.folder)
        if reason is None or messages.is_erasure_round(message):
            return None
        if not reason:  # in each round, since any may be lost
            return messages.canaries_record(own.commitment(), "")
        return messages.canaries_record(None, reason) if self._is_first(message, context) else None

    def _own_canaries(self, context: Context) -> OwnCanaries:
        return OwnCanaries(self.updates(context).folder, self._canary_options)

    def _keep(
        self,
        reply: Message,
        message: Message,
        context: Context,
        *,
        home: str,
        serving: str | None,
        client: str,
        start: State | None,
    ) -> KeptUpdate | None:
        """Keep the update in a reply; None if there is none that a mean can be made of."""
        records = list(reply.content.array_records.values())
        if len(records) != 1:
            return None
        hidden, samples = secagg_checks.is_hidden(message), _samples(reply)
        state: State = arrays.to_tensors(records[0])
        if hidden:
            with preserved_randomness():
                template = arrays.template_of(self._load_model())
            state = _named(state, template)
            start = None if start is None else _named(start, template)
            secagg_checks.check_update(state, template, samples, context)
        group = message.metadata.group_id  # in the legacy workflow the round's number
        number = int(group) if hidden and group.isdecimal() else 0
        for config in message.content.config_records.values():
            server_round = config.get("server-round")
            number = server_round if isinstance(server_round, int) else number
        return self.updates(context).put(
            state,
            run=str(message.metadata.run_id),
            number=number,
            samples=samples,
            home=home,
            node=str(context.node_id),
            serving=serving,
            # A server that sees each update sends its digest with the next round.
            hashed=hidden or not home,
            hidden=hidden,
            client=client,
            start=start,
        )

    def _answer(self, message: Message, context: Context) -> Message:
        """Reply to a question, or say why not; either way it is in the log."""
        log = QuestionLog(self.updates(context).folder)
        question = Question(at=format_time(datetime.now(UTC)))
        try:
            if message.metadata.message_type == messages.LEAVE_TYPE:
                question = question.model_copy(update={"task": messages.LEAVE})
                removed = self._delete(message, self.updates(context))
                log.append(question)
                return messages.deletion_reply(message, removed)
            template = arrays.template_of(self._load_model())
            header, state = messages.read_task(message, template)
            question = _question(question, header, state)
            task = client_tasks.from_message(header.form(), allowed=self._methods)
            if isinstance(task, TakeStep):
                self._check_consent(header, context)
                plan = messages.read_plan(message)
                check_planned(plan, question.request, task)
                question = question.model_copy(update={"plan": plan.digest()})
            reply = self._reply(task, header, state, template, question, context)
            return messages.reply_message(message, reply)
        except SecedeError as error:
            reason = shorten(printable(error), MAX_WORD)
            log.append(question.model_copy(update={"outcome": "refused", "reason": reason}))
            return messages.error_message(message, error)

    def _check_consent(self, header: TaskHeader, context: Context) -> None:
        """Raise unless this client's owner consents to what a request asks for."""
        owner = context.node_config.get(OWNER, self._owner)
        check_consent(
            header.request,
            self.updates(context).folder,
            owner=None if owner is None else load_public_key(Path(str(owner))),
            consent=self._consent,
            now=datetime.now(UTC),
        )

    def _reply(
        self,
        task: Task,
        header: TaskHeader,
        state: State,
        template: State,
        question: Question,
        context: Context,
    ) -> LocalResult | Reply:
        """Reply to a task within this client's limits; raise if it is not within them."""
        updates, limits, own = self.updates(context), self._limits, None
        hidden = self._hides(context)
        if hidden:
            limits = limits.while_hidden()
        if isinstance(task, TakeStep):
            if hidden:
                limits.check_hidden_step(header.weight)
            limits.check_step(task, self._training, header.weight)
            own = self._own_update(updates, header, template)
        # Before the model is looked at: whether it is known tells of the kept updates.
        QuestionLog(updates.folder).append(question, limits)
        known = ((_named(update, template), moved) for update, moved in updates.known(header.home))
        limits.check_known(state, known, step=isinstance(task, TakeStep))
        if isinstance(task, ReadCanaries):
            return self._read_canaries(header, state, question, context)
        site = self._site(context)
        samples = f"{own_secret(updates.folder)}/{site.samples_digest()}"
        asked: Task | PairedCount = task
        if isinstance(task, CountRight):
            counted = CountedPredictions(updates.folder, samples)
            asked = PairedCount(counted, question.model, header.settings)
        reply = site.run(asked, state, own, client=header.client, number=header.number)
        # Whoever has a copy of the samples must not know the noise.
        if not isinstance(reply, LocalResult):
            before = header.settings.get(client_tasks.BEFORE)
            return limits.blurred(reply, samples, question.model, before)
        secret = f"{samples}/{question.task}/{question.model}/{question.settings}"
        limits.check_result(reply)
        return limits.hidden_result(reply, state, own, secret) if hidden and own else reply

    def _read_canaries(
        self, header: TaskHeader, state: State, question: Question, context: Context
    ) -> CanaryReply:
        """Return a signed reading for the request in a question; raise if it is not our own."""
        own, committed = self._own_canaries(context).load()
        if own.options.kind != "made-up":  # its own samples, and ranks tell of them
            self._check_consent(header, context)
        request = unverified_request(header.request.encode())
        name = self.updates(context).client_of(header.home)
        if name not in ("", request.client):
            raise ConfigError(f"the request is {request.client!r}'s, and this client is {name!r}")
        reading = new_reading(
            own_canaries.read(self._load_model, state, own, self._device),
            committed.commitment.root,
            federation=request.federation,
            client=request.client,
            request=request.digest(),
            model=question.model,
        )
        return CanaryReply.of(sign_reading(reading, self._signer(context)))

    def _signer(self, context: Context) -> PrivateKey | None:
        """Return the key that readings are signed with; None without one."""
        key = context.node_config.get(KEY, self._key)
        return None if key is None else load_private_key(Path(str(key)))

    def _delete(self, message: Message, updates: KeptUpdates) -> int:
        """Delete a home's updates for its receipt, which is kept; return how many there were."""
        deletion = messages.read_deletion_request(message)
        if all(entry.home != deletion.home for entry in updates.all()):
            return 0
        messages.check_deletion(deletion, updates.client_of(deletion.home))
        receipt = deletion.receipt.encode()
        with files.private():
            name = f"receipt-{hashlib.sha256(receipt).hexdigest()[:16]}.json"
            files.write_bytes(updates.folder / name, receipt)
        counted_predictions.forget(updates.folder)
        return updates.forget(deletion.home)

    def _hides(self, context: Context) -> bool:
        """Return whether this client hides its updates from any server."""
        return any(entry.salt for entry in self.updates(context).all())

    def _site(self, context: Context, most: int | None = None) -> ClientSite:
        own = self._own_canaries(context)
        before = self._unplanted.pop(own.folder, None)
        source = first_loader(self._load_data(self._source(context)))
        if own.folder not in self._unplanted:  # else `load_data` itself plants them
            source = own.replant(source, self._keys)
            self._unplanted |= {} if before is None else {own.folder: before}
        samples = load_samples(
            source,
            keys=self._keys,
            floats=float_dtype(self._load_model()),
            most=most,
        )
        return ClientSite(
            load_model=self._load_model,
            samples=samples.to(self._device),
            available=count_samples(source),
            training=self._training,
            loss=self._loss,
            device=self._device,
            seed=self._seed,
        )

    def _try_out(self, message: Message, context: Context) -> int:
        """Check before the first update of a training that a local step could run here later.

        Return how many samples there are; 0 if that is not known, or this is not the first update.
        """
        if not self._is_first(message, context):
            return 0
        try:
            self._signer(context)
            with preserved_randomness():
                site = self._site(context, most=_TRIED)
                site.try_out()
                return site.available
        except (ConfigError, DataError) as error:
            raise ConfigError(
                f"this client could not be erased later: {error}; see docs/flower.md for what "
                "load_data and load_model may return"
            ) from error

    def _is_first(self, message: Message, context: Context) -> bool:
        """Return whether a round is a training's first one here."""
        run = str(message.metadata.run_id)
        known = any(entry.run == run for entry in self.updates(context).all())
        return not known and not messages.is_erasure_round(message)

    def _own_update(
        self, updates: KeptUpdates, header: TaskHeader, template: State
    ) -> OwnState | None:
        """Return the update that the server names; the newest if it has no share of the mean."""
        update: State | None = None
        try:
            update = None if header.own is None else updates.get(header.own, header.home)
        except RecordError:
            if header.weight:
                raise
        if update is None and header.weight:
            raise RecordError(
                f"update {short_digest(str(header.own))}, which is part of the model, is not in "
                f"{updates.folder}: was the folder moved, or the update kept inside of a mod that "
                "changes it?"
            )
        if update is None:
            update = updates.newest(header.home)
        return None if update is None else OwnState(_named(update, template), header.weight)


def _samples(reply: Message) -> float:
    """Return the number of samples in a client's reply, 0 if it has none under a usual name."""
    records = list[Mapping[str, object]](reply.content.metric_records.values())
    records += reply.content.config_records.values()
    for record in records:
        for name in _COUNTS:
            value = record.get(name)
            if isinstance(value, int | float) and 0 <= value < float("inf"):
                return float(value)
    return 0.0


def _named(state: State, template: State) -> State:
    """Return a state under the model's names: legacy records number their arrays."""
    if state.keys() == template.keys():
        return {name: state[name] for name in template}
    if set(state) != {str(place) for place in range(len(template))}:
        raise GuardError("the update has other entries than the model")
    values: list[Tensor] = [state[str(place)] for place in range(len(template))]
    return dict(zip(template, values, strict=True))


def _question(question: Question, header: TaskHeader, state: State) -> Question:
    """Return the log's entry of a question."""
    request = ""
    with suppress(TrustError):
        request = unverified_request(header.request.encode()).digest()
    settings = dict[str, object]()
    if header.task == client_tasks.COUNT:  # all that its result depends on
        settings = {client_tasks.BEFORE: header.settings.get(client_tasks.BEFORE)}
    elif header.task == client_tasks.LOCAL_STEP:
        more = {"share": header.weight, "client": header.client, "number": header.number}
        settings = {**header.settings, **more}
    return question.model_copy(
        update={
            "home": printable(header.home)[:MAX_WORD],
            "request": request,
            "task": header.task,
            "method": printable(header.method)[:MAX_WORD],
            "settings": hashlib.sha256(repr(sorted(settings.items())).encode()).hexdigest(),
            "model": states.digest(state),
        }
    )
