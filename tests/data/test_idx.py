import gzip
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from secede.data import idx
from secede.data.idx import Unpacked
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


def test_a_header_beyond_any_data_set_is_refused_before_reading(tmp_path: Path) -> None:
    header = struct.pack(">4I", 0x0803, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    with pytest.raises(DataError, match="at most 600,000,000 are allowed"):
        idx.read_images(written(tmp_path, header + bytes(100)))


def test_a_header_that_promises_too_much_takes_no_memory(tmp_path: Path) -> None:
    # Just inside the limit: without reading in chunks this would reserve the whole 600 MB.
    header = struct.pack(">4I", 0x0803, 585_937, 32, 32)
    with pytest.raises(DataError, match="holds 100 of the 599,999,488 bytes"):
        idx.read_images(written(tmp_path, header + bytes(100)))


def test_a_missing_file_or_a_folder_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        idx.read_images(tmp_path / "absent")
    with pytest.raises(DataError, match="directory"):
        idx.read_images(tmp_path)


# Gzipped files of one part and of many


def unpacked(folder: Path, content: bytes) -> bytes:
    path = folder / "x.gz"
    path.write_bytes(content)
    with path.open("rb") as file:
        return Unpacked(file, path).read()


@pytest.mark.parametrize("level", [0, 1, 9])
@pytest.mark.parametrize("size", [0, 1, 100_000, 3_000_000])
@pytest.mark.parametrize("make", [os.urandom, bytes])
def test_what_gzip_packs_comes_out_again(
    tmp_path: Path, make: object, size: int, level: int
) -> None:
    content: bytes = make(size)  # type: ignore[operator]
    assert unpacked(tmp_path, gzip.compress(content, level)) == content


def test_parts_follow_each_other_and_zeros_may_pad_them(tmp_path: Path) -> None:
    parts = [os.urandom(70_000) for _ in range(5)]
    packed = bytes(100).join(map(gzip.compress, parts)) + bytes(20_000)
    assert unpacked(tmp_path, packed) == b"".join(parts)


def test_a_block_gzipped_file_of_thousands_of_parts_is_read(tmp_path: Path) -> None:
    part = bytes(range(256)) * 8
    assert unpacked(tmp_path, gzip.compress(part) * 5_000) == part * 5_000


def test_parts_of_next_to_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1,001 gzip parts hold 1,000 bytes together"):
        unpacked(tmp_path, gzip.compress(b"a") * 1_001)
    assert unpacked(tmp_path, gzip.compress(b"a") * 1_000) == b"a" * 1_000


@pytest.mark.parametrize("cut", [1, 8, 9, 500])
def test_a_file_that_ends_within_a_part_is_damaged(tmp_path: Path, cut: int) -> None:
    with pytest.raises(EOFError):
        unpacked(tmp_path, gzip.compress(os.urandom(1_000))[:-cut])


def test_a_wrong_checksum_is_damage(tmp_path: Path) -> None:
    with pytest.raises(zlib.error):
        unpacked(tmp_path, gzip.compress(b"abc")[:-8] + bytes(8))
