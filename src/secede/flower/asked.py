"""What a run's config asks for beside training: an erasure, or only its plan.

erasure = { home = "home", leaver = "", trigger = "", options = "" }   # in the app's pyproject.toml

`leaver` names who leaves, `trigger` why. `options` is JSON with any of: `wishes` (fields of
`secede.erasure.planning.planner.Wishes`), `gone`, `request` (a file) and `dry_run`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from pydantic import Field, ValidationError

from secede.erasure.planning import options as wishing
from secede.erasure.types import Document, faults
from secede.errors import ConfigError
from secede.flower.erase import erase, plan
from secede.flower.secagg import legacy_api
from secede.flower.secagg.recording import Secure
from secede.flower.storage.store import Store


class Options(Document):
    """How it shall be done."""

    wishes: dict[str, Any] = Field(default_factory=dict)
    gone: bool = False
    request: str = ""
    dry_run: bool = False


def erase_if_asked(
    grid: Grid,
    strategy: Strategy | legacy_api.Strategy,
    store: Store,
    context: Context,
    *,
    secure: Secure | None = None,
) -> bool:
    """Erase whom the run's config names, and return True; False if it names nobody: train.

    RolledBackError if it came to nothing, so that the run ends as failed. A dry run says the plan
    as one line of JSON. `secure` is the workflow of a training under secure aggregation.
    """
    config = context.run_config
    leaver, trigger = str(config.get("erasure.leaver", "")), config.get("erasure.trigger")
    if not leaver:
        return False
    options = _options(str(config.get("erasure.options", "") or "{}"))
    wishes = wishing.read(options.wishes)
    if options.dry_run:
        found = plan(
            grid, strategy, store, leaver=leaver, wishes=wishes, gone=options.gone, secure=secure
        )
        store.tell(found.line())
        return True
    erase(
        grid,
        strategy,
        store,
        leaver=leaver,
        request=Path(options.request) if options.request else None,
        trigger=str(trigger) if trigger else None,
        wishes=wishes,
        gone=options.gone,
        secure=secure,
    ).check()
    return True


def _options(text: str) -> Options:
    try:
        return Options.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"erasure.options: {faults(error)}") from error
