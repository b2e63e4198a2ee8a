"""A grid for the SecAgg+ workflow: it bounds waits, checks replies and counts bytes.

The workflow takes a client without a reply for one that dropped out. So an invalid reply is left
out and its client named. Flower's workflow cannot complete a round that a client left before it
shared its keys: such a round begins again without that client, before anybody trains. The message
that a client trains from names the home; its masked update comes with a digest. Before a sum is
unmasked, its clients are checked and recorded.
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
from secede.flower.rounds import ForwardingGrid, Told, Transport, pop_told
from secede.flower.storage import OpenedSums
from secede.state import State
from secede.text import describe_exception

logger = logging.getLogger(__name__)

FitMessages = list[tuple[ClientProxy, FitIns]]
_KEY_STAGES = (Stage.SETUP, Stage.SHARE_KEYS)
# The share of a round's remaining time that a stage may take; other stages are quick.
_SHARES = {Stage.SETUP: 0.25, Stage.SHARE_KEYS: 0.25, Stage.COLLECT_MASKED_VECTORS: 0.75}
_HEADER = 10_240  # bytes that numpy's header before the values may take at most


class _DroppedError(Exception):
    """A client left a round that cannot complete without it."""


class _ClosedError(Exception):
    """A sum that must not be opened: the round does not complete."""


@dataclass(kw_only=True)
class SecAggRound:
    """One round: its clients, and its results by node."""

    names: Mapping[int, str]
    start: str = ""  # digest of the model that the clients train from
    check_quorum: Callable[[Sequence[str]], None] = lambda _names: None  # raises if too few
    requires_all: bool = False  # no sum is opened if a client fails
    serving: Mapping[int, str | None] = field(default_factory=dict)  # updates that must be kept
    max_weights: Mapping[int, float] = field(
        default_factory=dict
    )  # above them, updates are refused
    group: str = ""  # group id of its messages; "": the workflow's own
    digests: dict[int, str] = field(default_factory=dict)  # of updates, as their clients say
    told: dict[int, Told] = field(default_factory=dict)  # what clients say of their canaries
    faults: dict[int, str] = field(default_factory=dict)  # why a client is not in the mean
    silent: set[int] = field(default_factory=set)  # those of them that did not reply at all
    dropped: set[int] = field(default_factory=set)  # clients that left before they shared keys
    keys: set[bytes] = field(default_factory=set)  # public keys that came
    end: float | None = None  # of the whole round, on the monotonic clock
    unmasking: bool = False  # from now on, only false key shares can spoil the sum
    spoilt: str = ""  # why there is no mean although the sum was opened
    upload_bytes: int = 0
    download_bytes: int = 0


class SecAggGrid(ForwardingGrid):
    """A grid that runs one round of SecAgg+ after the other."""

    def __init__(
        self,
        transport: Transport,
        opened: OpenedSums,
        *,
        template: State,
        home: str,
        max_weight: float,
        timeout: float,
    ) -> None:
        super().__init__(transport.grid)
        self.transport, self.opened, self.round = transport, opened, SecAggRound(names={})
        self._template, self._home = template, home
        self._max_weight, self._timeout = max_weight, timeout

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return the valid replies."""
        sent, current = list(messages), self.round
        if not sent:
            return []
        stages = {_stage(message) for message in sent}
        if stages == {""}:  # an evaluation
            shorter = self._timeout if timeout is None else min(timeout, self._timeout)
            return self.inner.send_and_receive(sent, timeout=shorter)
        (stage,) = stages
        if stage == Stage.UNMASK:
            self._open_sum([message.metadata.dst_node_id for message in sent])
        seconds = self._stage_timeout(stage, timeout)
        for message in sent:
            self._prepare(message, seconds)
        current.keys.clear()
        current.download_bytes += sum(arrays.size_bytes(message) for message in sent)
        replies = self.transport.send(sent, current.names, seconds)
        valid = list[Message]()
        for node, reply in replies.received.items():
            current.upload_bytes += arrays.size_bytes(reply)
            try:
                self._check_reply(node, reply, stage)
                valid.append(reply)
            except GuardError as error:
                current.faults[node] = str(error)
        current.faults |= {**replies.failed, **replies.lost}
        in_time = {reply.metadata.src_node_id for reply in valid}
        for message in sent:
            node = message.metadata.dst_node_id
            if node not in in_time:
                if node not in current.faults:
                    current.silent.add(node)
                    current.faults[node] = f"no reply came in time ({stage.replace('_', ' ')})"
                current.dropped |= {node} if stage in _KEY_STAGES else set()
        if stage in _KEY_STAGES and 1 < len(in_time) < len(sent):
            raise _DroppedError
        current.unmasking = stage == Stage.UNMASK
        return valid

    def run_round(self, workflow: SecAggPlusWorkflow, context: LegacyContext) -> None:
        """Run a round, again without each client that drops out of it too early."""
        while True:
            try:
                workflow(self, context)
                return
            except _DroppedError:
                continue
            except _ClosedError:
                return
            except Exception as error:  # any error that the cryptography raises for false shares
                if not self.round.unmasking:
                    raise
                line = describe_exception(error)[:160]
                self.round.spoilt = f"clients sent false key shares, or none that fit ({line})"
                return

    def without_dropped(self, messages: FitMessages) -> FitMessages:
        """Return a round's messages without those to clients that dropped out of it."""
        dropped, names = self.round.dropped, self.round.names
        stay = [(proxy, ins) for proxy, ins in messages if int(proxy.cid) not in dropped]
        self.opened.allowed_clients(self.round.start, [names[int(p.cid)] for p, _ in stay])
        return stay

    def _open_sum(self, nodes: Sequence[int]) -> None:
        """Record that the sum of these nodes is opened; raise if it must stay closed."""
        current, names = self.round, [self.round.names[node] for node in nodes]
        if len(names) < 2:  # a threshold of 0 would allow it
            raise _ClosedError
        if current.requires_all and current.faults:
            logger.warning("the strategy accepts no failures: the sum stays closed")
            raise _ClosedError
        current.check_quorum(names)
        self.opened.add(current.start, names)

    def _stage_timeout(self, stage: str, timeout: float | None) -> float:
        """Return how long a stage may take. A round ends in time, however often it begins again."""
        current, now = self.round, time.monotonic()
        current.end = now + self._timeout if current.end is None else current.end
        left = max(0.0, current.end - now) * _SHARES.get(stage, 1.0)
        return left if timeout is None else min(timeout, left)

    def _prepare(self, message: Message, ttl: float) -> None:
        """Set a message's group and time to live, and name the home in the one that trains."""
        current, node = self.round, message.metadata.dst_node_id
        if current.group:
            message.metadata.group_id = current.group
        message.metadata.ttl = ttl
        if _stage(message) == Stage.COLLECT_MASKED_VECTORS:
            wire.add_home(message, self._home, current.serving.get(node))
            wire.add_client(message, current.names[node])

    def _check_reply(self, node: int, reply: Message, stage: str) -> None:
        configs = reply.content.config_records.get(SECAGG_CONFIGS)
        if configs is None:
            raise GuardError("its reply is not SecAgg+'s: is secaggplus_mod the first of its mods?")
        parts = _parts(configs, stage)
        if stage == Stage.SETUP:
            self._check_keys([key for (key,) in parts.values()])
        elif stage == Stage.COLLECT_MASKED_VECTORS:
            self._check_masked(node, reply, parts[SecAggKey.MASKED_PARAMETERS])
        elif stage == Stage.UNMASK and not {*parts[SecAggKey.NODE_ID_LIST]} <= {*self.round.names}:
            raise GuardError("it sent key shares of clients that take no part")

    def _check_keys(self, keys: Sequence[bytes]) -> None:
        """Raise unless a client sent two keys of its own: else all its neighbours give up."""
        public = [_key(key) for key in keys]
        if len({*public} - self.round.keys) < len(public):
            raise GuardError("its public keys are not two of its own")
        self.round.keys |= {*public}

    def _check_masked(self, node: int, reply: Message, masked: Sequence[bytes]) -> None:
        current, digest = self.round, wire.pop_update_digest(reply)
        current.told[node] = pop_told(reply, current.names[node])
        for record in reply.content.array_records.values():
            if any(len(array.data) for array in record.values()):
                raise GuardError("its update came in the open beside the masked one")
        try:
            weight = recorddict_to_fitres(reply.content, keep_input=True).num_examples
        except (KeyError, TypeError, ValueError):
            raise GuardError("its reply is no FitRes") from None
        if type(weight) is not int or weight < 1:
            raise GuardError("its num_examples is no whole number above 0")
        if weight > self._max_weight:
            raise GuardError(
                f"its {weight:,} samples are more than SecAgg+'s max_weight, {self._max_weight:g}: "
                f"give SecAggPlusWorkflow a max_weight of {weight:,} or more"
            )
        if weight > current.max_weights.get(node, weight):
            raise GuardError(f"its weight {weight:g} is far above its recorded weight")
        self._check_shapes(masked)
        if digest is not None:
            current.digests[node] = digest

    def _check_shapes(self, masked: Sequence[bytes]) -> None:
        expected = [(1,), *(tuple(value.shape) for value in self._template.values())]
        sizes = [1, *(value.numel() for value in self._template.values())]
        if len(masked) != len(expected):
            raise GuardError(f"{len(masked)} masked arrays, expected {len(expected)}")
        for data, shape, size in zip(masked, expected, sizes, strict=True):
            if len(data) > _HEADER + 8 * size:
                raise GuardError(f"a masked array takes {len(data):,} bytes, which is too many")
            try:
                array = bytes_to_ndarray(data)
            except (ValueError, EOFError, OSError, SyntaxError, MemoryError):
                raise GuardError("a masked array cannot be read") from None
            if array.shape != shape or array.dtype.kind not in "iu":
                raise GuardError("its masked arrays have other shapes or types than the model's")


