import hashlib
import zipfile
from pathlib import Path

import pytest

from secede.data.entry import Entry, RemoteFile
from secede.data.obtain import cache_folder, obtain
from secede.errors import ConfigError, DataError

NAMES = ("a-ubyte.gz", "b-ubyte.gz")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A world without SECEDE_DATA and with an empty cache."""
    monkeypatch.delenv("SECEDE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def remote(folder: Path, name: str, content: bytes) -> RemoteFile:
    """A file that "the network", here a folder, offers."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    checksum = "sha256:" + hashlib.sha256(content).hexdigest()
    urls = ((folder / name).as_uri(),)
    return RemoteFile(name=name, urls=urls, checksum=checksum, size=len(content))


def make_entry(
    *remote: RemoteFile,
    zip_folder: str | None = None,
    layouts: tuple[tuple[str, ...], ...] = (NAMES,),
) -> Entry:
    return Entry(
        name="toy",
        description="",
        kind="idx",
        shape=(1, 1, 1),
        classes=("0",),
        train_count=1,
        test_count=1,
        licence="",
        layouts=layouts,
        folders=("toy", "Toy/raw", "."),
        remote=remote,
        zip_folder=zip_folder,
    )


def fill(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(name.encode())


@pytest.mark.parametrize("folder", ["toy", "Toy/raw", "."])
def test_files_are_found_below_secede_data(
    home: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    fill(home / "data" / folder, *NAMES)
    monkeypatch.setenv("SECEDE_DATA", str(home / "data"))
    assert obtain(make_entry()) == {name: home / "data" / folder / name for name in NAMES}


def test_unpacked_files_serve_as_well(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(home / "data", "a-ubyte", "b-ubyte.gz")
    monkeypatch.setenv("SECEDE_DATA", str(home / "data"))
    assert [path.name for path in obtain(make_entry()).values()] == ["a-ubyte", "b-ubyte.gz"]


def test_a_second_layout_serves_where_the_first_is_not_whole(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(home / "data", "a-ubyte.gz", "all.tar.gz")
    monkeypatch.setenv("SECEDE_DATA", str(home / "data"))
    found = obtain(make_entry(layouts=(NAMES, ("all.tar.gz",))))
    assert found == {"all.tar.gz": home / "data" / "all.tar.gz"}


def test_missing_files_are_downloaded_into_the_cache_once(home: Path) -> None:
    network = home / "network"
    entry = make_entry(*(remote(network, name, name.encode()) for name in NAMES))
    found = obtain(entry)
    assert found == {name: home / "cache" / "secede" / "toy" / name for name in NAMES}
    assert found["a-ubyte.gz"].read_bytes() == b"a-ubyte.gz"
    for name in NAMES:
        (network / name).unlink()
    assert obtain(entry) == found


def test_secede_data_without_the_set_falls_through_to_the_cache(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(home / "data", "a-ubyte.gz")
    monkeypatch.setenv("SECEDE_DATA", str(home / "data"))
    entry = make_entry()
    fill(cache_folder(entry), *NAMES)
    assert obtain(entry)["a-ubyte.gz"].parent == cache_folder(entry)


def test_an_interrupted_download_continues_with_what_is_missing(home: Path) -> None:
    entry = make_entry(*(remote(home / "network", name, name.encode()) for name in NAMES))
    fill(cache_folder(entry), "a-ubyte.gz")
    (home / "network" / "a-ubyte.gz").unlink()
    assert list(obtain(entry)) == list(NAMES)


def test_a_partial_file_in_the_cache_is_fetched_again(home: Path) -> None:
    entry = make_entry(*(remote(home / "network", name, name.encode()) for name in NAMES))
    cache_folder(entry).mkdir(parents=True)
    (cache_folder(entry) / "a-ubyte.gz").write_bytes(b"a-ub")
    assert obtain(entry)["a-ubyte.gz"].read_bytes() == b"a-ubyte.gz"


def test_the_error_offline_says_where_it_looked_and_what_was_lacking(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(home / "data" / "toy", "a-ubyte.gz")
    monkeypatch.setenv("SECEDE_DATA", str(home / "data"))
    entry = make_entry(remote(home / "network", "a-ubyte.gz", b"a"))
    (home / "network" / "a-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"cannot download a-ubyte.gz") as caught:
        obtain(entry)
    message = str(caught.value)
    assert (
        f"{home / 'data' / 'toy'} (lacks b-ubyte.gz), {home / 'data' / 'Toy' / 'raw'}," in message
    )
    assert str(cache_folder(entry)) in message
    assert "mnist-10k" in message


def test_a_set_without_a_download_says_which_files_it_needs(home: Path) -> None:
    with pytest.raises(DataError, match=r"no public download: set SECEDE_DATA .* a-ubyte.gz, b-"):
        obtain(make_entry())


def test_nothing_is_downloaded_where_that_is_forbidden(home: Path) -> None:
    entry = make_entry(*(remote(home / "network", name, name.encode()) for name in NAMES))
    with pytest.raises(DataError, match="Allow the download"):
        obtain(entry, download=False)
    assert not (home / "cache").exists()


def test_secede_data_that_is_no_folder_is_a_config_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECEDE_DATA", str(home / "typo"))
    with pytest.raises(ConfigError, match=r"typo.*not a folder"):
        obtain(make_entry())


def zipped(folder: Path, *names: str) -> bytes:
    with zipfile.ZipFile(folder / "made.zip", "w") as archive:
        for name in names:
            archive.writestr(f"gzip/{name}", name)
        archive.writestr("../escaped", "x")
    return (folder / "made.zip").read_bytes()


def test_a_zip_gives_its_members_and_goes(home: Path) -> None:
    entry = make_entry(
        remote(home / "network", "gzip.zip", zipped(home, *NAMES, "other")), zip_folder="gzip"
    )
    found = obtain(entry)
    assert [path.read_text() for path in found.values()] == list(NAMES)
    assert sorted(path.name for path in cache_folder(entry).iterdir()) == sorted(NAMES)
    assert not (cache_folder(entry).parent / "escaped").exists()


def test_a_zip_left_by_an_interruption_is_used_again(home: Path) -> None:
    entry = make_entry(
        remote(home / "network", "gzip.zip", zipped(home, *NAMES)), zip_folder="gzip"
    )
    cache_folder(entry).mkdir(parents=True)
    (home / "network" / "gzip.zip").rename(cache_folder(entry) / "gzip.zip")
    assert list(obtain(entry)) == list(NAMES)


def test_a_zip_without_the_files_is_one_clear_error(home: Path) -> None:
    entry = make_entry(
        remote(home / "network", "gzip.zip", zipped(home, NAMES[0])), zip_folder="gzip"
    )
    with pytest.raises(DataError, match=r"gzip.zip: damaged, or without .*b-ubyte.gz"):
        obtain(entry)
    assert not (cache_folder(entry) / NAMES[1]).exists()
