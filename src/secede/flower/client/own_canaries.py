"""A client's own canaries, in the folder of its kept updates: planted in training, read later.

`canaries.salt` is made once and all is drawn from it; `canaries.secret` holds the canaries, and
`canaries.json` the commitment that the server gets. They never change, and outlast an erasure, so
that the client can still read them offline. Whoever has salt or secret can forge a reading.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from secede import canaries as planting
from secede import files
from secede import state as states
from secede.canaries import Canaries, CanaryCounts, CanaryOptions, PlantedSource
from secede.erasure import (
    CanaryCommitment,
    commit_to_canaries,
    commit_to_samples,
    load_document,
    new_salt,
    save_document,
)
from secede.errors import ConfigError, DataError, RecordError, SecedeError
from secede.federation.training import product_precision
from secede.flower.client.tasks import SampleKeys, preserved_randomness
from secede.state import State

logger = logging.getLogger(__name__)

SALT, SECRET, COMMITMENT, NOTE = (
    "canaries.salt",
    "canaries.secret",
    "canaries.json",
    "canaries.note",
)
_MAX_BYTES = 1 << 16  # of all but the secret
_CHANGED = "this client keeps the canaries that it committed to: "


@dataclass(frozen=True)
class OwnCanaries:
    """The canaries in a client's folder; `options` are for new ones."""

    folder: Path
    options: CanaryOptions

    def plant(self, source: Any, keys: SampleKeys | None, **how: Any) -> PlantedSource:
        """Return training data with this client's canaries in it: always the same ones.

        Without canaries it is the client's own data, and the reason why, which is logged once.
        """
        with files.private():
            files.make_folder(self.folder)
            with files.lock(self.folder / ".canaries.lock"):
                try:
                    planted = self._plant(source, keys, how)
                except ConfigError as error:
                    if self.commitment() is None:
                        raise  # the first time, while somebody is there to put it right
                    reason = f"no canaries were planted this time: {error}"
                    planted = PlantedSource(source, None, reason)
                self._log_once(planted.reason)
        return planted

    def replant(self, source: Any, keys: SampleKeys | None) -> Any:
        """Return data with the canaries that this client has, if any; for what uses its data."""
        return source if self.commitment() is None else self.plant(source, keys).source

    def commitment(self) -> CanaryCommitment | None:
        """Return what this client committed to; None if it planted no canaries."""
        path = self.folder / COMMITMENT
        return load_document(CanaryCommitment, path, _MAX_BYTES) if path.exists() else None

    def load(self) -> tuple[Canaries, CanaryCommitment]:
        """Return canaries and commitment; ConfigError if there are none, RecordError if damaged."""
        committed, path = self.commitment(), self.folder / SECRET
        if committed is None:
            raise ConfigError("this client planted no canaries")
        try:
            found = planting.from_bytes(path.read_bytes())
        except (OSError, DataError) as error:
            raise RecordError(f"{path}: missing or damaged; restore it from a backup") from error
        if commit_to_samples(planting.canary_rows(found), found.secret) != committed.commitment:
            raise RecordError(f"{path}: not the canaries that this client committed to")
        return found, committed

    def _plant(self, source: Any, keys: SampleKeys | None, how: dict[str, Any]) -> PlantedSource:
        if self.commitment() is None:
            return self._plant_anew(source, keys, how)
        own, committed = self.load()
        if own.options != self.options:
            self._log_once(f"{_CHANGED}its settings were changed since")
        if own.options.kind == "made-up":
            return planting.with_same_canaries(source, own, committed.copies, keys=keys)
        again = planting.with_canaries(source, self._salt(), own.options, keys=keys, **how)
        if again.canaries is not None and planting.to_bytes(again.canaries) == planting.to_bytes(
            own
        ):
            return again
        raise ConfigError(
            f"its data was changed, and canaries of kind {own.options.kind!r} are among it"
        )

    def _plant_anew(
        self, source: Any, keys: SampleKeys | None, how: dict[str, Any]
    ) -> PlantedSource:
        planted = planting.with_canaries(source, self._salt(), self.options, keys=keys, **how)
        if planted.canaries is not None:
            path = self.folder / SECRET
            files.write_bytes(path, planting.to_bytes(planted.canaries))
            committed = commit_to_canaries(
                planting.canary_rows(planted.canaries),
                planted.canaries.secret,
                kind=planted.canaries.options.kind,
                copies=planted.copies,
                samples=planted.samples,
            )
            save_document(self.folder / COMMITMENT, committed)  # last: with it there are canaries
        return planted

    def _salt(self) -> bytes:
        path = self.folder / SALT
        if not path.exists():
            files.create(path, new_salt(), 0o600)
        return path.read_bytes()

    def _log_once(self, reason: str) -> None:
        """Log why something is not as asked for, unless that was the last thing logged."""
        path = self.folder / NOTE
        if reason and not (path.exists() and path.read_text(encoding="utf-8") == reason):
            logger.warning(reason)
            files.write_text(path, reason)


def read(
    load_model: Callable[[], nn.Module], state: State, canaries: Canaries, device: torch.device
) -> CanaryCounts:
    """Return how canaries rank in a model of the user's; ConfigError if it takes no such input."""
    with preserved_randomness(), product_precision("float32"):
        model = load_model()
        values = states.without_aliases(state, model)
        model.to(device)
        states.load_into(model, states.to(values, device))
        try:
            return planting.read(model, canaries, device=device)
        except (SecedeError, torch.OutOfMemoryError):  # the latter may be temporary
            raise
        except Exception as error:  # any error of a user's own network
            line = str(error).partition("\n")[0][:200]
            raise ConfigError(f"canaries cannot be read: {type(error).__name__}: {line}") from error
