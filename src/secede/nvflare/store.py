"""The server's store of a federation that NVFlare runs, with the same files as Flower's."""

from __future__ import annotations

from secede.flower.storage.store import Store as FlowerStore


class Store(FlowerStore):
    """A federation's folder at an NVFlare server."""

    engine = "nvflare"
    packages = ("nvflare", "flwr")
