"""The mod of a Flower client that can leave, and its handlers.

`mod` lies outside of any mod that changes the update (clipping, noise) and inside secure
aggregation, so that what it keeps is what the mean is made of; see docs/flower.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from secede.canaries import CanaryOptions as CanaryOptions
from secede.canaries import MakeCanary
from secede.flower._flwr import client_mods, has_client_fn
from secede.flower.client import mod_checks, secagg_checks
from secede.flower.client.leaving_client import LeavingClient
from secede.flower.client.question_log import MAX_WORD
from secede.flower.client.tasks import preserved_randomness
from secede.flower.protocol import arrays, messages
from secede.state import State
from secede.text import printable, shorten

logger = logging.getLogger(__name__)

Handler = Callable[[Message, Context], Message]
DataT = TypeVar("DataT")


class ClientErasure(LeavingClient[Context]):
    """What an existing ClientApp needs: a mod that keeps its updates, and three handlers.

    `load_data` is called with the client's context. All parameters are those of LeavingClient.
    """

    _mod_answers = False  # whatever lies inside of the mod
    _is_registered = False
    _mods_around: Sequence[object] = ()

    def mod(self, message: Message, context: Context, call_next: Handler) -> Message:
        """Keep the update that leaves this client in a round of training; pass on all else."""
        if self._mod_answers and message.metadata.message_type in messages.MESSAGE_TYPES:
            return self._answer(message, context)
        if message.metadata.message_type != "train":
            return call_next(message, context)
        secagg_checks.check_order(message)
        client = messages.read_client(message)
        home, serving = messages.pop_home(message)
        fault = self._find_fault(message, context)
        samples = self._try_out(message, context)
        start = _start(message) if home else None  # before the app may change the message
        reply = call_next(message, context)
        if not reply.has_content():
            return reply
        if samples and home and not secagg_checks.is_hidden(message):
            messages.add_samples(reply, samples)
        if fault and home and not secagg_checks.is_hidden(message):
            messages.add_fault(reply, fault)
        told = self._canaries_record(message, context)
        kept = self._keep(
            reply, message, context, home=home, serving=serving, client=client, start=start
        )
        if kept and home and secagg_checks.is_hidden(message) and kept.digest is not None:
            messages.add_update_digest(reply, kept.digest)
        if told is not None and home:
            messages.add_canaries(reply, told)
        return reply

    def with_canaries(
        self,
        dataset: DataT,
        context: Context,
        *,
        classes: int | None = None,
        make_canary: MakeCanary | None = None,
    ) -> DataT:
        """Return this client's own training set with canaries in it, the same in every round.

        It is a loader, a map-style data set or a tuple of tensors, as `load_data` returns them, and
        comes back in that form. Which canaries there are is decided the first time.
        """
        planted: DataT = self._plant(dataset, context, classes=classes, make_canary=make_canary)
        return planted

    def register(self, app: ClientApp) -> ClientApp:
        """Add the handlers and return `app`: `train.unlearn`, `query.secede`, `query.leave`.

        Where the mod is among the app's own, it replies to tasks, and no mod inside of it gets
        them. An app that is made of a `client_fn` takes no handlers.
        """
        mods = client_mods(app)
        secagg_checks.check_mods(mods, self.mod)
        self._is_registered = True
        self._mods_around = mod_checks.mods_around(mods, self.mod)
        self._mod_answers = self.mod in mods or has_client_fn(app)
        if has_client_fn(app):
            return app
        app.train(messages.UNLEARN)(self._answer)
        app.query(messages.QUERY)(self._answer)
        app.query(messages.LEAVE)(self._answer)
        return app

    def _find_fault(self, message: Message, context: Context) -> str:
        """Return, and log, why an erasure's messages will not reach this client; "" if they do."""
        if not self._is_first(message, context):
            return ""
        fault = mod_checks.UNREGISTERED
        if self._is_registered:
            with preserved_randomness():
                found = mod_checks.find_faults(self._mods_around, message, context)
            fault = shorten(printable(found), MAX_WORD)
        if fault:
            logger.warning(f"an erasure cannot ask this client: {fault}")
        return fault

    def _folder_name(self, context: Context) -> str:
        # In a simulation node ids change in each run, but partitions do not.
        partition = context.node_config.get("partition-id")
        return f"node-{context.node_id}" if partition is None else f"partition-{int(partition)}"

    def _source(self, context: Context) -> Context:
        return context


def _start(message: Message) -> State | None:
    """Return the model that a round's message holds, None if it holds no single one."""
    records = list(message.content.array_records.values())
    return arrays.to_tensors(records[0]) if len(records) == 1 else None
