"""Scores of a model: accuracy, loss and membership attacks, with their intervals."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
