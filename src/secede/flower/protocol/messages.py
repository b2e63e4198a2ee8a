"""Secede's own messages: a task for a client, and its reply. Neither side trusts the other.

A task holds the global state, the task's name and settings, the client's number (it seeds all that
is random), and the share and digest of the client's last update as the server recorded them. A
reply holds a state or some numbers, and a report; or an error's kind and text. JSON is bounded and
parsed strictly.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from pydantic import Field, ValidationError

from secede.erasure import (
    MAX_CANARIES,
    MAX_READING_BYTES,
    MAX_RECEIPT_BYTES,
    MAX_REQUEST_BYTES,
    SERVER,
    CanaryCommitment,
    Count,
    Digest,
    Document,
    Fraction,
    Name,
    Plan,
    SignedReading,
    describe_errors,
    is_name,
    parse_json,
    parse_public_key,
    verify_receipt,
)
from secede.errors import ConfigError, GuardError, RecordError, SecedeError, StateError, TrustError
from secede.flower.protocol import arrays
from secede.state import State
from secede.text import one_line, printable
from secede.unlearning import (
    CountRight,
    LocalResult,
    Measure,
    ReadCanaries,
    Reply,
    TakeStep,
    Task,
    TaskMessage,
    client_tasks,
)

UNLEARN, QUERY, LEAVE = "unlearn", "secede", "leave"  # names of the handlers
LEAVE_TYPE = f"query.{LEAVE}"  # asks an erased client to delete its updates
TASK_TYPES = {client_tasks.LOCAL_STEP: f"train.{UNLEARN}", client_tasks.COUNT: f"query.{QUERY}"}
TASK_TYPES[client_tasks.MEASURE] = f"query.{QUERY}"
TASK_TYPES[client_tasks.READ_CANARIES] = f"query.{QUERY}"
MESSAGE_TYPES = frozenset({*TASK_TYPES.values(), LEAVE_TYPE})
_STATE, _TASK, _REPLY = "secede.state", "secede.task", "secede.answer"
_PLAN = "secede.plan"
_KEEP, _UPDATE, _SAMPLES = "secede.keep", "secede.update", "secede.samples"
_FAULT, _CANARIES = "secede.fault", "secede.canaries"
_GROUP = "secede"  # the first part of the group id of an erasure's rounds
_DIGEST = re.compile(r"[0-9a-f]{64}")
_HOME = re.compile(r"[0-9a-f]{1,64}")
_LIMIT, _PLAN_LIMIT = 4 << 20, 16 << 20  # bytes of JSON
_COMMITMENT_LIMIT, _READING_LIMIT = 4096, 2 * MAX_READING_BYTES
_CLASSES = 1_000_000
_TEXT = 400  # characters of an error
# Errors of a client that are raised here as the same kind; any other is a RecordError.
_ERRORS = {"GuardError": GuardError, "StateError": StateError, "ConfigError": ConfigError}


class TaskHeader(Document):
    """A task for a client, without the state."""

    version: int = 1
    task: Name
    method: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    client: Count  # its number in the engine
    number: Count  # seeds what is random in the task
    weight: Fraction = 0.0  # of the client's own last update in the last mean
    own: Digest | None = None  # of that update; None: the server recorded none
    home: str = ""  # the identity of the server's home
    request: Annotated[str, Field(max_length=MAX_REQUEST_BYTES)] = ""  # as it was signed

    def form(self) -> TaskMessage:
        """Return the task's name and settings."""
        return TaskMessage(self.task, self.method, self.settings)


def task_message(
    node: int, header: TaskHeader, state: State, *, ttl: float, plan: str = ""
) -> Message:
    """Return the message that sends a task with `state` to a client, a step with its plan."""
    text = json.dumps(header.model_dump(mode="json"), allow_nan=False)
    content = RecordDict({_STATE: arrays.pack(state), _TASK: ConfigRecord({"json": text})})
    if plan:
        content[_PLAN] = ConfigRecord({"json": plan})
    return Message(content, node, TASK_TYPES[header.task], ttl=ttl)


def round_group(phase: str, number: int) -> str:
    """Return the group id of the messages of one round of an erasure."""
    return f"{_GROUP}/{phase}/{number}"


def is_erasure_round(message: Message) -> bool:
    """Return whether a message belongs to a round of an erasure."""
    return message.metadata.group_id.startswith(f"{_GROUP}/")


