"""Rehearsals: candidate methods on a simulated twin of a federation, and the one to take."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
