"""What an audit trains beside its config: everything that its records depend on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from secede.errors import ConfigError
from secede.experiments.config import Config
from secede.experiments.config import digest as config_digest

VERSION = 1  # of the records' format and meaning; part of every audit's digest
MAX_ROUNDS = 3  # of post-training


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """The seed of an audit, how it erases, and what it makes of the models afterwards."""

    seed: int = 0
    max_rounds: int = MAX_ROUNDS  # of post-training; the config may have fewer
    keep_unused_weights: bool = False  # after a local step
    quantised: bool = True  # ask the models with weights of four bits, too
    train_on: int = 0  # rounds of ordinary training, after which the models are asked again
    relearn: bool = False  # count the steps until the leaver's samples are learnt again

    def __post_init__(self) -> None:
        for name, least in (("max_rounds", 1), ("train_on", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected {least} or more")


def audit_digest(config: Config, fingerprints: dict[str, str], options: AuditOptions) -> str:
    """Return what two audits share if a federation of one is a federation of the other.

    The number of federations is no part of it: an audit may grow.
    """
    audit = {"version": VERSION, "config": config_digest(config, fingerprints)}
    text = json.dumps(audit | {"options": asdict(options)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
