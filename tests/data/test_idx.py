import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from secede.data import idx
from secede.errors import DataError

# Two images of 1 x 3 pixels.
IMAGES = struct.pack(">4I", 0x0803, 2, 1, 3) + bytes([0, 1, 2, 253, 254, 255])
PACKED = gzip.compress(IMAGES)
LABELS = struct.pack(">2I", 0x0801, 3) + bytes([7, 0, 9])


def written(folder: Path, content: bytes) -> Path:
    path = folder / "file-ubyte.gz"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("packed", [PACKED, IMAGES], ids=["gzip", "plain"])
def test_images_are_read_row_by_row(tmp_path: Path, packed: bytes) -> None:
    images = idx.read_images(written(tmp_path, packed))
    assert images.dtype == np.uint8
    assert images.tolist() == [[[0, 1, 2]], [[253, 254, 255]]]


def test_labels_are_read(tmp_path: Path) -> None:
    assert idx.read_labels(written(tmp_path, gzip.compress(LABELS))).tolist() == [7, 0, 9]


def test_images_where_labels_belong_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, PACKED)
    with pytest.raises(DataError, match=r"file-ubyte.gz: found images .* expected .* of labels"):
        idx.read_labels(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "found no idx file .*nothing", id="empty"),
        pytest.param(b"\x08\x03", "found no idx file", id="two bytes"),
        pytest.param(b"<html>not found</html>", "found no idx file", id="html"),
        pytest.param(IMAGES[:10], "ends inside its header", id="half a header"),
        pytest.param(IMAGES[:-1], "holds 5 of the 6 bytes", id="too short"),
        pytest.param(IMAGES + b"\0", "holds more than the 6 bytes", id="too long"),
        pytest.param(gzip.compress(IMAGES[:-1]), "holds 5 of the 6 bytes", id="packed too short"),
        pytest.param(PACKED[:-9], "truncated or damaged gzip", id="cut gzip"),
        pytest.param(PACKED[:-4], "truncated or damaged gzip", id="cut gzip trailer"),
        pytest.param(PACKED[:-8] + bytes(8), "truncated or damaged gzip", id="wrong gzip checksum"),
        pytest.param(PACKED + b"garbage", "truncated or damaged gzip", id="bytes after gzip"),
        pytest.param(PACKED[:10] + b"\xff" * 20, "truncated or damaged gzip", id="broken gzip"),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DataError, match=message) as caught:
        idx.read_images(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_header_over_two_gib_is_refused_before_reading(tmp_path: Path) -> None:
    header = struct.pack(">4I", 0x0803, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    with pytest.raises(DataError, match="2 GiB"):
        idx.read_images(written(tmp_path, header + bytes(100)))


def test_a_header_that_promises_too_much_takes_no_memory(tmp_path: Path) -> None:
    # Just inside the limit: without reading in chunks this would reserve the whole 2 GiB.
    header = struct.pack(">4I", 0x0803, 2**21, 32, 32)
    with pytest.raises(DataError, match="holds 100 of the 2,147,483,648 bytes"):
        idx.read_images(written(tmp_path, header + bytes(100)))


def test_a_missing_file_or_a_folder_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        idx.read_images(tmp_path / "absent")
    with pytest.raises(DataError, match="directory"):
        idx.read_images(tmp_path)
