"""The page of an audit, from its ensembles and their scores; never torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
