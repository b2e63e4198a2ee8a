"""Erasure on a live Flower federation. Only this package and secede.nvflare import flwr.

erasure = ClientErasure(load_model, load_data)           # at the client
app = ClientApp(mods=[erasure.mod]); erasure.register(app)
strategy = recording(FedAvg(), Store("home", load_model))    # at the server
erase(grid, strategy, store, leaver="name:site-3", trigger="contract-ended")
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if find_spec("flwr") is None:
    raise ImportError(
        "secede.flower needs Flower, which is not installed: pip install '.[flower]' in a "
        "checkout, or 'secede[flower]' from a release"
    )

if TYPE_CHECKING:
    from secede.erasure import EraseOptions as EraseOptions
    from secede.erasure import Outcome as Outcome
    from secede.flower.client.mod import ClientErasure as ClientErasure
    from secede.flower.erasure import erase as erase
    from secede.flower.erasure import erase_if_asked as erase_if_asked
    from secede.flower.erasure import plan as plan
    from secede.flower.rounds.recording import recording as recording
    from secede.flower.secagg.recording import secure_recording as secure_recording
    from secede.flower.storage.store import Store as Store

_MODULES = {
    "ClientErasure": "secede.flower.client.mod",
    "EraseOptions": "secede.erasure",
    "Outcome": "secede.erasure",
    "Store": "secede.flower.storage.store",
    "erase": "secede.flower.erasure",
    "erase_if_asked": "secede.flower.erasure",
    "plan": "secede.flower.erasure",
    "recording": "secede.flower.rounds.recording",
    "secure_recording": "secede.flower.secagg.recording",
}

__all__ = [
    "ClientErasure",
    "EraseOptions",
    "Outcome",
    "Store",
    "erase",
    "erase_if_asked",
    "plan",
    "recording",
    "secure_recording",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'secede.flower' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
