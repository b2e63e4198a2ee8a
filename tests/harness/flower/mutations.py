"""Hostile sites: each reply is an honest one of which something was changed, drawn from a seed.

They change what the server parses (headers, names, kinds, metrics, JSON, records), never the values
of a well-formed update: those are the guard's matter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection
from random import Random
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)

from harness.flower.inprocess import Site
from secede.errors import GuardError
from secede.flower.protocol import arrays
from secede.flower.protocol.messages import error_message, is_erasure_round

Change = Callable[[Random, Any], None]
STEP, COUNT, TRAIN = "train.unlearn", "query.secede", "train"
SPITE = "\x1b[2J\r\nINFO: 'site-0' was erased\u202e\u2028\x00{}%s'\""
REPORT = {"gradient_samples": 60, "epochs": 1, "ended_by": "epochs", "distance": 0.1}


class Hostile:
    """Sites that answer at once; from `mutate` on with mutated replies, of which a list is kept."""

    def __init__(self, seed: int, count: int = 50) -> None:
        self._draw, self.mutated = Random(seed), frozenset[str]()
        self.sent = list[tuple[str, str]]()  # who sent a mutated reply, and what was changed
        self.sites = [
            Site(
                name=f"hostile-{n:02}",
                node=8_000_000_000_000_000_000 + n,
                config={"partition-id": 100 + n},
                key=f"hostile key {n}".encode(),
                app=self.answering(f"hostile-{n:02}"),
            )
            for n in range(count)
        ]

    def mutate(self, *kinds: str) -> None:
        """Mutate the replies to messages of these types from now on, those to others not."""
        self.mutated = frozenset(kinds)

    def kinds(self, name: str) -> list[str]:
        """Return what a site changed in each of its replies."""
        return [kind for sender, kind in self.sent if sender == name]

    def answering(self, name: str) -> Any:
        """Return the app of a site, which answers without computing anything."""

        def app(message: Message, _: Context) -> Message:
            return self.answer(name, message, honest(message))

        return app

    def answer(self, name: str, message: Message, reply: Message) -> Message:
        """Return a site's honest reply, or the mutated one that it sends instead."""
        kind = message.metadata.message_type
        if kind not in self.mutated:
            return reply
        changes = CHANGES[kind]
        if kind == TRAIN and not is_erasure_round(message):
            changes = UPDATES | COMPARED
        change = self._draw.choice(sorted(changes))
        self.sent.append((name, change))
        if change == "an error":
            reason = self._draw.choice(["", SPITE, SPITE * 1000, "\n" * 99, "x" * 10**5])
            return Message(Error(self._draw.randrange(99), reason), reply_to=message)
        changes[change](self._draw, reply.content)
        return reply


