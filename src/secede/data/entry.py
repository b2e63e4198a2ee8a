"""What the catalogue knows of a data set: its shape, its files and where they may be had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["embedded", "idx", "cifar"]


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file to download: its name here, its mirrors in order, its checksum and its size."""

    name: str
    urls: tuple[str, ...]
    checksum: str  # "sha256:<hex>"
    size: int  # in bytes


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One named data set."""

    name: str
    description: str
    kind: Kind
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    train_count: int
    test_count: int
    licence: str
    # Sets of file names of which one suffices. The first is ordered as the reader wants it: idx
    # takes train images, train labels, test images, test labels.
    layouts: tuple[tuple[str, ...], ...]
    folders: tuple[str, ...] = ()  # below SECEDE_DATA, in the order they are searched
    remote: tuple[RemoteFile, ...] = ()
    zip_folder: str | None = None  # set when the remote file is a zip that holds the others there
    transposed: bool = False  # images are stored with rows and columns swapped

    @property
    def download_bytes(self) -> int:
        """How many bytes are downloaded."""
        return sum(remote.size for remote in self.remote)

    @property
    def needs_network(self) -> bool:
        """Whether the set is downloaded when no local copy is found."""
        return bool(self.remote)

    @property
    def needs_folder(self) -> bool:
        """Whether the set can only come from a folder that the user names by SECEDE_DATA."""
        return not self.remote and self.kind != "embedded"