def _stage(message: Message) -> str:
    """Return the stage of SecAgg+ that a message begins; "" for any other message."""
    configs = message.content.config_records.get(SECAGG_CONFIGS)
    if message.metadata.message_type != MessageType.TRAIN or configs is None:
        return ""
    return str(configs.get(SecAggKey.STAGE, ""))


def _key(data: bytes) -> bytes:
    """Return a public key's bytes in DER; GuardError if it is not one."""
    try:
        key = serialization.load_pem_public_key(data)
        if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1):
            form = serialization.PublicFormat.SubjectPublicKeyInfo
            return key.public_bytes(serialization.Encoding.DER, form)
    except (ValueError, UnsupportedAlgorithm):
        pass
    raise GuardError("its public key cannot be read")


def _parts(configs: ConfigRecord, stage: str) -> dict[str, list[Any]]:
    """Return the parts of a reply as lists; GuardError if the workflow could not read them."""
    parts = dict[str, list[Any]]()
    for key, kind in _PARTS[stage].items():
        value: Any = configs.get(key)
        parts[key] = [value] if stage == Stage.SETUP else value
        if not isinstance(parts[key], list) or any(type(v) is not kind for v in parts[key]):
            raise GuardError(f"its reply has no {key!r} as SecAgg+ has them")
    if len({len(each) for each in parts.values()}) > 1:
        raise GuardError("its reply's lists differ in length")
    return parts


_PARTS: Mapping[str, Mapping[str, type]] = {
    Stage.SETUP: {SecAggKey.PUBLIC_KEY_1: bytes, SecAggKey.PUBLIC_KEY_2: bytes},
    Stage.SHARE_KEYS: {SecAggKey.DESTINATION_LIST: int, SecAggKey.CIPHERTEXT_LIST: bytes},
    Stage.COLLECT_MASKED_VECTORS: {SecAggKey.MASKED_PARAMETERS: bytes},
    Stage.UNMASK: {SecAggKey.NODE_ID_LIST: int, SecAggKey.SHARE_LIST: bytes},
}
