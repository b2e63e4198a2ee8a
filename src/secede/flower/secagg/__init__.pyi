from .engine import SecureEngine as SecureEngine
from .legacy_api import SecAggSettings as SecAggSettings
from .recording import Secure as Secure
from .recording import SecureRecording as SecureRecording
