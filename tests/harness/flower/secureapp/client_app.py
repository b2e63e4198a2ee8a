from __future__ import annotations

import torch
from fastapp import task
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import NDArrays

from secede.flower import ClientErasure
from secede.flower.client.limits import ClientLimits


class Site(NumPyClient):
    """A client as Flower's legacy workflows know it."""

    def __init__(self, context: Context) -> None:
        self.x, self.y = task.load_data(context)

    def fit(self, parameters: NDArrays, config):  # type: ignore[no-untyped-def]
        model = task.load_model()
        arrays = map(torch.tensor, parameters)
        model.load_state_dict(dict(zip(model.state_dict(), arrays, strict=True)))
        task.train(model, self.x, self.y)
        return [value.numpy() for value in model.state_dict().values()], len(self.y), {}


def client_fn(context: Context) -> Client:
    return Site(context).to_client()


erasure = ClientErasure(
    task.load_model, task.load_data, consent=True, limits=ClientLimits(hidden_steps=1)
)
app = erasure.register(ClientApp(client_fn, mods=[secaggplus_mod, erasure.mod]))
