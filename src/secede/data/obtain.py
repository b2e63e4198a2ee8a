"""Find a data set's files: in SECEDE_DATA, else in the cache, else download them into the cache."""

from __future__ import annotations

import os
import shutil
import zipfile
import zlib
from pathlib import Path

from secede import files
from secede.data.download import fetch, matches
from secede.data.entry import Entry
from secede.errors import ConfigError, DataError


def obtain(entry: Entry, *, download: bool = True) -> dict[str, Path]:
    """Return the paths of one whole layout of `entry`, by file name."""
    cache = cache_folder(entry)
    places = [*user_folders(entry), cache]
    for place in places:
        if found := _find(place, entry):
            return found
    looked = f"{entry.name} not found in {', '.join(_describe(place, entry) for place in places)}"
    if not entry.remote:
        raise DataError(
            f"{looked}. It has no public download: set SECEDE_DATA to a folder that holds "
            f"{', '.join(entry.layouts[0])}"
        )
    if not download:
        raise DataError(
            f"{looked}. Allow the download, set SECEDE_DATA to a folder that holds it, or use "
            "the data set mnist-10k"
        )
    try:
        return _download(entry, cache)
    except DataError as error:
        raise DataError(f"{looked}; {error}") from error


def user_folders(entry: Entry) -> list[Path]:
    """Return the folders below SECEDE_DATA that may hold the set; none where it is not set."""
    value = os.environ.get("SECEDE_DATA")
    if not value:
        return []
    base = Path(value).expanduser()
    if not base.is_dir():
        raise ConfigError(f"SECEDE_DATA is {value!r}, which is not a folder; correct or unset it")
    return [base / folder for folder in entry.folders]


def cache_folder(entry: Entry) -> Path:
    """Return the folder that downloads of the set are kept in."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base else Path.home() / ".cache"
    return root / "secede" / entry.name


def _existing(folder: Path, name: str) -> Path | None:
    for path in (folder / name, folder / name.removesuffix(".gz")):
        if os.path.isfile(path):  # unlike Path.is_file, false where permission is missing
            return path
    return None


def _find(folder: Path, entry: Entry) -> dict[str, Path] | None:
    for layout in entry.layouts:
        found = {name: path for name in layout if (path := _existing(folder, name))}
        if len(found) == len(layout):
            return found
    return None


def _describe(folder: Path, entry: Entry) -> str:
    missing = [name for name in entry.layouts[0] if not _existing(folder, name)]
    partly = 0 < len(missing) < len(entry.layouts[0])
    return f"{folder} (lacks {', '.join(missing)})" if partly else str(folder)


def _download(entry: Entry, cache: Path) -> dict[str, Path]:
    for remote in entry.remote:
        # What an interrupted download left whole is not fetched again.
        if not matches(cache / remote.name, remote.checksum):
            fetch(remote.urls, cache / remote.name, remote.checksum, size=remote.size)
        if entry.zip_folder is not None:
            _unpack(cache / remote.name, entry.zip_folder, entry.layouts[0])
    found = _find(cache, entry)
    if found is None:
        raise DataError(f"the download of {entry.name} did not give {_describe(cache, entry)}")
    return found


def _unpack(archive: Path, folder: str, names: tuple[str, ...]) -> None:
    """Take the named members out beside the archive, then delete it."""
    try:
        with zipfile.ZipFile(archive) as zipped:
            for name in names:
                with (
                    zipped.open(f"{folder}/{name}") as member,
                    files.replace(archive.parent / name) as temporary,
                    temporary.open("wb") as file,
                ):
                    shutil.copyfileobj(member, file)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, OSError) as error:
        raise DataError(f"{archive}: damaged, or without the expected files: {error}") from error
    archive.unlink()
