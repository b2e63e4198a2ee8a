"""The server's memory of a federation that NVFlare runs: the same folder as Flower's."""

from __future__ import annotations

from secede.flower.storage.store import Store as FlowerStore


class Store(FlowerStore):
    """A federation's folder at the server."""

    engine = "nvflare"
    packages = ("nvflare", "flwr")
