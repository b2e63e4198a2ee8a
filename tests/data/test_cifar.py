import io
import pickle
import struct
import tarfile
from pathlib import Path

import pytest

from secede.data import cifar
from secede.errors import DataError

NAMES = ("data_batch_1", "data_batch_2", "test_batch")
PIXELS = bytes(range(256)) * 12  # one image: 3072 bytes
RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
NDARRAY = b"cnumpy\nndarray\n"
DTYPE = b"cnumpy\ndtype\n"
BYTE_TYPE = (
    DTYPE + b"U\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
)


def text(value: bytes) -> bytes:
    return pickle.SHORT_BINSTRING + bytes([len(value)]) + value


def whole(number: int) -> bytes:
    return pickle.BININT + struct.pack("<i", number)


def array(rows: int, content: bytes, *, kind: bytes = BYTE_TYPE, columns: int = 3072) -> bytes:
    shape = whole(rows) + whole(columns) + pickle.TUPLE2
    data = pickle.BINSTRING + struct.pack("<i", len(content)) + content
    start = RECONSTRUCT + NDARRAY + b"K\x00\x85" + text(b"b") + b"\x87R"
    return start + b"(K\x01" + shape + kind + b"\x89" + data + b"tb"


def batch(labels: list[int], pixels: bytes, *, data: bytes | None = None) -> bytes:
    """What upstream's Python 2 wrote: a dict of strings, a list of small numbers, an array."""
    data = array(len(labels), pixels) if data is None else data
    numbers = b"".join(whole(label) for label in labels)
    items = text(b"labels") + b"]q\x01(" + numbers + b"e" + text(b"data") + data
    return b"\x80\x02}q\x00(" + items + b"u."


def test_a_batch_in_upstreams_form_is_read_channels_first() -> None:
    read = cifar.parse(batch([3, 9], PIXELS + bytes(3072)), "batch")
    assert read.images.shape == (2, 3, 32, 32)
    assert read.labels.tolist() == [3, 9]
    # The second row of the red plane starts at byte 32, the green plane at byte 1024 = 4 * 256.
    assert read.images[0, 0, 1, 0] == 32
    assert read.images[0, 1, 0, 5] == 5
    assert read.images[1].max() == 0


def test_code_in_a_pickle_never_runs(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    command = f"touch {trace}".encode()
    call = b"cposix\nsystem\n" + text(command) + b"\x85R"
    with pytest.raises(DataError, match=r"names 'posix\.system'"):
        cifar.parse(batch([1], PIXELS, data=call), "batch")
    assert not trace.exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"cbuiltins\neval\n" + text(b"1") + b"\x85R", r"names 'builtins\.eval'"),
        (b"cnumpy\nload\n" + text(b"x") + b"\x85R", r"names 'numpy\.load'"),
        (b"cnumpy.core.multiarray\nscalar\n", r"names 'numpy\.core\.multiarray\.scalar'"),
        (NDARRAY + whole(2**31 - 1) + b"\x85R", "not callable"),
        (RECONSTRUCT + NDARRAY + whole(2**31 - 1) + b"\x85U\x01b\x87R", "out of nothing"),
        (array(1, PIXELS, kind=DTYPE + b"U\x01O\x85R"), "expected bytes"),
        (array(1, PIXELS, kind=b"N"), "not bytes in C order"),
        (array(2**31 - 1, PIXELS), "but 3,072 bytes"),
        (b"cposix\n\x1b[2J\n", r"names 'posix\.\\x1b"),
        (RECONSTRUCT + b"}(" + text(b"a") + b"K\x01ub", "changes a global name"),
        (b"]K\x01b", "not a CIFAR-10 batch"),
        (b"iposix\nsystem\n", "INST"),
        (b"\x8c\x05posix\x8c\x06system\x93", "SHORT_BINUNICODE"),
        (NDARRAY + b")\x81", "EMPTY_TUPLE"),
        (b"Pname\n", "PERSID"),
        (b"\x82\x01", "EXT1"),
        (b"}r\xff\xff\xff\x7f", "2,147,483,647 memo entries"),
        (b"0" * 10, "POP"),
        (b"N" * 200_001 + b".", "at step 200,001"),
    ],
)
def test_what_upstream_does_not_contain_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        cifar.parse(batch([1], PIXELS, data=data), "batch")


