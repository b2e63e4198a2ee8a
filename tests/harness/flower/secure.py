"""A federation under SecAgg+ in one process: real ClientApps and Flower's own protocol.

Every message crosses as bytes. What the server gets to see is kept, and so is what each client
really sent before it was masked, so that a test can look for the one in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import FitRes, bytes_to_ndarray, parameters_to_ndarrays
from flwr.common import Status as FitStatus
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.serde import message_to_proto
from flwr.common.typing import Code
from flwr.compat.common import recorddict_compat as compat
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from torch import Tensor

from harness.flower.inprocess import InProcess
from harness.flower.small import (
    OPTIONS,
    SEED,
    SIZES,
    TRAINING,
    Federation,
    initial,
    load_data,
    load_model,
    samples,
)
from secede import state as states
from secede.erasure.workflow.erase import Outcome
from secede.errors import SecedeError
from secede.federation.training import orders, train
from secede.flower import ClientErasure, erase, secure_recording
from secede.flower.client.kept_updates import KeptUpdates
from secede.flower.client.limits import ClientLimits
from secede.flower.secagg import legacy_api as legacy
from secede.unlearning import client_tasks

Mod = Callable[..., Message]
LONGER = replace(TRAINING, epochs=4)  # so that two rounds are enough
ALIKE = 0.5  # correlation that random masks do not have
Sent = dict[int, dict[str, Tensor]]  # by partition
EXACT = 1e-4  # that the reference may be off: SecAgg+ counts in steps of 16 / 2**22
LEAVER = 1
OTHERS = tuple(n for n in range(len(SIZES)) if n != LEAVER)


def fit(arrays: Sequence[np.ndarray], client: int) -> list[np.ndarray]:
    """Train on a client's own samples."""
    model, here = load_model(), samples(client)
    given = zip(model.state_dict(), arrays, strict=True)
    states.load_into(model, {n: torch.from_numpy(np.array(a)) for n, a in given})
    draw = torch.Generator().manual_seed(client)
    train(model, here, LONGER, orders=orders(len(here), LONGER.epochs, draw))
    return [value.numpy().copy() for value in model.state_dict().values()]


def train_here(message: Message, context: Context) -> Message:
    """Train in a message-API app, with the records of Flower's legacy stack."""
    client = int(context.node_config["partition-id"])
    given = compat.recorddict_to_fitins(message.content, keep_input=True).parameters
    result = FitRes(
        status=FitStatus(code=Code.OK, message=""),
        parameters=legacy.to_parameters(named(fit(parameters_to_ndarrays(given), client))),
        num_examples=SIZES[client],
        metrics={},
    )
    return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)


class Client(NumPyClient):
    """The same as Flower's own examples write it."""

    def __init__(self, client: int) -> None:
        self._client = client

    def fit(self, parameters: Any, config: Any) -> Any:
        return fit(parameters, self._client), SIZES[self._client], {}


def client_fn(context: Context) -> Any:
    return Client(int(context.node_config["partition-id"])).to_client()


def named(arrays: Sequence[np.ndarray]) -> dict[str, Tensor]:
    """Return arrays under the model's names."""
    names = load_model().state_dict()
    return {n: torch.from_numpy(np.array(a)) for n, a in zip(names, arrays, strict=True)}


# As many as a client in the open: what is tested is the way of the sums.
TAKING_STEPS = ClientLimits(hidden_steps=4, hidden_monthly_steps=6)


class SecureFederation(Federation):
    """A federation whose clients hide their updates, with other mods around ours and inside."""

    def __init__(
        self,
        folder: Path,
        *,
        around: Sequence[Mod] = (),
        inside: Sequence[Mod] = (),
        hide: Sequence[Mod] = (secaggplus_mod,),
        by_function: bool = False,
        methods: Collection[str] = client_tasks.ANSWERED,
        limits: ClientLimits = TAKING_STEPS,
        **site_options: Any,
    ) -> None:
        self.sent: list[tuple[str, Sent]] = []  # by the group of each round
        self.pieces: list[dict[int, list[bytes]]] = []  # of each round's updates
        self.seen: list[tuple[str, bytes]] = []  # type and bytes of what reached the server
        self.masked: list[tuple[int, np.ndarray]] = []  # round and numbers of what was masked
        erasure = ClientErasure(
            load_model,
            load_data,
            training=TRAINING,
            seed=SEED,
            methods=methods,
            consent=True,
            limits=limits,
        )
        used: list[Any] = [*hide, *around, erasure.mod, self._look, *inside]
        app = ClientApp(client_fn, mods=used) if by_function else ClientApp(mods=used)
        if not by_function:
            app.train()(train_here)
        super().__init__(folder, app=erasure.register(app), **site_options)
        self.secure = SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=0.5)

    def grid(self) -> InProcess:
        for site in self.sites:
            site.answer = site.answer or self._see
        return super().grid()

    def legacy(self, rounds: int = 3, **options: Any) -> LegacyContext:
        """Return the context of a training."""
        context = Context(self.runs + 1, 0, {}, RecordDict(), {})
        config = ServerConfig(num_rounds=rounds)
        return LegacyContext(context, config=config, strategy=strategy(**options))

    def train(self, rounds: int = 3, *, grid: InProcess | None = None, **options: Any) -> None:
        how = {"online_timeout": 0.3, "from_scratch": options.pop("from_scratch", False)}
        workflow = DefaultWorkflow(fit_workflow=self.secure)
        context = self.legacy(rounds, **options)
        secure_recording(workflow, self.store, **how)(grid or self.grid(), context)

    def erase(self, leaver: str = "name:site-1", **options: Any) -> Outcome:
        grid = options.pop("grid", None) or self.grid()
        usual = {"options": OPTIONS, "seed": SEED, "trigger": "other", "secure": self.secure}
        return erase(
            grid,
            options.pop("strategy", None) or strategy(),
            self.store,
            leaver=leaver,
            round_timeout=0.4,
            online_timeout=0.2,
            pause=0.01,
            **{**usual, **options},
        )

    def _look(self, message: Message, context: Context, call_next: Any) -> Message:
        """Note what leaves a client towards secure aggregation."""
        reply: Message = call_next(message, context)
        if message.metadata.message_type == "train" and reply.content.array_records:
            group, client = message.metadata.group_id, int(context.node_config["partition-id"])
            (record,) = reply.content.array_records.values()
            if not self.sent or self.sent[-1][0] != group or client in self.sent[-1][1]:
                self.sent.append((group, {}))
                self.pieces.append({})
            self.sent[-1][1][client] = sent = named(record.to_numpy_ndarrays())
            (given,) = message.content.array_records.values()
            start = named(given.to_numpy_ndarrays())
            self.pieces[-1][client] = pieces(sent, start)
        return reply

    def leaked(self) -> set[int]:
        """Return whose updates, of all rounds, can be read in what reached the server."""
        seen = [data for _, data in self.seen]
        found = {client for updates in self.pieces for client in readable(seen, updates)}
        for place, numbers in self.masked:
            found |= {n for n, sent in self.sent[place][1].items() if alike(numbers, sent)}
        return found

    def _see(self, message: Message, reply: Message) -> Message:
        data = message_to_proto(reply).SerializeToString()
        self.seen.append((message.metadata.message_type, data))
        told: Any = reply.content.config_records.get(RECORD_KEY_CONFIGS) or ConfigRecord()
        if Key.MASKED_PARAMETERS in told:
            _, *numbers = (bytes_to_ndarray(b).ravel() for b in told[Key.MASKED_PARAMETERS])
            self.masked.append((len(self.sent) - 1, np.concatenate(numbers).astype(float)))
        return reply


