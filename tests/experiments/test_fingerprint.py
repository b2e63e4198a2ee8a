from __future__ import annotations

from pathlib import Path

import pytest

import tiny
from secede.errors import DataError
from secede.experiments import presets
from secede.experiments.fingerprint import fingerprints


def test_a_users_data_and_model_are_told_by_their_content(tmp_path: Path) -> None:
    config = presets.load(str(tiny.write(tmp_path)))
    first = fingerprints(config, tmp_path)
    assert set(first) == {"data", "model"}
    (tmp_path / "tiny_model.py").write_text(tiny.MODEL + "# changed\n")
    second = fingerprints(config, tmp_path)
    assert (second["data"], second["model"] == first["model"]) == (first["data"], False)
    (tmp_path / "tiny.npz").write_bytes(b"other")
    assert fingerprints(config, tmp_path)["data"] != first["data"]


def test_named_things_need_none_and_missing_files_are_refused(tmp_path: Path) -> None:
    assert fingerprints(presets.load("demo"), None) == {}
    config = presets.load(str(tiny.write(tmp_path)))
    (tmp_path / "tiny.npz").unlink()
    with pytest.raises(DataError, match=r"tiny\.npz: no such file"):
        fingerprints(config, tmp_path)
