"""The erasure of one client, from a signed request to a signed receipt that verifies offline.

Other packages import from here alone, what `__init__.pyi` lists; each name's module is loaded when
the name is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
