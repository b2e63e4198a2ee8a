"""What several unlearning methods share: descent, ascent, what is measured at the leaver."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