def add_home(message: Message, home: str, serving: str | None) -> None:
    """Add the home's identity to a round's message, and the digest of the update to be kept.

    The client's mod takes the record out before the user's own function sees the message.
    """
    content = ConfigRecord({"home": home, "serving": serving or ""})
    message.content = RecordDict({**message.content, _KEEP: content})  # strategies share theirs


def pop_home(message: Message) -> tuple[str, str | None]:
    """Take out and return what `add_home` added; "" and None for what is missing or malformed."""
    content = message.content.config_records.get(_KEEP)
    if content is None:
        return "", None
    del message.content[_KEEP]
    home, serving = content.get("home"), content.get("serving")
    sound = isinstance(home, str) and _HOME.fullmatch(home)
    integral = isinstance(serving, str) and _DIGEST.fullmatch(serving)
    return str(home) if sound else "", str(serving) if integral else None


def add_client(message: Message, client: str) -> None:
    """Add to what `add_home` added the client's name there, which its receipt will state."""
    message.content.config_records[_KEEP]["client"] = client


def read_client(message: Message) -> str:
    """Return what `add_client` added; "" for what is missing or malformed."""
    name = message.content.config_records.get(_KEEP, ConfigRecord()).get("client")
    return name if isinstance(name, str) and is_name(name) else ""


def add_update_digest(reply: Message, digest: str) -> None:
    """Add the digest of the update to a reply that hides it: the server cannot compute it."""
    reply.content[_UPDATE] = ConfigRecord({"digest": digest})


def pop_update_digest(reply: Message) -> str | None:
    """Take out and return what `add_update_digest` added; None if it is missing or malformed."""
    content = reply.content.config_records.get(_UPDATE)
    if content is None:
        return None
    del reply.content[_UPDATE]
    digest = content.get("digest")
    return digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else None


def add_samples(reply: Message, count: int) -> None:
    """Add the number of a client's samples to its first update, to compare its weight with."""
    reply.content[_SAMPLES] = ConfigRecord({"samples": count})


def pop_samples(reply: Message) -> int | None:
    """Take out and return what `add_samples` added; None if it is missing or malformed."""
    content = reply.content.config_records.get(_SAMPLES)
    if content is None:
        return None
    del reply.content[_SAMPLES]
    count = content.get("samples")
    return count if type(count) is int and 0 < count <= 2**53 else None


def add_fault(reply: Message, fault: str) -> None:
    """Add to a client's first update why an erasure's messages will not reach it."""
    reply.content[_FAULT] = ConfigRecord({"fault": fault[:_TEXT]})


def pop_fault(reply: Message) -> str:
    """Take out and return what `add_fault` added; "" if it is missing or malformed."""
    content = reply.content.config_records.get(_FAULT)
    if content is None:
        return ""
    del reply.content[_FAULT]
    fault = content.get("fault")
    return printable(fault)[:_TEXT] if isinstance(fault, str) else ""


def canaries_record(committed: CanaryCommitment | None, reason: str) -> ConfigRecord:
    """Return what a client says of its canaries: its commitment, or why it planted none."""
    if committed is None:
        return ConfigRecord({"reason": reason[:_TEXT]})
    return ConfigRecord({"json": committed.model_dump_json()})


def add_canaries(reply: Message, record: ConfigRecord) -> None:
    """Add to an update what its client says of its canaries."""
    reply.content[_CANARIES] = record


def pop_canaries(reply: Message) -> tuple[CanaryCommitment | None, str]:
    """Take out and return what `add_canaries` added; GuardError if it is malformed."""
    record = reply.content.config_records.get(_CANARIES)
    if record is None:
        return None, ""
    try:
        if "json" not in record:
            reason = record.get("reason")
            return None, printable(reason)[:_TEXT] if isinstance(reason, str) else ""
        found = CanaryCommitment.model_validate(_json(reply, _CANARIES, _COMMITMENT_LIMIT))
    except ValidationError as error:
        raise GuardError(f"its commitment is malformed: {describe_errors(error)}") from None
    finally:
        del reply.content[_CANARIES]
    if found.commitment.samples > MAX_CANARIES:
        raise GuardError(f"its commitment is to more than {MAX_CANARIES} canaries")
    return found, ""


