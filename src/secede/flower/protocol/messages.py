"""Our own messages: a task to a client, and what it answers. Both sides trust neither.

To the client: the global state, the task's name and settings, the client's number (it names the
randomness), the share and digest of its own last update as the server recorded them. Back: a state
or some numbers, and a report; or an error's kind and text. JSON is bounded and parsed strictly.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from pydantic import Field, ValidationError

from secede.erasure.canonical_json import parse
from secede.erasure.types import Count, Digest, Document, Fraction, Name, describe_errors
from secede.errors import ConfigError, GuardError, RecordError, SecedeError, StateError, TrustError
from secede.flower.protocol import arrays
from secede.state import State
from secede.text import one_line, printable
from secede.unlearning import client_tasks
from secede.unlearning.client_tasks import CountRight, Measure, Task, TaskMessage
from secede.unlearning.local_step import LocalResult
from secede.unlearning.method import Reply, TakeStep

UNLEARN, QUERY, LEAVE = "unlearn", "secede", "leave"  # names of the handlers
LEAVE_TYPE = f"query.{LEAVE}"  # tells a client that it is erased
TASK_TYPES = {client_tasks.LOCAL_STEP: f"train.{UNLEARN}", client_tasks.COUNT: f"query.{QUERY}"}
TASK_TYPES[client_tasks.MEASURE] = f"query.{QUERY}"
MESSAGE_TYPES = frozenset({*TASK_TYPES.values(), LEAVE_TYPE})
_STATE, _TASK, _ANSWER = "secede.state", "secede.task", "secede.answer"
_KEEP, _UPDATE = "secede.keep", "secede.update"
_GROUP = "secede"  # begins the group id of the rounds of an erasure
_DIGEST = re.compile(r"[0-9a-f]{64}")
_HOME = re.compile(r"[0-9a-f]{1,64}")
_LIMIT = 4 << 20  # bytes of JSON
_CLASSES = 1_000_000
_TEXT = 400  # characters of an error
# An error at a client counts as the same here; others mean that the client could not.
_KINDS = {"GuardError": GuardError, "StateError": StateError, "ConfigError": ConfigError}


class TaskHeader(Document):
    """What a client is asked, without the state."""

    version: int = 1
    task: Name
    method: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    client: Count  # its number in the engine
    number: Count  # of the question
    weight: Fraction = 0.0  # of its own last update in the last mean
    own: Digest | None = None  # of that update; None: it has none
    home: str = ""  # what the server calls itself

    def form(self) -> TaskMessage:
        """Return the task's name and settings."""
        return TaskMessage(self.task, self.method, self.settings)


def task_message(node: int, asked: TaskHeader, state: State, *, ttl: float) -> Message:
    """Return the message that asks a client to do a task with `state`."""
    text = json.dumps(asked.model_dump(mode="json"), allow_nan=False)
    content = RecordDict({_STATE: arrays.pack(state), _TASK: ConfigRecord({"json": text})})
    return Message(content, node, TASK_TYPES[asked.task], ttl=ttl)


def round_group(phase: str, number: int) -> str:
    """Return the group id of the messages of one round of an erasure."""
    return f"{_GROUP}/{phase}/{number}"


def is_erasure_round(message: Message) -> bool:
    """Return whether a message belongs to a round of an erasure."""
    return message.metadata.group_id.startswith(f"{_GROUP}/")


def add_home(message: Message, home: str, serving: str | None) -> None:
    """Add to a round's message whose round it is, and which of the client's updates must stay.

    The mod takes it out again before the user's own function sees it.
    """
    told = ConfigRecord({"home": home, "serving": serving or ""})
    message.content = RecordDict({**message.content, _KEEP: told})  # strategies share theirs


def pop_home(message: Message) -> tuple[str, str | None]:
    """Return what `tell_home` added, and take it out; "" and None where there is nothing sound."""
    told = message.content.config_records.get(_KEEP)
    if told is None:
        return "", None
    del message.content[_KEEP]
    home, serving = told.get("home"), told.get("serving")
    sound = isinstance(home, str) and _HOME.fullmatch(home)
    whole = isinstance(serving, str) and _DIGEST.fullmatch(serving)
    return str(home) if sound else "", str(serving) if whole else None


def add_update_digest(reply: Message, digest: str) -> None:
    """Add to a reply that hides an update which one it is: the server cannot hash it."""
    reply.content[_UPDATE] = ConfigRecord({"digest": digest})


def pop_update_digest(reply: Message) -> str | None:
    """Return what `tell_update` added, and take it out; None where there is nothing sound."""
    told = reply.content.config_records.get(_UPDATE)
    if told is None:
        return None
    del reply.content[_UPDATE]
    digest = told.get("digest")
    return digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else None


def deletion_request(node: int, home: str, *, ttl: float) -> Message:
    """Return the message that tells a client that it is erased from this home."""
    return Message(RecordDict({_TASK: ConfigRecord({"home": home})}), node, LEAVE_TYPE, ttl=ttl)


