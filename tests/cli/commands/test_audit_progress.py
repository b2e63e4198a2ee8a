from __future__ import annotations

import io

import pytest
from rich.console import Console

from harness import lines
from secede.cli.commands.audit import progress as audit_progress


def test_elsewhere_than_on_a_terminal_each_federation_is_a_line() -> None:
    told = lines.Lines()
    with audit_progress.audit_progress() as progress:
        progress.expect(3, 1, 2)
        federation = progress.begin(1, 10)
        federation.round("training")
        federation.end(2.25)
    assert told == [
        "3 federations, 1 finished already and kept; 2 at once",
        "federation 2 of 3: finished after 2.2 s",
    ]


def test_a_terminal_has_a_bar_for_each_federation_in_work(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    monkeypatch.setattr(audit_progress, "Console", lambda **_: console)
    with audit_progress.audit_progress() as progress:
        progress.expect(2, 0, 1)
        federation = progress.begin(0, 2)
        federation.round("retraining")
        progress._bars.refresh()  # type: ignore[union-attr]
        federation.end(1.0)
    shown = out.getvalue()
    assert "federation 0" in shown
    assert "retraining" in shown
    assert "1/2" in shown
