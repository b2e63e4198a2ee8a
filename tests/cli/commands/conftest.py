from __future__ import annotations

from pathlib import Path

import pytest

from harness.erasure import small
from harness.erasure.verifiable import verifiable
from secede.erasure.storage.home import Home
from secede.errors import SecedeError


@pytest.fixture
def recorded_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, list[dict[str, object]]]:
    """A project whose runs are written down instead, and what they were given."""
    from secede.flower.deploy import runs, server_home
    from secede.flower.deploy.scaffold import write_project

    given: list[dict[str, object]] = []

    def run(_project: object, config: dict[str, object], **_: object) -> str:
        given.append(config)
        raise SecedeError("run 7 ended")

    monkeypatch.setattr(runs, "run", run)
    monkeypatch.setattr(runs, "check_running", lambda _: None)
    for name in ("check_leaver", "prepare_erasure"):
        monkeypatch.setattr(server_home, name, lambda *_, **__: None)
    for name in ("last_request", "earlier_result"):
        monkeypatch.setattr(server_home, name, lambda *_: None)
    return str(write_project(tmp_path / "p", sites=["a", "b"], port=9092).folder), given


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a receipt, its keys, the model and the ledger."""
    return verifiable(tmp_path)


@pytest.fixture(scope="session")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return small.make(tmp_path_factory.mktemp("founded"))


@pytest.fixture
def home_and_request(founded: Home, tmp_path: Path) -> tuple[Home, Path]:
    """A home and a signed request."""
    home = small.copy(founded, tmp_path / "home")
    path = tmp_path / "request.json"
    path.write_bytes(small.ask(home))
    return home, path
