"""Data sets, partitions and samples.

Nothing is imported here, so that `secede.data.catalog` can be listed without importing torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
