"""Ensembles of models for an audit: many federations, trained, retrained and erased end to end."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
