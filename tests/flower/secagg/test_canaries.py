"""Canaries under SecAgg+: the commitment comes in the open beside the masked update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp

from harness.flower.journals import told
from harness.flower.secure import LONGER, SecureFederation
from harness.flower.small import SEED, TRAINING, load_data, load_model
from secede import state as states
from secede.canaries import CanaryOptions
from secede.data.samples import Samples
from secede.federation.training import orders, train
from secede.flower import ClientErasure


def planting(federation: SecureFederation) -> None:
    """Let a federation's sites plant canaries in what they train on."""
    erasure = ClientErasure(
        load_model,
        load_data,
        training=TRAINING,
        seed=SEED,
        consent=True,
        canaries=CanaryOptions(count=10, copies=3, max_share=0.5),
    )

    class Client(NumPyClient):
        def __init__(self, context: Context) -> None:
            self.samples = Samples(*erasure.with_canaries(load_data(context), context))

        def fit(self, parameters: Any, config: Any) -> Any:
            model = load_model()
            given = zip(model.state_dict(), map(torch.tensor, parameters), strict=True)
            states.load_into(model, dict(given))
            draw = torch.Generator().manual_seed(0)
            order = orders(len(self.samples), LONGER.epochs, draw)
            train(model, self.samples, LONGER, orders=order)
            sent = [value.numpy().copy() for value in model.state_dict().values()]
            return sent, len(self.samples), {}

    def client_fn(context: Context) -> Any:
        return Client(context).to_client()

    app = ClientApp(client_fn, mods=[secaggplus_mod, erasure.mod])
    federation.app = erasure.register(app)


def test_they_are_committed_to_and_read(tmp_path: Path) -> None:
    federation = SecureFederation(tmp_path)
    planting(federation)
    federation.train(2)
    committed = federation.store.log.canaries()
    assert set(committed) == {f"site-{n}" for n in range(4)}
    first, second = federation.store.log.rounds()
    assert first.secure
    assert all(c.canaries is None for c in second.clients)
    outcome = federation.erase()
    assert outcome.receipt is not None
    found = told(outcome.receipt)
    assert found["scope"]["canaries"] == committed["site-1"].model_dump(mode="json")
    canaries = found["verification"]["canaries"]
    assert canaries["before"]["reading"]["count"] == committed["site-1"].commitment.samples
    assert canaries["looks"]


@pytest.mark.parametrize("text", ["", "{}", "\x1b[2J", "[" * 10**5])
def test_a_malformed_commitment_is_named_and_the_client_stays_in_the_mean(
    tmp_path: Path, text: str
) -> None:
    federation = SecureFederation(tmp_path)
    planting(federation)

    def spoil(message: Message, reply: Message) -> Message:
        if "secede.canaries" in reply.content:
            reply.content["secede.canaries"] = ConfigRecord({"json": text})
        return reply

    federation.site("site-2").answer = spoil
    federation.train(1)
    (only,) = federation.store.log.rounds()
    assert {c.client for c in only.clients} == {f"site-{n}" for n in range(4)}
    assert set(federation.store.log.canaries()) == {"site-0", "site-1", "site-3"}
    assert federation.told.has("'site-2' counts as one without canaries")
