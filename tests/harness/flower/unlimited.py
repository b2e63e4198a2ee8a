"""Clients that answer whatever they are asked: for what engines compute, not for who may ask."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from secede.flower.client import leaving_client
from secede.flower.client.limits import ClientLimits
from secede.flower.protocol import messages
from secede.unlearning import Reply, client_tasks
from secede.unlearning.method import LocalResult

MANY = 10**9


class NoLimits(ClientLimits):
    """Bounds that bound nothing."""

    def check_step(self, *_: Any, **__: Any) -> None: ...

    def check_known(self, *_: Any, **__: Any) -> None: ...

    def check_result(self, *_: Any) -> None: ...

    def check_loss(self, *_: Any) -> None: ...

    def blurred(self, reply: Reply, *_: Any) -> Reply:
        return reply

    def hidden_result(self, result: LocalResult, *_: Any) -> LocalResult:
        return result


def no_limits() -> NoLimits:
    return NoLimits(steps=MANY, monthly_steps=MANY, questions=MANY, monthly=MANY)


def unlimit(patch: pytest.MonkeyPatch) -> None:
    """Let clients take steps without request and plan."""
    patch.setattr(leaving_client.LeavingClient, "_check_consent", lambda *_: None)
    patch.setattr(leaving_client, "check_planned", lambda *_: None)
    patch.setattr(messages, "read_plan", lambda _: SimpleNamespace(digest=str))
    patch.setattr(client_tasks, "ANSWERED", client_tasks.LOCAL)
