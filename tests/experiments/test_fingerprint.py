from __future__ import annotations

from pathlib import Path

import pytest

from harness import tiny
from secede.errors import DataError
from secede.experiments import presets
from secede.experiments.fingerprint import fingerprints, own_source


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


def test_what_a_model_imports_from_beside_it_counts(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    package = tmp_path / "nets"
    package.mkdir()
    (package / "__init__.py").write_text("from .build import build\n")
    (package / "build.py").write_text("import torch\nfrom nets import layers\nbuild = layers.x\n")
    (package / "layers.py").write_text("x = 1\n")
    (tmp_path / "unrelated.py").write_text("y = 1\n")
    text = tiny.CONFIG.replace("tiny_model:build", "nets:build")
    (tmp_path / "nets.toml").write_text(text)
    config = presets.load(str(tmp_path / "nets.toml"))
    first = fingerprints(config, tmp_path)["model"]
    (tmp_path / "unrelated.py").write_text("y = 2\n")
    assert fingerprints(config, tmp_path)["model"] == first
    (package / "layers.py").write_text("x = 2\n")
    assert fingerprints(config, tmp_path)["model"] != first


def test_the_files_of_a_named_data_set_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECEDE_DATA", str(tmp_path))
    names = [f"emnist47-derived-{part}" for part in ("train", "test")]
    for name in names:
        for kind in ("images-idx3", "labels-idx1"):
            (tmp_path / f"{name}-{kind}-ubyte.gz").write_bytes(b"one")
    config = presets.load("paper/emnist47-flipped-5")
    first = fingerprints(config, None)
    (tmp_path / f"{names[0]}-labels-idx1-ubyte.gz").write_bytes(b"two")
    assert fingerprints(config, None) != first


def test_the_digest_of_our_own_source_changes_with_any_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("__init__.py", "part.py"):
        (tmp_path / name).write_text("x = 1\n")
    monkeypatch.setattr("secede.__file__", str(tmp_path / "__init__.py"))
    first = own_source.__wrapped__()
    assert first == own_source.__wrapped__()
    (tmp_path / "part.py").write_text("x = 2\n")
    assert own_source.__wrapped__() != first