def honest(message: Message) -> Message:
    """Return a reply without a fault, of 60 samples, for whatever is asked."""
    kind = message.metadata.message_type
    if kind == TRAIN:
        metrics = MetricRecord({"num-examples": 60, "loss": 1.0})
        content = {"arrays": message.content["arrays"], "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)
    if kind == COUNT:
        body = {"numbers": {"right": [0, 0, 0], "samples": [20, 20, 20]}, "samples": 60}
        record = ConfigRecord({"json": json.dumps(body)})
        return Message(RecordDict({"secede.answer": record}), reply_to=message)
    return error_message(message, GuardError("this site only trains and counts"))


def _replaced(draw: Random, content: Any, change: Callable[[Array], Array]) -> None:
    """Put another array in the place of one of the update's."""
    record = content["arrays"]
    name = draw.choice(sorted(record))
    content["arrays"] = ArrayRecord({n: change(a) if n == name else a for n, a in record.items()})


def _data(change: Callable[[Random, bytes], bytes]) -> Change:
    """Return the change of one array's bytes."""

    def put(draw: Random, content: Any) -> None:
        _replaced(
            draw, content, lambda a: Array(a.dtype, a.shape, a.stype, change(draw, bytes(a.data)))
        )

    return put


def _values(change: Callable[[Any], Any]) -> Change:
    """Return the change of one array's values."""
    return lambda draw, content: _replaced(draw, content, lambda a: Array(change(a.numpy().copy())))


def _flipped(draw: Random, data: bytes) -> bytes:
    """Change bytes of the header, none of the padding at its end."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(data.index(b"}"))
        changed[place] = draw.choice(
            [b for b in range(256) if b not in (changed[place], data[place])]
        )
    return bytes(changed)


def _header(draw: Random, data: bytes) -> bytes:
    """Put a header in the place of the true one that a parser would choke on."""
    deep = draw.choice(["-", "(", "[", "{", "~", "not "]) * draw.randint(50, 9000)
    texts = [
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({deep}4, 8), }}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2 ** draw.randint(40, 200)},), }}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': (-{draw.randint(1, 9)},), }}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (4,), }",
        "{'descr': [('a', '<f4'), ('a', '|O')], 'fortran_order': 1, 'shape': 4, }",
        "__import__('os')._exit(1)",
        deep,
        SPITE,
        "",
    ]
    text = draw.choice(texts).encode()
    version = draw.choice([b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\xff\xff"])
    size = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + size + text + data[128:]


def _cut(draw: Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data))]


def _metric(name: str, values: Callable[[Random], Any]) -> Change:
    return lambda draw, content: content["metrics"].__setitem__(name, values(draw))


def _renamed_array(draw: Random, content: Any) -> None:
    record, names = content["arrays"], sorted(content["arrays"])
    old, new = draw.choice(names), draw.choice([SPITE, "", "x" * 10**5, names[0] + "_"])
    content["arrays"] = ArrayRecord({new if n == old else n: a for n, a in record.items()})


def _without_array(draw: Random, content: Any) -> None:
    del content["arrays"][draw.choice(sorted(content["arrays"]))]


def _nothing(draw: Random, content: Any) -> None:
    for name in list(content):
        del content[name]


def _renamed_metric(draw: Random, content: Any) -> None:
    name = f"{draw.choice(['', SPITE])}{draw.random()}"  # no two alike: they would be the majority
    content["metrics"] = MetricRecord({"num-examples": 60, name: 1.0})


def _weight(draw: Random) -> Any:
    lists = [[60], [], [1e300] * 9, [math.nan]]
    return draw.choice([0, -1, -(2**63), 2**63 - 1, 0.5, -0.0, math.nan, math.inf, 1e308, *lists])


UPDATES: dict[str, Change] = {
    "bytes of a header": _data(_flipped),
    "a header": _data(_header),
    "an array cut short": _data(_cut),
    "an array too long": _data(lambda draw, data: data + draw.randbytes(draw.randint(1, 99))),
    "no bytes": _data(lambda draw, data: b""),
    "other bytes": _data(lambda draw, data: draw.randbytes(draw.randrange(999))),
    "a pickle": _data(lambda draw, data: b"cos\nsystem\n(S'exit 1'\ntR."),
    "a serialisation": lambda draw, content: _replaced(
        draw, content, lambda a: Array(a.dtype, a.shape, draw.choice(["", SPITE, "pickle"]), a.data)
    ),
    "a kind of numbers": _values(lambda v: v.astype(np.float64)),
    "whole numbers": _values(lambda v: v.astype(np.int8)),
    "a shape": _values(lambda v: v[None]),
    "not a number": _values(lambda v: np.full_like(v, np.nan)),
    "infinity": _values(lambda v: np.full_like(v, -np.inf)),
    "the name of an array": _renamed_array,
    "an array missing": _without_array,
    "an array more": lambda draw, content: content["arrays"].__setitem__(
        SPITE, Array(np.zeros(3, np.float32))
    ),
    "no arrays": lambda draw, content: content.__delitem__("arrays"),
    "no metrics": lambda draw, content: content.__delitem__("metrics"),
    "two records of arrays": lambda draw, content: content.__setitem__(SPITE, content["arrays"]),
    "two records of metrics": lambda draw, content: content.__setitem__(SPITE, content["metrics"]),
    "arrays as settings": lambda draw, content: content.__setitem__(
        "arrays", ConfigRecord({"json": SPITE})
    ),
    "nothing": _nothing,
    "the weight": _metric("num-examples", _weight),
    "no weight": lambda draw, content: content["metrics"].__delitem__("num-examples"),
    "an error": lambda draw, content: None,
}
COMPARED: dict[str, Change] = {  # faults in training, whose strategy averages metrics, too
    "the name of a metric": _renamed_metric,
    "a metric more": lambda draw, content: _metric(str(draw.random()), Random.random)(
        draw, content
    ),
    "a list of metrics": _metric("loss", lambda draw: [math.nan] * draw.randint(2, 10**4)),
}


def _body(values: Callable[[Random], Any]) -> Change:
    """Return the change of a reply's text; what is no text is put in as JSON."""

    def put(draw: Random, content: Any) -> None:
        value = values(draw)
        content["secede.answer"] = ConfigRecord(
            {"json": value if isinstance(value, str | bytes) else json.dumps(value)}
        )

    return put


def _nested(draw: Random) -> str:
    begin, end = draw.choice([("[", "]"), ('{"a":', "}")])
    depth = draw.randint(100, 10**5)
    return begin * depth + draw.choice(["", "1" + end * depth])


def _text(draw: Random) -> str:
    """Return JSON that is none, or not an object."""
    body = '{"numbers": {"right": [1, 2, 3], "samples": [20, 20, 20]}, "samples": 60}'
    texts = [
        body[: draw.randrange(len(body))],
        _nested(draw),
        f"{body},",
        f"{body[:-1]},{body[1:]}",
    ]
    literals = ["", "null", "[]", "1", '"x"', "NaN", '{"samples": Infinity}', '{"samples": 1e999}']
    return draw.choice([*texts, *literals, "\ufeff{}", SPITE, "9" * 5000, '{"a": "\\ud800"}'])


def _other(draw: Random) -> Any:
    """Return a value that is no list of three counts."""
    huge, floats = 10 ** draw.randint(16, 4000), [0.5, 1.0, 2.0]
    lists = [
        [],
        [1],
        [0] * 10**4,
        [huge, 0, 0],
        [-1, 0, 0],
        floats,
        [True, False, True],
        [[1], 2, 3],
    ]
    return draw.choice([*lists, None, 5, "abc", SPITE, {"0": 1}, [None] * 3, [SPITE] * 3])


def _counts(draw: Random) -> Any:
    """Return counts of which one thing is wrong."""
    body: dict[str, Any] = {
        "numbers": {"right": [0, 0, 0], "samples": [20, 20, 20]},
        "samples": 60,
    }
    kind = draw.randrange(6)
    if kind < 2:
        body["numbers"][draw.choice(["right", "samples"])] = _other(draw)
    elif kind == 2:
        body["samples"] = draw.choice([0, -1, 61, 59.5, 10**400, None, "60", True, [60]])
    elif kind == 3:
        body["numbers"] = draw.choice([None, [], {}, "x", {SPITE: [1]}, {"right": [1, 1, 1]}])
    elif kind == 4:
        body["numbers"]["right"] = [21, 0, 0]
    else:
        del body[draw.choice(sorted(body))]
    return body


def _error(draw: Random) -> Any:
    kinds = ["GuardError", "StateError", "ConfigError", "SystemExit", SPITE, 5, None, [], {}]
    texts = [SPITE, "x" * 10**5, None, 5, ["x"], {"a": SPITE}]
    return {"error": draw.choice(kinds), "text": draw.choice(texts)}


REPLIES: dict[str, Change] = {
    "a text": _body(_text),
    "bytes for a text": _body(lambda draw: draw.randbytes(99)),
    "the client's error": _body(_error),
    "no reply": lambda draw, content: content.__delitem__("secede.answer"),
    "a reply without its text": lambda draw, content: content["secede.answer"].__delitem__("json"),
    "a text too long": _body(lambda draw: " " * (5 << 20) + "{}"),
    "an error": lambda draw, content: None,
}
COUNTS: dict[str, Change] = REPLIES | {"counts": _body(_counts)}


def _packed(change: Callable[[Random, bytes], bytes]) -> Change:
    """Return the change of the state that a local step returns."""

    def put(draw: Random, content: Any) -> None:
        (data,) = (array.data for array in content["secede.state"].values())
        data = change(draw, bytes(data))
        array = Array("uint8", (len(data),), arrays.SAFETENSORS, data)
        content["secede.state"] = ArrayRecord({"state": array})

    return put


def _safetensors(draw: Random, data: bytes) -> bytes:
    """Change a byte of the header, which is JSON after eight bytes of its length."""
    place = draw.randrange(8 + int.from_bytes(data[:8], "little"))
    byte = draw.choice([b for b in range(256) if b != data[place]])
    return data[:place] + bytes([byte]) + data[place + 1 :]


def _report(draw: Random) -> Any:
    """Return a report of which one thing is wrong."""
    values: list[Any] = [None, "x", [], {}, 1e308, -1, 2**70, SPITE, [[[]]]]
    wrong = {draw.choice(["gradient_samples", "epochs", "ended_by"]): draw.choice([[], {"a": 1}])}
    return draw.choice([{"report": v} for v in values] + [{"report": {**REPORT, **wrong}}, {}])


STEPS: dict[str, Change] = REPLIES | {
    "bytes of a header": _packed(_safetensors),
    "a state cut short": _packed(_cut),
    "a state too long": _packed(lambda draw, data: data + b"\0" * draw.randint(1, 999)),
    "other bytes": _packed(lambda draw, data: draw.randbytes(draw.randrange(999))),
    "a long header": _packed(lambda draw, data: (2**62).to_bytes(8, "little") + data),
    "no state": lambda draw, content: content.__delitem__("secede.state"),
    "two states": lambda draw, content: content["secede.state"].__setitem__(
        "more", Array(np.zeros(3))
    ),
    "a plain state": lambda draw, content: content.__setitem__(
        "secede.state", ArrayRecord({"state": Array(np.zeros(3))})
    ),
    "a report": _body(_report),
}
CHANGES = {TRAIN: UPDATES, COUNT: COUNTS, STEP: STEPS}


def lines_about(lines: Collection[str], name: str) -> list[str]:
    """Return the lines that name a site."""
    return [line for line in lines if f"'{name}'" in line]
