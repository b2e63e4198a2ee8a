"""secede erases one client from a trained federated model.

`__init__.pyi` lists the public interface; torch is imported when the first of its names is used, so
that the command line can answer `--help` without it.
"""

import logging
from importlib import metadata

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
try:
    __version__ = metadata.version("secede")
except metadata.PackageNotFoundError:  # the verifier alone
    __version__ = metadata.version("secede-verify")
logging.getLogger("secede").addHandler(logging.NullHandler())
