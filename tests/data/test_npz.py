import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from secede.data import npz
from secede.errors import DataError


def save(folder: Path, **changes: Any) -> Path:
    """Write a good file of four and two grey 5 x 6 images, with the changes asked for."""
    arrays: dict[str, Any] = {
        "x_train": np.full((4, 5, 6), 51, np.uint8),
        "y_train": np.array([0, 1, 2, 1]),
        "x_test": np.zeros((2, 5, 6), np.uint8),
        "y_test": np.array([0, 1]),
    }
    arrays |= changes
    path = folder / "own.npz"
    np.savez_compressed(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


def test_bytes_are_scaled_and_get_a_channel(tmp_path: Path) -> None:
    dataset = npz.read(save(tmp_path))
    assert dataset.name == "own.npz"
    assert dataset.train.x.shape == (4, 1, 5, 6)
    torch.testing.assert_close(dataset.train.x, torch.full((4, 1, 5, 6), 0.2))
    assert dataset.train.y.tolist() == [0, 1, 2, 1]
    assert dataset.train.y.dtype == torch.int64
    assert dataset.classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((7,), (7,)),
        ((5, 6), (1, 5, 6)),
        ((3, 5, 6), (3, 5, 6)),
        ((5, 6, 3), (3, 5, 6)),
        ((5, 6, 1), (1, 5, 6)),
        ((3, 6, 3), (3, 6, 3)),
        ((2, 5, 6), (2, 5, 6)),
    ],
)
def test_images_are_turned_channels_first(
    tmp_path: Path, given: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    path = save(tmp_path, x_train=np.zeros((4, *given)), x_test=np.zeros((2, *given)))
    assert npz.read(path).shape == expected


def test_channels_last_pixels_keep_their_place(tmp_path: Path) -> None:
    x = np.zeros((2, 5, 6, 3), np.uint8)
    x[1, 4, 2, 0] = 255
    dataset = npz.read(save(tmp_path, x_train=np.zeros((4, 5, 6, 3)), x_test=x))
    assert dataset.test.x.nonzero().tolist() == [[1, 0, 4, 2]]


@pytest.mark.parametrize("kind", ["float16", "float64", ">f4"])
def test_floats_are_kept(tmp_path: Path, kind: str) -> None:
    values = np.array([[-2.5, 300.0]] * 4, dtype=kind)
    dataset = npz.read(save(tmp_path, x_train=values, x_test=values[:2]))
    assert dataset.train.x.dtype == torch.float32
    assert dataset.train.x[0].tolist() == [-2.5, 300.0]


@pytest.mark.parametrize("kind", ["uint8", "int32", "uint16", ">i8"])
def test_labels_may_be_any_integers_and_have_gaps(tmp_path: Path, kind: str) -> None:
    labels = {"y_train": np.array([0, 4, 4, 0], dtype=kind), "y_test": np.array([4, 0])}
    dataset = npz.read(save(tmp_path, **labels))
    assert dataset.train.y.tolist() == [0, 4, 4, 0]
    assert dataset.classes == ("0", "1", "2", "3", "4")


def test_a_class_that_only_the_test_part_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="y_test has class 4, of which y_train has no sample"):
        npz.read(save(tmp_path, y_test=np.array([0, 4])))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": None}, "lacks x_test; expected x_train, .*found .'x_train.npy', 'y_test.npy'"),
        ({"y_train": np.array(["cat", "dog", "cat", "dog"])}, "y_train: found values of type <U3"),
        ({"y_train": np.array([0.0, 1.0, 2.0, 1.0])}, "y_train: found torch.float64"),
        ({"y_train": np.array([True, False, True, False])}, "y_train: found torch.bool"),
        ({"y_train": np.array([0, 1, -1, 0])}, "y_train: found label -1"),
        ({"y_train": np.array([[0], [1], [0], [1]])}, r"y_train: shape \(4, 1\)"),
        ({"y_train": np.array([0, 1, 10**9, 0])}, "found label 1000000000"),
        ({"y_train": np.array([0, 1, 2**64 - 1, 0], np.uint64)}, "y_train: found label -1"),
        ({"y_train": np.array([0, 1])}, "x_train holds 4 samples but y_train 2 labels"),
        ({"y_test": np.array([], np.int64)}, "y_test: is empty"),
        ({"x_test": np.zeros((0, 5, 6))}, "x_test: is empty"),
        ({"x_test": np.zeros((2, 5, 7))}, r"x_train .*\(1, 5, 6\), x_test of \(1, 5, 7\)"),
        ({"x_train": np.full((4, 5, 6), np.nan)}, "x_train: holds NaN"),
        ({"x_train": np.full((4, 5, 6), np.inf)}, "x_train: holds NaN, infinite"),
        ({"x_train": np.full((4, 5, 6), 1e300)}, "x_train: holds NaN, infinite or too large"),
        ({"x_train": np.zeros((4, 5, 6), np.int64)}, "x_train: found torch.int64, expected uint8"),
        ({"x_train": np.zeros((4, 5, 6), complex)}, "x_train: found torch.complex128"),
        ({"x_train": np.zeros(4)}, r"x_train: shape \(4,\)"),
        ({"x_train": np.array(1.0)}, r"x_train: shape \(\)"),
        ({"x_train": np.zeros((4, 1, 5, 6, 7))}, r"x_train: shape \(4, 1, 5, 6, 7\)"),
        ({"x_train": np.array([{}, {}, {}, {}])}, "x_train: holds Python objects"),
        ({"x_train": np.zeros(4, "f4,i4")}, "x_train: found values of type"),
    ],
)
def test_each_fault_is_one_line_with_file_and_key(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = save(tmp_path, **changes)
    with pytest.raises(DataError, match=message) as caught:
        npz.read(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def replace_member(path: Path, key: str, content: bytes) -> Path:
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, former in members.items():
            new.writestr(name, content if name == f"{key}.npy" else former)
    return path


def header(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    fields = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header((10**15,)) + bytes(10), "x_train: announces .* 1,000,000,000,000,000 bytes, but"),
        (header((4, 5, 6)) + bytes(119), "120 bytes, but holds 119"),
        (header((4, 5, 6)) + bytes(121), "120 bytes, but holds 121"),
        (header((-1, -120)) + bytes(120), "x_train is damaged"),
        (b"", "x_train is damaged"),
        (b"garbage", "x_train is damaged"),
        (header((4, 5, 6))[:40], "x_train is damaged"),
        (b"\x93NUMPY\x03\x00" + bytes(100), r"array format \(3, 0\)"),
        (b"\x93NUMPY\x01\x00\x04\x00((((", "x_train is damaged"),
    ],
)
def test_a_lying_or_broken_header_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        npz.read(replace_member(save(tmp_path), "x_train", content))


def test_an_array_that_unpacks_beyond_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npz, "LIMIT_BYTES", 119)
    with pytest.raises(DataError, match="x_train: 120 bytes when unpacked"):
        npz.read(save(tmp_path))


def test_what_is_no_zip_or_a_cut_one_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path)
    content = path.read_bytes()
    newer = content.replace(b"PK\x01\x02-\x03-", b"PK\x01\x02-\x03\xff")  # zip version 25.5
    for broken in (b"", b"hello", content[: len(content) // 2], newer):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"own.npz: not an .npz file, or a damaged one"):
            npz.read(path)


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path)
    content = bytearray(path.read_bytes())
    content[content.index(b"y_train.npy") - 40] ^= 0xFF  # the end of x_train's packed bytes
    path.write_bytes(content)
    with pytest.raises(DataError, match="x_train is damaged"):
        npz.read(path)


def test_a_missing_file_and_a_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent.npz: cannot be read: No such file"):
        npz.read(tmp_path / "absent.npz")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        npz.read(tmp_path)
