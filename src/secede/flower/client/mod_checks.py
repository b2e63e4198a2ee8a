"""Whether the mods of a user let an erasure's messages through, tried before the first training.

Such a mod may expect records of its own in every message, reply to what it does not know, or change
what passes: months later the client could not be asked.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from flwr.app import Context, Message, RecordDict

from secede.flower._flwr import message_like, records_to_bytes, secagg_mod, secaggplus_mod
from secede.flower.protocol import messages

UNREGISTERED = "erasure.mod answers nothing without app = erasure.register(ClientApp(...))"
_ADVICE = "put it inside, ClientApp(mods=[erasure.mod, ...]), or let it pass on what is not its own"
_WORDS = 100  # characters of an error


def mods_around(mods: Sequence[object], ours: object) -> list[object]:
    """Return the mods of an app that a question passes before ours; all if ours is not there."""
    outside = mods[: mods.index(ours)] if ours in mods else mods
    return [mod for mod in outside if mod not in (secagg_mod, secaggplus_mod)]


def find_faults(mods: Sequence[object], message: Message, context: Context) -> str:
    """Return which mods do not pass on which of our messages, and why; "" if all do."""
    faults = list[str]()
    for mod in mods:
        kinds = {kind: _fault(mod, kind, message, context) for kind in messages.MESSAGE_TYPES}
        if failing := sorted(kind for kind, fault in kinds.items() if fault):
            name = getattr(mod, "__name__", type(mod).__name__)
            faults.append(f"{name!r} {kinds[failing[0]]} ({', '.join(failing)})")
    return f"mod {', '.join(faults[:2])}; {_ADVICE}" if faults else ""


def _fault(mod: object, kind: str, message: Message, context: Context) -> str:
    came = list[bool]()

    def answer(asked: Message, _: Context) -> Message:
        came.append(_same(asked, messages.trial_question()))
        return Message(messages.trial_reply(), reply_to=asked)

    if not callable(mod):
        return "is no mod"
    try:
        question = message_like(message, kind, messages.trial_question())
        reply = mod(question, copy.deepcopy(context), answer)
    except Exception as error:  # whatever a user's code raises
        return f"fails: {type(error).__name__}: {str(error)[:_WORDS]}"
    if not came:
        return "does not pass it on"
    if not came[0]:
        return "changes it"
    return "" if _same(reply, messages.trial_reply()) else "changes the reply"


def _same(message: object, expected: RecordDict) -> bool:
    """Return whether a message has the expected records as they are, and no further arrays."""
    if not isinstance(message, Message) or not message.has_content():
        return False
    found = RecordDict(
        {name: message.content[name] for name in expected if name in message.content}
    )
    arrays = set(message.content.array_records) == set(expected.array_records)
    return arrays and records_to_bytes(found) == records_to_bytes(expected)