def strategy(**options: Any) -> FedAvg:
    """Return the mean of Flower's legacy stack."""
    usual: dict[str, Any] = {
        "fraction_evaluate": 0.0,
        "min_available_clients": 2,
        "initial_parameters": legacy.to_parameters(initial()),
    }
    return FedAvg(**{**usual, **options})


def stage_of(message: Message) -> str:
    """Return which stage of SecAgg+ a message, or a reply, belongs to; "" if to none."""
    found = message.content.config_records.get(RECORD_KEY_CONFIGS) or ConfigRecord()
    told = {
        Key.PUBLIC_KEY_1: Stage.SETUP,
        Key.CIPHERTEXT_LIST: Stage.SHARE_KEYS,
        Key.MASKED_PARAMETERS: Stage.COLLECT_MASKED_VECTORS,
        Key.SHARE_LIST: Stage.UNMASK,
    }
    names = (stage for key, stage in told.items() if key in found)
    return str(found.get(Key.STAGE) or next(names, ""))


def pieces(sent: dict[str, Tensor], start: dict[str, Tensor]) -> list[bytes]:
    """Return pieces of an update that nobody can know who only knows where it started."""
    found = list[bytes]()
    for name, value in sent.items():
        here, before = value.flatten(), start[name].to(value.dtype).flatten()
        for place in range(0, len(here), 8):
            part = slice(place, place + 8)
            if len(here[part]) >= 3 and bool((here[part] != before[part]).all()):
                found += [here[part].numpy().tobytes(), here[part].double().numpy().tobytes()]
    assert found
    return found


def alike(numbers: np.ndarray, sent: dict[str, Tensor]) -> bool:
    """Return whether whole numbers go with an update's values: quantised, but hardly masked."""
    values = np.concatenate([value.double().numpy().ravel() for value in sent.values()])
    return bool(abs(np.corrcoef(numbers, values)[0, 1]) > ALIKE)


def readable(seen: Iterable[bytes], updates: dict[int, list[bytes]]) -> set[int]:
    """Return the clients some of whose parameters can be read in what reached the server."""
    return {
        client
        for data in seen
        for client, parts in updates.items()
        if any(p in data for p in parts)
    }


def changed(stage: str, change: Any) -> Any:
    """Return an answer that differs from the honest one in what it says at a stage."""

    def answer(message: Message, reply: Message) -> Message:
        if stage_of(reply) == stage:
            change(reply)
        return reply

    return answer


def put(key: str, value: Any) -> Any:
    return lambda reply: reply.content.config_records[RECORD_KEY_CONFIGS].update({key: value})


def claim(samples: int) -> Any:
    def change(reply: Message) -> None:
        reply.content.metric_records["fitres.num_examples"]["num_examples"] = samples

    return change


def one_line(error: pytest.ExceptionInfo[SecedeError], *words: str) -> None:
    text = str(error.value)
    assert "\n" not in text
    assert all(word in text for word in words), text


def disk(federation: Federation, client: int) -> KeptUpdates:
    """Return what a client keeps on its own disk."""
    return KeptUpdates(federation.folder / f"disk-{client}" / f"partition-{client}")


def reference_error(federation: SecureFederation, client: int, others: tuple[int, ...]) -> float:
    """Return how far the leaver's reference is from the mean of what the others really sent."""
    last, model = federation.store.last_round(), federation.store.last_model()
    assert last is not None
    assert model is not None
    own = disk(federation, client).newest(federation.store.identity)
    assert own is not None
    sent = federation.sent[-1][1]
    wanted = states.mean([sent[n] for n in others], [SIZES[n] for n in others])
    found = states.reference(model, own, weight=last.share(f"site-{client}"))
    return max(float((found[name] - wanted[name]).abs().max()) for name in wanted)


# What is had
