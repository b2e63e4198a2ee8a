from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import tiny
from secede.cli.commands.federation import _usable_name, init
from secede.errors import StoppedError


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