def test_a_shape_of_text_is_not_multiplied_out() -> None:
    # 2**31 - 1 times a string of one letter would be 2 GiB.
    shape = whole(2**31 - 1) + text(b"a") + pickle.TUPLE2
    start = RECONSTRUCT + NDARRAY + b"K\x00\x85U\x01b\x87R"
    data = start + b"(K\x01" + shape + BYTE_TYPE + b"\x89" + text(b"abc") + b"tb"
    with pytest.raises(DataError, match="but 3 bytes"):
        cifar.parse(batch([1], PIXELS, data=data), "batch")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated, or no CIFAR-10 batch"),
        (b"<html></html>", "refused|no CIFAR-10 batch"),
        (batch([1], PIXELS)[:-1], "truncated, or no CIFAR-10 batch"),
        (batch([1], PIXELS)[:500], "truncated, or no CIFAR-10 batch"),
        (b"\x80\x02}.", "lacks the data or the labels"),
        (b"\x80\x02].", "lacks the data or the labels"),
        (batch([1, 2], PIXELS * 2, data=array(1, PIXELS)), "1 images but 2 labels"),
        (batch([10], PIXELS), "from 0 to 9"),
        (batch([-1], PIXELS), "from 0 to 9"),
        (batch([1], b"", data=array(1, b"abc", columns=3)), r"expected \(n, 3072\)"),
    ],
)
def test_a_damaged_batch_is_one_clear_error(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        cifar.parse(content, "some/data_batch_1")
    assert str(caught.value).startswith("some/data_batch_1: ")


def batch_files(folder: Path) -> dict[str, Path]:
    paths = {name: folder / name for name in NAMES}
    for label, path in enumerate(paths.values()):
        path.write_bytes(batch([label], PIXELS))
    return paths


def test_batches_are_read_from_their_files(tmp_path: Path) -> None:
    read = cifar.read(batch_files(tmp_path))
    assert [read[name].labels.tolist() for name in NAMES] == [[0], [1], [2]]


def test_a_file_too_large_for_a_batch_is_not_parsed(tmp_path: Path) -> None:
    paths = batch_files(tmp_path)
    with paths["data_batch_2"].open("ab") as file:
        file.truncate(cifar.LIMIT_BYTES + 1)
    with pytest.raises(DataError, match="data_batch_2: over 40,000,000 bytes"):
        cifar.read(paths)


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_the_archive_is_read_in_place_and_other_members_ignored(tmp_path: Path) -> None:
    members = {
        f"{cifar.ARCHIVE_FOLDER}/{name}": batch([label], PIXELS) for label, name in enumerate(NAMES)
    }
    members |= {
        "../escaped": b"x",
        "data_batch_1": b"not this one",
        f"{cifar.ARCHIVE_FOLDER}/batches.meta": b"nor this",
    }
    read = cifar.read_archive(archive(tmp_path / "cifar.tar.gz", members), NAMES)
    assert [read[name].labels.tolist() for name in NAMES] == [[0], [1], [2]]
    assert [path.name for path in tmp_path.iterdir()] == ["cifar.tar.gz"]


def test_an_archive_without_a_batch_says_which(tmp_path: Path) -> None:
    members = {f"{cifar.ARCHIVE_FOLDER}/{name}": batch([0], PIXELS) for name in NAMES[:-1]}
    with pytest.raises(DataError, match="lacks test_batch"):
        cifar.read_archive(archive(tmp_path / "a.tar.gz", members), NAMES)


def test_a_damaged_archive_is_one_clear_error(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tar.gz", {f"{cifar.ARCHIVE_FOLDER}/x": PIXELS})
    for broken in (path.read_bytes()[:60], b"garbage", b""):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"a.tar.gz: truncated or damaged archive") as caught:
            cifar.read_archive(path, NAMES)
        assert "\n" not in str(caught.value)
