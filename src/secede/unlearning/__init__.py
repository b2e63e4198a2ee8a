"""Unlearning methods, one file each in `methods`; `registry` lists their names and needs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
