from __future__ import annotations

from pathlib import Path

import pytest

from secede.errors import SecedeError


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[dict[str, object]]]:
    """A project whose runs are written down instead, and what they were given."""
    from secede.flower.deploy import preflight, results, runs
    from secede.flower.deploy.scaffold import write_project

    given: list[dict[str, object]] = []

    def run(_project: object, config: dict[str, object], **_: object) -> str:
        given.append(config)
        raise SecedeError("run 7 ended")

    monkeypatch.setattr(runs, "run", run)
    monkeypatch.setattr(runs, "check_running", lambda _: None)
    for name in ("leaving", "erasure"):
        monkeypatch.setattr(preflight, name, lambda *_, **__: None)
    for name in ("request", "already"):
        monkeypatch.setattr(results, name, lambda *_: None)
    return str(write_project(tmp_path / "p", sites=["a", "b"], port=9092).folder), given
