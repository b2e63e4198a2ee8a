"""Erasure on a federation that NVFlare runs. Nothing else in secede imports nvflare.

erasure = ClientErasure(load_model, load_data)           # in the client's script
model = erasure.receive(); ...; erasure.send(trained)
job.to_server(FederationController(home="home", model="net:Net", leaver="name:site-3"))

Messages, store and workflow are those of secede.flower; they travel in NVFlare's tasks.
"""

from importlib.util import find_spec

import lazy_loader

for _name in ("nvflare", "flwr"):
    if find_spec(_name) is None:
        raise ImportError(
            f"secede.nvflare needs {_name}, which is not installed: pip install '.[nvflare]' in a "
            "checkout, or 'secede[nvflare]' from a release"
        )

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