def trial_question() -> RecordDict:
    """Return records like those of a task, to see what becomes of them on their way."""
    state = arrays.pack({"weight": torch.zeros(1)})
    return RecordDict({_STATE: state, _TASK: ConfigRecord({"json": "{}"})})


def trial_reply() -> RecordDict:
    """Return records like those of a client's reply."""
    state = arrays.pack({"weight": torch.zeros(1)})
    return RecordDict({_STATE: state, _REPLY: ConfigRecord({"json": "{}"})})


class Deletion(Document):
    """Why an erased client may delete its updates: the receipt, signed by the home's server."""

    home: Annotated[str, Field(pattern=_HOME.pattern)]
    key: Annotated[str, Field(max_length=4096)]  # the server's public key in PEM
    receipt: Annotated[str, Field(max_length=MAX_RECEIPT_BYTES)]


def deletion_request(node: int, deletion: Deletion, *, ttl: float) -> Message:
    """Return the message that asks an erased client to delete its updates for a home."""
    content = RecordDict({_TASK: ConfigRecord({"json": deletion.model_dump_json()})})
    return Message(content, node, LEAVE_TYPE, ttl=ttl)


def read_deletion_request(message: Message) -> Deletion:
    """Return a request to delete; GuardError if it is malformed."""
    try:
        return Deletion.model_validate(_json(message, _TASK))
    except ValidationError as error:
        raise GuardError(
            f"no updates are deleted without a receipt: {describe_errors(error)}"
        ) from None


def check_deletion(deletion: Deletion, own: str) -> None:
    """Raise GuardError unless the home's server signed the receipt, and for the client `own`.

    A home is called after its server's key, so that nobody else's signature counts.
    """
    try:
        key = parse_public_key(deletion.key.encode(), "the key of the home's server")
        receipt = verify_receipt(deletion.receipt.encode(), {SERVER: key})
    except (ConfigError, TrustError) as error:
        raise GuardError(f"no updates are deleted without a valid receipt: {error}") from error
    client = receipt.statement.predicate.request.client
    if key.keyid != deletion.home or client != own:
        raise GuardError(
            f"no updates are deleted: the receipt is {client!r}'s from home {key.keyid[:16]}, "
            f"expected {own!r}'s from {deletion.home[:16]}"
        )


def deletion_reply(message: Message, removed: int) -> Message:
    """Return a client's reply: how many of its updates it deleted."""
    text = json.dumps({"removed": removed})
    return Message(RecordDict({_REPLY: ConfigRecord({"json": text})}), reply_to=message)


def read_deletion_reply(message: Message) -> int:
    """Return how many updates a client says that it deleted."""
    removed = _json(message, _REPLY).get("removed")
    if type(removed) is not int or not 0 <= removed <= 2**53:
        raise GuardError("the reply has no count of deleted updates")
    return removed


def read_task(message: Message, template: State) -> tuple[TaskHeader, dict[str, torch.Tensor]]:
    """Return a task's header and state; GuardError if anything is wrong with them."""
    header = _header(message)
    if message.metadata.message_type != TASK_TYPES.get(header.task):
        raise GuardError(f"task {header.task!r} came as {message.metadata.message_type!r}")
    records = message.content.array_records
    if set(records) != {_STATE}:
        raise GuardError(f"the task has {len(records)} records of arrays, expected the state alone")
    return header, arrays.unpack(records[_STATE], template)


def read_plan(message: Message) -> Plan:
    """Return the plan that came with a local step; GuardError if there is none, or no sound one."""
    try:
        return Plan.model_validate_json(json.dumps(_json(message, _PLAN, _PLAN_LIMIT)))
    except ValidationError as error:
        raise GuardError(f"the step's plan is malformed: {describe_errors(error)}") from None


@dataclass(frozen=True, kw_only=True)
class CanaryReply(Reply):
    """A client's reading of its canaries."""

    signed: SignedReading

    @classmethod
    def of(cls, signed: SignedReading) -> CanaryReply:
        """Return the reply with a reading, which holds nothing else."""
        return cls(state={}, gradient_samples=0, samples=signed.reading.count, signed=signed)


