"""A grid for SecAgg+'s workflow: waits that end, replies that are looked at, and what they cost.

The workflow takes whoever is missing for a client that dropped out, so a reply that cannot be used
is left out and its client named. Flower's own cannot end a round that somebody left before it had
shared its keys: such a round begins again without it, before anybody trains. With the message that
a client trains from goes whose round it is; with its masked update comes what it calls it. Before
masks are taken off, it is looked at who is left, and written down.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Message, MessageType

from secede.errors import GuardError
from secede.flower._flwr import (
    SECAGG_CONFIGS,
    ClientProxy,
    FitIns,
    LegacyContext,
    SecAggKey,
    SecAggPlusWorkflow,
    Stage,
    bytes_to_ndarray,
    recorddict_to_fitres,
)
from secede.flower.protocol import arrays
from secede.flower.protocol import messages as wire
from secede.flower.rounds.grid import ForwardingGrid
from secede.flower.rounds.transport import Transport
from secede.flower.secagg.opened_sums import OpenedSums
from secede.state import State
from secede.text import describe_exception

logger = logging.getLogger(__name__)

FitMessages = list[tuple[ClientProxy, FitIns]]
_BEFORE = (Stage.SETUP, Stage.SHARE_KEYS)
# Of the time that is left to a round, what a stage may take; the others are quick.
_SHARES = {Stage.SETUP: 0.25, Stage.SHARE_KEYS: 0.25, Stage.COLLECT_MASKED_VECTORS: 0.75}
_HEADER = 10_240  # bytes that numpy's header before the values may take at most


class _DroppedError(Exception):
    """Somebody left a round that cannot end without it."""


class _ClosedError(Exception):
    """A sum that is not opened: the round comes to no end."""


@dataclass(kw_only=True)
class SecAggRound:
    """One round: who is in it, and what came of it by node."""

    names: Mapping[int, str]
    start: str = ""  # digest of the model that they train from
    check: Callable[[Sequence[str]], None] = lambda _names: None  # raises if so many do not do
    without_fail: bool = False  # no sum is opened if somebody fails
    serving: Mapping[int, str | None] = field(default_factory=dict)  # updates that must stay
    max_weights: Mapping[int, float] = field(default_factory=dict)  # weight that passes as honest
    group: str = ""  # of its messages; "": as the workflow calls it
    digests: dict[int, str] = field(default_factory=dict)  # as clients tell them
    faults: dict[int, str] = field(default_factory=dict)  # why somebody is not in the mean
    silent: set[int] = field(default_factory=set)  # of them, those who did not answer at all
    dropped: set[int] = field(default_factory=set)  # who left before it had shared its keys
    keys: set[bytes] = field(default_factory=set)  # public ones that came
    until: float | None = None  # when all of it ends, on the monotonic clock
    opening: bool = False  # the sum is under way, and only false shares can spoil it
    spoilt: str = ""  # why there is no mean though the sum was opened
    up: int = 0
    down: int = 0


class SecAggGrid(ForwardingGrid):
    """The grid."""

    def __init__(
        self,
        transport: Transport,
        opened: OpenedSums,
        *,
        like: State,
        home: str,
        most: float,
        seconds: float,
    ) -> None:
        super().__init__(transport.grid)
        self.transport, self.opened, self.round = transport, opened, SecAggRound(names={})
        self._like, self._home, self._most, self.seconds = like, home, most, seconds

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return the replies that can be used; all else was left out."""
        made, here = list(messages), self.round
        if not made:
            return []
        stages = {_stage(message) for message in made}
        if stages == {""}:  # an evaluation
            most = self.seconds if timeout is None else min(timeout, self.seconds)
            return self.inner.send_and_receive(made, timeout=most)
        (stage,) = stages
        if stage == Stage.UNMASK:
            self._open([message.metadata.dst_node_id for message in made])
        seconds = self._left(stage, timeout)
        for message in made:
            self._address(message, seconds)
        here.keys.clear()
        here.down += sum(arrays.size_bytes(message) for message in made)
        replies = self.transport.send(made, here.names, seconds)
        sound = list[Message]()
        for node, reply in replies.sound.items():
            here.up += arrays.size_bytes(reply)
            try:
                self._look_at(node, reply, stage)
                sound.append(reply)
            except GuardError as error:
                here.faults[node] = str(error)
        here.faults |= {**replies.failed, **replies.lost}
        came = {reply.metadata.src_node_id for reply in sound}
        for message in made:
            node = message.metadata.dst_node_id
            if node not in came:
                if node not in here.faults:
                    here.silent.add(node)
                    here.faults[node] = f"no answer came in time ({stage.replace('_', ' ')})"
                here.dropped |= {node} if stage in _BEFORE else set()
        if stage in _BEFORE and len(came) < len(made) and len(came) > 1:
            raise _DroppedError
        here.opening = stage == Stage.UNMASK
        return sound

    def carry(self, workflow: SecAggPlusWorkflow, context: LegacyContext) -> None:
        """Run a round, as often as somebody drops out of it too early."""
        while True:
            try:
                workflow(self, context)
                return
            except _DroppedError:
                continue
            except _ClosedError:
                return
            except Exception as error:  # whatever its cryptography says of false shares
                if not self.round.opening:
                    raise
                self.round.spoilt = f"false shares of keys came, or none fit ({_line(error)})"
                return

    def left(self, made: FitMessages) -> FitMessages:
        """Return a round's messages without those to clients that dropped out of it."""
        here = self.round
        stay = [(proxy, ins) for proxy, ins in made if int(proxy.cid) not in here.dropped]
        self.opened.allowed_clients(here.start, [here.names[int(proxy.cid)] for proxy, _ in stay])
        return stay

    def _open(self, nodes: Sequence[int]) -> None:
        """Write down that the sum of these is opened; raise if it must stay closed."""
        here, names = self.round, [self.round.names[node] for node in nodes]
        if len(names) < 2:  # a threshold of 0 would allow it
            raise _ClosedError
        if here.without_fail and here.faults:
            logger.info("the strategy accepts no failures: the sum stays closed")
            raise _ClosedError
        here.check(names)
        self.opened.add(here.start, names)

    def _left(self, stage: str, timeout: float | None) -> float:
        """Return how long a stage may take: a round has one end, however often it begins again."""
        here, now = self.round, time.monotonic()
        here.until = now + self.seconds if here.until is None else here.until
        left = max(0.0, here.until - now) * _SHARES.get(stage, 1.0)
        return left if timeout is None else min(timeout, left)

    def _address(self, message: Message, seconds: float) -> None:
        here, node = self.round, message.metadata.dst_node_id
        if here.group:
            message.metadata.group_id = here.group
        message.metadata.ttl = seconds
        if _stage(message) == Stage.COLLECT_MASKED_VECTORS:
            wire.add_home(message, self._home, here.serving.get(node))

    def _look_at(self, node: int, reply: Message, stage: str) -> None:
        configs = reply.content.config_records.get(SECAGG_CONFIGS)
        if configs is None:
            raise GuardError("its reply is not SecAgg+'s: is secaggplus_mod the first of its mods?")
        found = _parts(configs, stage)
        if stage == Stage.SETUP:
            self._look_at_keys([key for (key,) in found.values()])
        elif stage == Stage.COLLECT_MASKED_VECTORS:
            self._look_at_masked(node, reply, found[SecAggKey.MASKED_PARAMETERS])
        elif stage == Stage.UNMASK and not {*found[SecAggKey.NODE_ID_LIST]} <= {*self.round.names}:
            raise GuardError("it has shares of clients that take no part")

    def _look_at_keys(self, keys: Sequence[bytes]) -> None:
        """Raise unless these are two keys of its own: with others all its neighbours give up."""
        shown = [_key(key) for key in keys]
        if len({*shown} - self.round.keys) < len(shown):
            raise GuardError("its public keys are not two of its own")
        self.round.keys |= {*shown}

    def _look_at_masked(self, node: int, reply: Message, masked: Sequence[bytes]) -> None:
        here, digest = self.round, wire.pop_update_digest(reply)
        for record in reply.content.array_records.values():
            if any(len(array.data) for array in record.values()):
                raise GuardError("its update came in the open beside the masked one")
        try:
            weight = recorddict_to_fitres(reply.content, keep_input=True).num_examples
        except (KeyError, TypeError, ValueError):
            raise GuardError("its reply is no FitRes") from None
        if type(weight) is not int or weight < 1:
            raise GuardError("its num_examples is no whole number above 0")
        if weight > self._most:
            raise GuardError(
                f"its {weight:,} samples are more than SecAgg+ was told of: give "
                f"SecAggPlusWorkflow a max_weight of {weight:,} or more, now {self._most:g}"
            )
        if weight > here.max_weights.get(node, weight):
            raise GuardError(f"its weight {weight:g} is far beyond what was recorded of it")
        self._check_shapes(masked)
        if digest is not None:
            here.digests[node] = digest

    def _check_shapes(self, masked: Sequence[bytes]) -> None:
        expected = [(1,), *(tuple(value.shape) for value in self._like.values())]
        sizes = [1, *(value.numel() for value in self._like.values())]
        if len(masked) != len(expected):
            raise GuardError(f"{len(masked)} masked arrays, expected {len(expected)}")
        for data, shape, size in zip(masked, expected, sizes, strict=True):
            if len(data) > _HEADER + 8 * size:
                raise GuardError(f"a masked array takes {len(data):,} bytes, which is too many")
            try:
                found = bytes_to_ndarray(data)
            except (ValueError, EOFError, OSError, SyntaxError, MemoryError):
                raise GuardError("a masked array that cannot be read") from None
            if found.shape != shape or found.dtype.kind not in "iu":
                raise GuardError("its masked arrays are not such as the model's")


