"""Hostile files: each is refused within 2 GB of memory and 10 seconds, in one line.

Every file is read in a process of its own, which the system stops at either limit.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import sqlite3
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secede.errors import SecedeError

MEMORY, SECONDS = 2 * 10**9, 10
LONGEST = 600  # characters of an error
# What reads a file: a line of Python that has `path`, a Path.
READERS = {
    "cifar": "from secede.data import cifar; cifar.read({'test_batch': path})",
    "archive": "from secede.data import cifar; cifar.read_archive(path, ('test_batch',))",
    "idx": "from secede.data import idx; idx.read_images(path)",
    "npz": "from secede.data import npz; npz.read(path)",
    "config": "from secede.experiments import presets; presets.load(str(path))",
    "config.json": "from secede.reports.records import schema; schema.read_config(path)",
    "result.json": "from secede.reports.records import schema; schema.read_result(path.parent)",
    "curves.jsonl": "from secede.reports.records import schema; schema.read_curves(path, ['a'])",
    "record": "from secede.experiments import records; records.read_json(path)",
    "receipt": "from secede.erasure import canonical_json as c; "
    "c.parse_json(c.read_bounded(path, 10**6), 10**6)",
    "ledger": "from secede.erasure.storage import ledger; ledger.verify_ledger(path)",
    "journal": "from secede.erasure import Journal; Journal(path, read_only=True)",
    "registry": "from secede.erasure import ModelRegistry; ModelRegistry(path, read_only=True)",
    "federation.json": "from secede.erasure import Home; Home(path.parent).federation",
}
PROGRAM = """
import sys
from pathlib import Path
from secede.errors import SecedeError
path = Path(sys.argv[1])
try:
    {reader}
except SecedeError as error:
    print(type(error).__name__, error)
else:
    print("read")
"""


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def refusal(kind: str, path: Path) -> str:
    """What a file of a kind is refused with."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(reader=READERS[kind]), path],
        capture_output=True,
        timeout=3 * SECONDS,  # others may have the cores; RLIMIT_CPU counts this process's own
        preexec_fn=limited,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-500:]
    told = done.stdout.decode()
    assert told.count("\n") == 1
    name, _, message = told.rstrip().partition(" ")
    assert name in {error.__name__ for error in SecedeError.__subclasses__()}
    assert len(message) - len(str(path)) < LONGEST
    return message


def nested(end: bytes) -> bytes:
    """A tuple of three of a tuple of three, 40 deep: 3**40 items to whoever walks through it."""
    inner = b"N" + b"".join(b"q%ch%ch%c\x87" % (i, i, i) for i in range(40))
    return b"\x80\x02" + end.replace(b"NESTED", inner)