def read_deletion_request(message: Message) -> str:
    """Return the home that a client is erased from."""
    record = message.content.config_records.get(_TASK)
    home = None if record is None else record.get("home")
    if not isinstance(home, str) or not _HOME.fullmatch(home):
        raise GuardError("a message that names no home")
    return home


def deletion_reply(message: Message, removed: int) -> Message:
    """Return a client's answer: how many of its updates it has deleted."""
    text = json.dumps({"removed": removed})
    return Message(RecordDict({_ANSWER: ConfigRecord({"json": text})}), reply_to=message)


def read_deletion_reply(message: Message) -> int:
    """Return how many updates a client says that it has deleted."""
    told = _json(message, _ANSWER).get("removed")
    if type(told) is not int or not 0 <= told <= 2**53:
        raise GuardError("no count of updates")
    return told


def read_task(message: Message, like: State) -> tuple[TaskHeader, dict[str, torch.Tensor]]:
    """Return what a client is asked, and the state; whatever is wrong with it raises."""
    asked = _asked(message)
    if message.metadata.message_type != TASK_TYPES.get(asked.task):
        raise GuardError(f"task {asked.task!r} came as {message.metadata.message_type!r}")
    records = message.content.array_records
    if set(records) != {_STATE}:
        raise GuardError("a question holds one state, and this one does not")
    return asked, arrays.unpack(records[_STATE], like)


def reply_message(message: Message, reply: LocalResult | Reply) -> Message:
    """Return a client's answer."""
    if isinstance(reply, LocalResult):
        told: dict[str, Any] = {"report": _finite(reply.report.as_dict())}
        content = RecordDict({_STATE: arrays.pack(reply.state)})
    else:
        numbers = {name: _finite(value.tolist()) for name, value in reply.state.items()}
        told = {"numbers": numbers, "samples": reply.samples}
        content = RecordDict()
    content[_ANSWER] = ConfigRecord({"json": json.dumps(told, allow_nan=False)})
    return Message(content, reply_to=message)


def error_message(message: Message, error: SecedeError) -> Message:
    """Return a client's answer that says why there is none."""
    told = {"error": type(error).__name__, "text": str(error)[:_TEXT]}
    content = RecordDict({_ANSWER: ConfigRecord({"json": json.dumps(told)})})
    return Message(content, reply_to=message)


def read_reply(message: Message, task: Task, like: State, who: str) -> LocalResult | Reply:
    """Return what client `who` answered; its errors are raised as ours, with its name."""
    told = _json(message, _ANSWER)
    if "error" in told:
        kind = _KINDS.get(str(told["error"]), RecordError)
        text = printable(told.get("text"))[:_TEXT]
        raise kind(f"client {who!r}: {text}")
    try:
        if isinstance(task, TakeStep):
            return _state(message, told, like)
        return _numbers(told, task)
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        line = one_line(error)[:160]
        raise GuardError(f"client {who!r}: its answer cannot be read ({line})") from error
    except GuardError as error:
        raise GuardError(f"client {who!r}: {error}") from error


def _state(message: Message, told: Mapping[str, Any], like: State) -> LocalResult:
    state = arrays.unpack(message.content.array_records[_STATE], like)
    return client_tasks.parse_result(state, told["report"])


def _numbers(told: Mapping[str, Any], task: CountRight | Measure) -> Reply:
    found = dict[str, torch.Tensor]()
    if set(told["numbers"]) != set(task.numbers):
        raise ValueError(f"expected the numbers {', '.join(task.numbers)}")
    for name, kind in task.numbers.items():
        values = told["numbers"][name]
        whole = kind == torch.int64
        sound = isinstance(values, list) and 0 < len(values) <= _CLASSES
        if not sound or any(type(v) is not int if whole else not _is_real(v) for v in values):
            raise ValueError(f"{name} is no list of numbers")
        if whole and any(abs(value) > 2**53 for value in values):
            raise ValueError(f"{name} holds a count that is too large")
        found[name] = torch.tensor([math.nan if v is None else v for v in values], dtype=kind)
    samples = told["samples"]
    if type(samples) is not int or not 0 < samples <= 2**53:
        raise ValueError("no count of samples")
    return Reply(state=found, gradient_samples=0, samples=samples)


def _is_real(value: object) -> bool:
    return value is None or type(value) in (int, float)


def _asked(message: Message) -> TaskHeader:
    try:
        return TaskHeader.model_validate(_json(message, _TASK))
    except ValidationError as error:
        raise GuardError(f"a question that is none: {describe_errors(error)}") from None


def _json(message: Message, key: str) -> dict[str, Any]:
    record = message.content.config_records.get(key)
    text = None if record is None else record.get("json")
    if not isinstance(text, str) or len(text) > _LIMIT:
        raise GuardError(f"the message has no {key!r}, or too much of it")
    try:
        return parse(text.encode(errors="surrogatepass"), _LIMIT)
    except TrustError as error:
        raise GuardError(f"{key!r}: {error}") from error


def _finite(value: Any) -> Any:
    """Return JSON without numbers that it does not have: those become null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
