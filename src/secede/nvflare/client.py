"""An NVFlare client script that can leave: it keeps its own last updates and unlearns locally.

`receive` and `send` replace NVFlare's. `receive` replies to the tasks of an erasure; the script
gets only models to train from.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import nvflare.client as flare
from flwr.app import Context, Message, RecordDict
from nvflare.app_common.abstract.fl_model import FLModel

from secede.canaries import CanaryOptions as CanaryOptions
from secede.canaries import MakeCanary
from secede.erasure import check_name
from secede.errors import ConfigError
from secede.flower.client.leaving_client import LeavingClient
from secede.flower.protocol import messages
from secede.nvflare import flmodels
from secede.state import State

DataT = TypeVar("DataT")


class ClientErasure(LeavingClient[str]):
    """What an existing script needs, after `flare.init()`.

    `load_data` is called with the site's name and returns its training data: a loader, a map-style
    data set or a tuple of tensors. `training` describes how the script trains, for local steps
    that train the same way. All parameters are those of LeavingClient.
    """

    _round: Message | None = None  # that the script trains for
    _start: State | None = None  # and the model that it trains from
    _samples = 0  # of this site, in the first round of a training; else 0

    def receive(self, timeout: float | None = None) -> FLModel | None:
        """Return the next model to train from, None at the end, like `flare.receive`."""
        while (model := flare.receive(timeout)) is not None:
            kind, message = flmodels.message_of(model) or (flmodels.TRAIN, None)
            if message is None or kind == flmodels.TRAIN:
                self._samples = 0
                if message is not None:
                    self._samples = self._try_out(message, _context(message))
                self._round, self._start = message, None
                if message is not None:  # a copy, which the script cannot change
                    self._start = {n: v.clone() for n, v in flmodels.tensors(model.params).items()}
                return model
            reply = self._answer(message, _context(message))
            flare.send(flmodels.reply_model(reply, model))
        return None

    def send(self, model: FLModel) -> None:
        """Keep an update on this site's own disk, then send it like `flare.send`."""
        message, self._round = self._round, None
        if message is not None:  # else another controller trains
            reply = flmodels.reply_of(message, model)
            client = messages.read_client(message)
            home, serving = messages.pop_home(message)
            if self._samples and home:
                flmodels.add_samples(model, self._samples)
            told = self._canaries_record(message, _context(message)) if home else None
            if told is not None:
                flmodels.add_canaries(model, told)
            self._keep(
                reply,
                message,
                _context(message),
                home=home,
                serving=serving,
                client=client,
                start=self._start,
            )
        flare.send(model)

    def with_canaries(
        self, dataset: DataT, *, classes: int | None = None, make_canary: MakeCanary | None = None
    ) -> DataT:
        """Return this site's own training set with canaries in it, the same in every job.

        It is a loader, a map-style data set or a tuple of tensors, as `load_data` returns them, and
        comes back in that form. Which canaries there are is decided the first time.
        """
        context = Context(0, 0, {}, RecordDict(), {})
        planted: DataT = self._plant(dataset, context, classes=classes, make_canary=make_canary)
        return planted

    def _check_folder(self, folder: str | os.PathLike[str]) -> None:
        if not Path(folder).is_absolute():
            raise ConfigError(
                f"folder {str(folder)[:100]!r}: expected an absolute path, since a job's own "
                "folder is deleted with it"
            )

    def _folder_name(self, context: Context) -> str:
        return check_name(str(flare.get_site_name()), "client")

    def _source(self, context: Context) -> str:
        return str(flare.get_site_name())


def _context(message: Message) -> Context:
    return Context(message.metadata.run_id, message.metadata.dst_node_id, {}, RecordDict(), {})
