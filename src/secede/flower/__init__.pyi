from .client.mod import CanaryOptions as CanaryOptions
from .client.mod import ClientErasure as ClientErasure
from .erasure import EraseOptions as EraseOptions
from .erasure import Outcome as Outcome
from .erasure import erase as erase
from .erasure import erase_if_asked as erase_if_asked
from .erasure import plan as plan
from .rounds.recording import recording as recording
from .secagg.recording import secure_recording as secure_recording
from .storage.store import Store as Store

__all__: list[str]
