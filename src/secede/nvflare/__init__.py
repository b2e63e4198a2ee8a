"""Erasure on a federation that NVFlare runs: the only place that imports nvflare.

erasure = ClientErasure(load_model, load_data)           # in the client's script
model = erasure.receive(); ...; erasure.send(trained)
job.to_server(FederationController(home="home", model="net:Net", leaver="name:site-3"))

Messages, store and workflow are those of secede.flower; NVFlare's tasks carry them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

for _name in ("nvflare", "flwr"):
    if find_spec(_name) is None:
        raise ImportError(
            f"secede.nvflare needs {_name}, which is not installed: pip install '.[nvflare]' in a "
            "checkout, or 'secede[nvflare]' from a release"
        )

if TYPE_CHECKING:
    from secede.nvflare.client import ClientErasure as ClientErasure
    from secede.nvflare.controller import FederationController as FederationController
    from secede.nvflare.controller import Store as Store
    from secede.nvflare.tasks import TaskGrid as TaskGrid

_HOMES = {
    "ClientErasure": "client",
    "FederationController": "controller",
    "Store": "controller",
    "TaskGrid": "tasks",
}

__all__ = ["ClientErasure", "FederationController", "Store", "TaskGrid"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'secede.nvflare' has no attribute {name!r}")
    return getattr(import_module(f"secede.nvflare.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