def reply_message(message: Message, reply: LocalResult | Reply) -> Message:
    """Return a client's reply to a task."""
    if isinstance(reply, LocalResult):
        body: dict[str, Any] = {"report": _finite(reply.report.as_dict())}
        records = RecordDict({_STATE: arrays.pack(reply.state)})
    elif isinstance(reply, CanaryReply):
        body, records = {"canaries": reply.signed.model_dump(mode="json")}, RecordDict()
    else:
        numbers = {name: _finite(value.tolist()) for name, value in reply.state.items()}
        body = {"numbers": numbers, "samples": reply.samples}
        records = RecordDict()
    records[_REPLY] = ConfigRecord({"json": json.dumps(body, allow_nan=False)})
    return Message(records, reply_to=message)


def error_message(message: Message, error: SecedeError) -> Message:
    """Return a client's reply that says why it did not do the task."""
    body = {"error": type(error).__name__, "text": str(error)[:_TEXT]}
    records = RecordDict({_REPLY: ConfigRecord({"json": json.dumps(body)})})
    return Message(records, reply_to=message)


def read_reply(message: Message, task: Task, template: State, who: str) -> LocalResult | Reply:
    """Return the reply of client `who`; its error is raised here, with its name."""
    try:
        content = _json(message, _REPLY)
        if "error" not in content:
            if isinstance(task, ReadCanaries):
                return _reading(content)
            if not isinstance(task, TakeStep):
                return _numbers(content, task)
            state = arrays.unpack(message.content.array_records[_STATE], template)
            return client_tasks.parse_result(state, content["report"])
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        line = one_line(error)[:160]
        raise GuardError(f"client {who!r}: its reply cannot be read ({line})") from error
    except GuardError as error:
        raise GuardError(f"client {who!r}: {error}") from error
    kind = _ERRORS.get(str(content["error"]), RecordError)
    raise kind(f"client {who!r}: {printable(content.get('text'))[:_TEXT]}")


def _reading(content: Mapping[str, Any]) -> CanaryReply:
    text = json.dumps(content["canaries"])
    if len(text) > _READING_LIMIT:
        raise GuardError(f"its reading of canaries has more than {_READING_LIMIT:,} bytes")
    try:
        return CanaryReply.of(SignedReading.model_validate_json(text))
    except ValidationError as error:
        raise GuardError(
            f"its reading of canaries is malformed: {describe_errors(error)}"
        ) from None


def _numbers(content: Mapping[str, Any], task: CountRight | Measure) -> Reply:
    numbers = dict[str, torch.Tensor]()
    kinds = {**task.numbers}
    if set(content["numbers"]) != set(kinds):
        kinds |= task.optional
    if set(content["numbers"]) != set(kinds):
        raise ValueError(f"expected the numbers {', '.join(task.numbers)}")
    for name, kind in kinds.items():
        values = content["numbers"][name]
        integral = kind == torch.int64
        sound = isinstance(values, list) and 0 < len(values) <= _CLASSES
        if not sound or any(type(v) is not int if integral else not _is_real(v) for v in values):
            raise ValueError(f"{name} is no list of numbers")
        if integral and any(abs(value) > 2**53 for value in values):
            raise ValueError(f"{name} holds a count that is too large")
        numbers[name] = torch.tensor([math.nan if v is None else v for v in values], dtype=kind)
    samples = content["samples"]
    if type(samples) is not int or not 0 < samples <= 2**53:
        raise ValueError("no count of samples")
    return Reply(state=numbers, gradient_samples=0, samples=samples)


def _is_real(value: object) -> bool:
    return value is None or type(value) in (int, float)


def _header(message: Message) -> TaskHeader:
    try:
        return TaskHeader.model_validate(_json(message, _TASK))
    except ValidationError as error:
        raise GuardError(f"the task's header is malformed: {describe_errors(error)}") from None


def _json(message: Message, key: str, limit: int = _LIMIT) -> dict[str, Any]:
    record = message.content.config_records.get(key)
    text = None if record is None else record.get("json")
    if not isinstance(text, str) or len(text) > limit:
        raise GuardError(f"the message has no {key!r}, or more than {limit:,} bytes of it")
    try:
        return parse_json(text.encode(errors="surrogatepass"), limit)
    except TrustError as error:
        raise GuardError(f"{key!r}: {error}") from error


def _finite(value: Any) -> Any:
    """Return a value whose numbers JSON can hold: those that are not finite become null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
