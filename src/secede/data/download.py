"""Download a file from the first mirror that gives it whole: checked, then moved into place."""

from __future__ import annotations

import hashlib
import http.client
import logging
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from secede import files
from secede.errors import DataError
from secede.text import format_bytes

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 256 * 1024


def fetch(
    urls: str | Sequence[str],
    destination: Path,
    checksum: str,
    *,
    size: int,
    timeout_seconds: float = 30.0,
) -> None:
    """Write the file to `destination`, or raise and leave nothing there.

    `checksum` is "sha256:<hex>" or "md5:<hex>"; no more than `size` bytes are taken from a mirror.
    The time-out is for each wait on the network.
    """
    failures = []
    for url in [urls] if isinstance(urls, str) else urls:
        try:
            with files.replace(destination) as temporary:
                _transfer(url, temporary, checksum, size, timeout_seconds)
            return
        except DataError as error:
            failures.append(f"{url}: {error}")
    raise DataError(
        f"cannot download {destination.name} ({'; '.join(failures)}). Without a network, set "
        "SECEDE_DATA to a folder that holds the files, or use the data set mnist-10k"
    )


def matches(path: Path, checksum: str) -> bool:
    """Tell whether `path` is a file with this checksum."""
    algorithm, _, expected = checksum.partition(":")
    try:
        return files.digest(path, algorithm) == expected
    except OSError:
        return False


def _transfer(url: str, target: Path, checksum: str, size: int, timeout_seconds: float) -> None:
    # Only what comes from the network becomes a DataError here; an OSError of the disk is left
    # for `replace`, which makes it a StorageError.
    algorithm, _, expected = checksum.partition(":")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    received = 0
    with _opened(url, timeout_seconds) as response, target.open("wb") as file:
        total = _announced_bytes(response)
        with _progress(url, total) as advance:
            while chunk := _read_chunk(response):
                received += len(chunk)
                if received > size:
                    raise DataError(f"it sends more than the {size:,} bytes that the file has")
                file.write(chunk)
                digest.update(chunk)
                advance(len(chunk))
    if total is not None and received != total:
        raise DataError(f"the connection ended after {received:,} of {total:,} bytes")
    if digest.hexdigest() != expected:
        raise DataError(f"wrong checksum: found {algorithm} {digest.hexdigest()}")


@contextmanager
def _network_errors() -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        raise DataError(f"HTTP {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise DataError(str(error.reason)) from error
    except (OSError, http.client.HTTPException) as error:
        raise DataError(str(error) or type(error).__name__) from error


def _opened(url: str, timeout_seconds: float) -> IO[bytes]:
    request = urllib.request.Request(url, headers={"User-Agent": "secede"})
    with _network_errors():
        return cast(IO[bytes], urllib.request.urlopen(request, timeout=timeout_seconds))


def _read_chunk(response: IO[bytes]) -> bytes:
    with _network_errors():
        return response.read(_CHUNK_BYTES)


def _announced_bytes(response: Any) -> int | None:
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


@contextmanager
def _progress(url: str, total: int | None) -> Iterator[Callable[[int], None]]:
    name = url.rpartition("/")[2]
    if not sys.stderr.isatty():
        size = f" ({format_bytes(total)})" if total is not None else ""
        logger.info(f"downloading {name}{size} from {url}")
        yield lambda count: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda count: bar.advance(task, count)
