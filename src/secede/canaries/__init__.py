"""Canaries: samples with a secret coin each, planted in training and read in a model later.

A model that does not depend on a client's samples cannot know the coins of its canaries: their
ranks then follow a known distribution exactly, whatever the network and the data.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
