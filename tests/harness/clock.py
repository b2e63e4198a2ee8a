"""A stopped clock."""

from __future__ import annotations

from datetime import datetime, tzinfo
from types import ModuleType

import pytest


def stop_clock(monkeypatch: pytest.MonkeyPatch, module: ModuleType, time: datetime) -> None:
    """Let a module's `datetime.now` return this time."""

    class Stopped(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return time.astimezone(tz)

    monkeypatch.setattr(module, "datetime", Stopped)
