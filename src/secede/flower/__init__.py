"""Erasure on a live Flower federation. Only this package and secede.nvflare import flwr.

erasure = ClientErasure(load_model, load_data)           # at the client
app = ClientApp(mods=[erasure.mod]); erasure.register(app)
strategy = recording(FedAvg(), Store("home", load_model))    # at the server
erase(grid, strategy, store, leaver="name:site-3", trigger="contract-ended")
"""

from importlib.util import find_spec

import lazy_loader

if find_spec("flwr") is None:
    raise ImportError(
        "secede.flower needs Flower, which is not installed: pip install '.[flower]' in a "
        "checkout, or 'secede[flower]' from a release"
    )

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
