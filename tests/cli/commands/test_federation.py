from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import tiny
from harness.erasure import small
from secede.cli.commands.federation import _usable_name, init
from secede.erasure.receipts.verify import verify_receipt
from secede.erasure.storage.home import Home
from secede.errors import ConfigError, StoppedError


def test_settings_that_an_erasure_will_not_have_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, said in (("", False), ("[settings.second-choice]\nepochs = 1\n", True)):
        folder = tmp_path / f"{said}"
        folder.mkdir()
        init(folder / "home", str(tiny.write(folder, f"{tiny.CONFIG}\n{text}")))
        assert ("an erasure has --set" in capsys.readouterr().out) is said


@pytest.mark.parametrize("there_before", [False, True])
def test_a_founding_that_is_interrupted_says_that_nothing_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there_before: bool
) -> None:
    path = tmp_path / "new"
    if there_before:
        path.mkdir()
        (path / "mine.txt").write_text("stays")

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("secede.simulation.new_federation._train", interrupted)
    words = "is no home" if there_before else "nothing was written"
    with pytest.raises(StoppedError, match=f"interrupted: .*{words}") as caught:
        init(path, str(tiny.write(tmp_path)), json=True)
    assert caught.value.exit_code == 130
    assert path.exists() == there_before
    assert not there_before or (path / "mine.txt").read_text() == "stays"


def test_a_federation_is_called_after_its_experiment() -> None:
    assert _usable_name("tiny") == "tiny"
    assert _usable_name("paper/mnist backdoor") == "paper-mnist-backdoor"


def test_controller_and_contact_reach_receipt_and_page(tmp_path: Path) -> None:
    told = {"controller": "University Hospital North", "contact": "privacy@north.example"}
    path = str(tiny.write(tmp_path, small.CONFIG))
    init(tmp_path / "home", path, name=small.NAME, **told)  # type: ignore[arg-type]
    home = Home(tmp_path / "home")
    assert home.federation.model_dump(include=set(told)) == told
    outcome = small.erase(home, small.receive(home).id)
    assert outcome.receipt is not None
    assert outcome.page is not None
    verified = verify_receipt(outcome.receipt.read_bytes(), home.keyring(), ledger=home.ledger)
    stated = verified.statement.predicate.federation
    assert stated.model_dump(include=set(told)) == told
    assert stated.digest == home.federation.digest()
    assert "Controller: <b>University Hospital North</b>" in outcome.page.read_text()


def test_a_contact_that_cannot_be_shown_is_refused_before_the_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"contact 'a[?]b' cannot be used"):
        init(tmp_path / "home", str(tiny.write(tmp_path)), contact="a\nb")
    assert not (tmp_path / "home").exists()


def test_canaries_can_be_asked_for_and_are_committed_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tiny.CONFIG + "canaries = { copies = 1, max_share = 0.4 }\n"
    path = str(tiny.write(tmp_path, text))
    init(tmp_path / "with", path, canaries=8)
    assert "canaries: planted by 3 of 3 clients, and committed to" in capsys.readouterr().out
    scopes = [client.scope for client in Home(tmp_path / "with").federation.clients]
    planted = [scope.canaries.commitment.samples for scope in scopes if scope.canaries]
    assert planted == [8, 8, 8]
    init(tmp_path / "without", path)
    assert "receipts will say that forgetting is undetermined" in capsys.readouterr().out
