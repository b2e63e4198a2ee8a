from .erase import erase as erase
from .options import AuditOptions as AuditOptions
from .runner import Audit as Audit
from .runner import Progress as Progress
from .runner import run_audit as run_audit
