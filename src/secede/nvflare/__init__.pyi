from .client import CanaryOptions as CanaryOptions
from .client import ClientErasure as ClientErasure
from .controller import FederationController as FederationController
from .controller import Store as Store

__all__: list[str]