def _stage(message: Message) -> str:
    """Return which stage of SecAgg+ a message begins; "" if it is none of its messages."""
    configs = message.content.config_records.get(SECAGG_CONFIGS)
    if message.metadata.message_type != MessageType.TRAIN or configs is None:
        return ""
    return str(configs.get(SecAggKey.STAGE, ""))


def _key(data: bytes) -> bytes:
    """Return a public key's bytes; GuardError if it is none."""
    try:
        key = serialization.load_pem_public_key(data)
        if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1):
            form = serialization.PublicFormat.SubjectPublicKeyInfo
            return key.public_bytes(serialization.Encoding.DER, form)
    except (ValueError, UnsupportedAlgorithm):
        pass
    raise GuardError("its public key cannot be read")


def _line(error: Exception) -> str:
    return describe_exception(error)[:160]


def _parts(configs: ConfigRecord, stage: str) -> dict[str, list[Any]]:
    """Return what a reply holds, as lists; GuardError if the workflow could not read it."""
    found = dict[str, list[Any]]()
    for key, kind in _PARTS[stage].items():
        value: Any = configs.get(key)
        found[key] = [value] if stage == Stage.SETUP else value
        if not isinstance(found[key], list) or any(type(v) is not kind for v in found[key]):
            raise GuardError(f"its reply has no {key!r} as SecAgg+ has them")
    if len({len(each) for each in found.values()}) > 1:
        raise GuardError("its reply's lists differ in length")
    return found


_PARTS: Mapping[str, Mapping[str, type]] = {
    Stage.SETUP: {SecAggKey.PUBLIC_KEY_1: bytes, SecAggKey.PUBLIC_KEY_2: bytes},
    Stage.SHARE_KEYS: {SecAggKey.DESTINATION_LIST: int, SecAggKey.CIPHERTEXT_LIST: bytes},
    Stage.COLLECT_MASKED_VECTORS: {SecAggKey.MASKED_PARAMETERS: bytes},
    Stage.UNMASK: {SecAggKey.NODE_ID_LIST: int, SecAggKey.SHARE_LIST: bytes},
}
