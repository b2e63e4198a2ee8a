"""Ensembles: many models of each kind, compared with the kind that never saw the leaver."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