_DTYPE = b"cnumpy\ndtype\n"
_ARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
_STATE = _DTYPE + b"U\x02u1K\x00K\x01\x87R"
PICKLES = {
    "a kind of numbers": nested(_DTYPE + b"NESTED\x85R."),
    "a shape": nested(_ARRAY + b"NESTEDU\x01b\x87R."),
    "a key": nested(b"}NESTEDK\x01" + b"(u."),
    "pixels' shape": nested(
        _ARRAY + b"K\x00\x85U\x01b\x87R(K\x01NESTED" + _STATE + b"\x89U\x01atb."
    ),
    "a product": b"\x80\x02"
    + _ARRAY
    + b"K\x00\x85U\x01b\x87R(K\x01("
    + b"J\xff\xff\xff\x7f" * 190_000
    + b"t"
    + _STATE
    + b"\x89U\x01atb.",
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_that_grows_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "test_batch"
    path.write_bytes(PICKLES[name])
    assert "refused" in refusal("cifar", path) or "not a CIFAR-10 batch" in refusal("cifar", path)


def member(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def zeros(path: Path, size: int, start: bytes = b"") -> None:
    """Write `start` and so many zeros, gzipped."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(start)
        for _ in range(size // 2**20):
            file.write(bytes(2**20))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.REGTYPE])
def test_an_archive_whose_header_announces_gigabytes_is_refused(
    tmp_path: Path, kind: bytes
) -> None:
    zeros(tmp_path / "a.tar.gz", 2**30, member("x", 6 * 10**9, kind))
    assert "too large" in refusal("archive", tmp_path / "a.tar.gz")


def test_an_archive_with_a_header_made_for_backtracking_is_refused(tmp_path: Path) -> None:
    digits = b"1" * 2**20
    with gzip.open(tmp_path / "a.tar.gz", "wb") as file:
        file.write(member("x", len(digits), tarfile.XHDTYPE) + digits + bytes(1024))
    assert "lacks test_batch" in refusal("archive", tmp_path / "a.tar.gz")


def test_an_archive_of_many_members_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.tar.gz", "wb") as file:
        file.write(member("x", 0) * 500_000)
    assert "too large" in refusal("archive", tmp_path / "a.tar.gz")


@pytest.mark.parametrize(
    ("shape", "unpacked", "told"),
    [
        ((0, 2**32 - 1, 2**32 - 1), 0, "no sample at all"),
        ((2**19, 32, 32), 2**29, "would unpack to 536,870,912 bytes"),
        ((2**21, 32, 32), 0, "at most 600,000,000 are allowed"),
    ],
)
def test_an_idx_file_that_grows_is_refused(
    tmp_path: Path, shape: tuple[int, ...], unpacked: int, told: str
) -> None:
    zeros(tmp_path / "x.gz", unpacked, struct.pack(">4I", 0x0803, *shape))
    assert told in refusal("idx", tmp_path / "x.gz")


LARGE = 10**8  # bytes of a file: what costs microseconds for each twenty of them takes minutes


def repeated(path: Path, piece: bytes, start: bytes = b"", size: int = LARGE) -> Path:
    """Write `start`, and a piece again and again until the file has a size."""
    block = piece * (2**20 // len(piece) + 1)
    with path.open("wb") as file:
        file.write(start)
        for _ in range(size // len(block)):
            file.write(block)
    return path


_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\x03"
GZIPPED = {
    "empty parts": (b"", gzip.compress(b"")),
    "parts of a byte": (b"", gzip.compress(b"a")),
    "an idx header, then empty parts": (
        gzip.compress(struct.pack(">4I", 0x0803, 1000, 28, 28)),
        gzip.compress(b""),
    ),
    "an idx header, then small parts": (
        gzip.compress(struct.pack(">4I", 0x0803, 700_000, 28, 28)),
        gzip.compress(bytes(200)),
    ),
    "a name without end": (_GZIP_HEADER[:3] + b"\x08" + _GZIP_HEADER[4:], b"a"),
    "empty blocks": (_GZIP_HEADER, b"\0\0\0\xff\xff"),
    "padding": (gzip.compress(b""), b"\0"),
}


@pytest.mark.parametrize(
    ("kind", "name"), [*(("idx", name) for name in GZIPPED), ("archive", "empty parts")]
)
def test_a_large_gzipped_file_that_holds_next_to_nothing_is_refused(
    tmp_path: Path, kind: str, name: str
) -> None:
    start, piece = GZIPPED[name]
    path = repeated(tmp_path / "x.gz", piece, start)
    message = refusal(kind, path)
    path.unlink()
    told = ("gzip parts hold", "gzipped bytes hold", "found no idx file (it starts with 61616161)")
    assert any(words in message for words in told)


def test_parts_of_a_kilobyte_are_unpacked_in_time(tmp_path: Path) -> None:
    start = gzip.compress(struct.pack(">4I", 0x0803, 765_000, 28, 28))
    path = repeated(tmp_path / "x.gz", gzip.compress(bytes(1025)), start, 20 * 10**6)
    assert "holds more than the 599,760,000 bytes" in refusal("idx", path)


def npy(shape: tuple[int, ...], kind: str = "|u1") -> bytes:
    buffer = io.BytesIO()
    fields = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def npz(path: Path, **members: tuple[bytes, int]) -> Path:
    """Write an .npz whose members are a start and so many zeros, small ones where none is given."""
    small = {"x_train": (4, 2), "y_train": (4,), "x_test": (4, 2), "y_test": (4,)}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, shape in small.items():
            start, size = members.get(name, (npy(shape), int(np.prod(shape))))
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                file.write(start)
                while size > 0:
                    file.write(bytes(min(size, 2**20)))
                    size -= 2**20
    return path


def test_an_npz_that_grows_is_refused(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", x_train=(npy((2**20, 2**10)), 2**30))
    assert path.stat().st_size < 2 * 10**6
    assert "its arrays would take 9.7 GB, more than the 600.0 MB allowed" in refusal("npz", path)


def test_an_npz_whose_arrays_grow_together_is_refused(tmp_path: Path) -> None:
    part = (npy((2**16, 2**10)), 2**26)
    path = npz(tmp_path / "x.npz", x_train=part, x_test=part)
    assert "its arrays would take 1.2 GB" in refusal("npz", path)


def test_an_npz_whose_header_announces_gigabytes_is_refused(tmp_path: Path) -> None:
    start = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31)
    path = npz(tmp_path / "x.npz", x_train=(start, 2**31))
    assert "x_train is damaged" in refusal("npz", path)


def test_an_npz_with_a_million_members_is_refused(tmp_path: Path) -> None:
    row = b"PK\1\2" + struct.pack("<6H3I5H2I", 20, 20, 0, 0, 0, 33, *[0] * 3, 4, *[0] * 6) + b"aaaa"
    path = repeated(tmp_path / "x.npz", row)
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"PK\5\6" + struct.pack("<4H2IH", 0, 0, 65535, 65535, size, 0, 0))
    assert "a list of members" in refusal("npz", path)


def test_an_npz_of_labels_without_samples_is_refused(tmp_path: Path) -> None:
    count = 64 * 10**6
    path = npz(tmp_path / "x.npz", x_train=(npy((count, 0)), 0), y_train=(npy((count,)), count))
    assert path.stat().st_size < 100_000
    assert "samples without a value" in refusal("npz", path)


def test_an_npz_whose_packed_bytes_are_worth_nothing_is_refused(tmp_path: Path) -> None:
    blocks = b"\0\0\0\xff\xff" * 10**6
    path = npz(tmp_path / "x.npz")
    content = path.read_bytes()
    # x_train comes first: its local header, and its row in the list, tell the packed size.
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("x_train.npy")
    tampered = content.replace(
        struct.pack("<2I", info.compress_size, info.file_size),
        struct.pack("<2I", info.compress_size + len(blocks), info.file_size),
    )
    path.write_bytes(tampered)
    assert "packed into 5,0" in refusal("npz", path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_npz_packed_as_numpy_packs_nothing_is_refused(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w", method) as archive:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            archive.writestr(f"{name}.npy", npy((4, 2) if name[0] == "x" else (4,)) + bytes(8))
    assert "as numpy packs nothing" in refusal("npz", tmp_path / "x.npz")


def test_json_of_millions_of_values_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "curves.jsonl"
    path.write_text(json.dumps(POINT)[:-1] + ', "junk": [' + "[]," * 10_000_000 + "0]}\n")
    assert "more than 4,000,000 values" in refusal("curves.jsonl", path)


def test_a_home_of_millions_of_values_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "federation.json"
    path.write_text('{"name": [' + "[]," * 15_000_000 + "0]}")
    assert "more than 4,000,000 values" in refusal("federation.json", path)


@pytest.mark.parametrize("kind", ["ledger", "journal", "registry"])
def test_a_database_of_hundreds_of_thousands_of_tables_is_refused(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO sqlite_master VALUES ('table', ?, ?, 2, ?)",
            ((f"t{i}", f"t{i}", f"CREATE TABLE t{i} (a, b, c, d)") for i in range(300_000)),
        )
        connection.execute("COMMIT")
    assert "damaged" in refusal(kind, path)


@pytest.mark.parametrize("line", [b'{"at": [' + b"[]," * 300_000 + b"0]}\n", b"a" * 2**21])
def test_a_large_ledger_of_nothing_is_refused_at_its_first_row(tmp_path: Path, line: bytes) -> None:
    assert "line 1: " in refusal("ledger", repeated(tmp_path / "x.jsonl", line))


def deep(depth: int) -> str:
    return "[" * depth + "]" * depth


def with_value(value: str) -> str:
    return '{"seed": ' + value + "}"


DIGITS = "9" * 4_000
SURROGATE = '"\\ud800"'
POINT: dict[str, Any] = {
    "arm": "a",
    "round": 0,
    "scores": {},
    "digest": "",
    "cost": dict.fromkeys(
        ("rounds", "upload_bytes", "download_bytes", "gradient_samples", "seconds"), 0
    ),
}
CONFIG: dict[str, Any] = {
    "name": "n",
    "data": "mnist",
    "model": "m",
    "clients": {"count": 5, "leaver": 0},
    "scenario": {"name": "clean"},
    "methods": ["fine-tune"],
}


@pytest.mark.parametrize("kind", ["config.json", "result.json", "curves.jsonl", "record"])
@pytest.mark.parametrize(
    ("value", "told"),
    [
        (deep(900), "nested more than 32 deep"),
        (deep(400_000), "nested more than 32 deep"),
        (DIGITS, "a whole number of 4,000 digits"),
        ("9" * 5_000, "a whole number of 5,000 digits"),
        (SURROGATE, "half a surrogate pair"),
    ],
)
def test_json_that_breaks_its_readers_is_refused(
    tmp_path: Path, kind: str, value: str, told: str
) -> None:
    path = tmp_path / kind
    path.write_text(with_value(value))
    assert told in refusal(kind, path)


def test_a_round_far_ahead_is_missing_rounds(tmp_path: Path) -> None:
    path = tmp_path / "curves.jsonl"
    path.write_text(json.dumps(POINT | {"round": 300_000_000}) + "\n")
    assert "a has no row for round 0" in refusal("curves.jsonl", path)


def test_a_long_file_of_records_is_refused(tmp_path: Path) -> None:
    row = json.dumps(POINT | {"junk": [[]] * 10_000})
    path = tmp_path / "curves.jsonl"
    path.write_text("".join(row.replace('"round": 0', f'"round": {i}') + "\n" for i in range(700)))
    assert path.stat().st_size < 32 * 2**20
    path.write_text(path.read_text() + "{")
    assert "line 701: incomplete or not JSON" in refusal("curves.jsonl", path)
    path.write_text(path.read_text() * 2)
    assert "over 33,554,432 bytes" in refusal("curves.jsonl", path)


def test_many_methods_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | {"methods": [str(i) for i in range(100_000)]}))
    assert "methods: " in refusal("config.json", path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = " + "[" * 5_000, "nested too deep"),
        (".".join("a" * 2_000) + " = 1", "nested too deep"),
        (".".join("a" * 15_000) + " = 1", "nested too deep"),
        (".".join("a" * 30_000) + " = 1", "over 32,000 characters"),
        (".".join("a" * 500_000) + " = 1", "over 128,000 bytes"),
        (f"rounds = {DIGITS}", "rounds"),
        (f"rounds = {'9' * 5_000}", "not valid TOML"),
        (f"[training]\nlearning_rate = {DIGITS}", "learning_rate"),
    ],
)
def test_toml_that_breaks_its_reader_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    assert told in refusal("config", path)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [fifo, device])
@pytest.mark.parametrize(
    "kind", sorted(READERS.keys() - {"journal", "registry", "federation.json"})
)
def test_a_pipe_or_a_device_is_no_file(
    tmp_path: Path, kind: str, make: Callable[[Path], None]
) -> None:
    path = tmp_path / (kind if "." in kind else "x.toml")
    make(path)
    assert "not a regular file" in refusal(kind, path)
