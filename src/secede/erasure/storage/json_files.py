"""Documents in files of canonical JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from secede import files
from secede.erasure.canonical_json import parse_json, read_bounded, to_canonical
from secede.erasure.types import Document, describe_errors
from secede.errors import ConfigError, RecordError, TrustError

D = TypeVar("D", bound=Document)


def save_document(path: Path, document: Document) -> None:
    """Replace the file at `path` with a document, in one step."""
    files.write_bytes(path, to_canonical(document.model_dump(mode="json")) + b"\n")


def load_document(kind: type[D], path: Path, limit: int) -> D:
    """Return the document of a kind in a file of at most `limit` bytes."""
    try:
        return kind.model_validate_json(to_canonical(parse_json(read_bounded(path, limit), limit)))
    except (ConfigError, TrustError, ValidationError) as error:
        reason = describe_errors(error) if isinstance(error, ValidationError) else error
        raise RecordError(
            f"{path}: missing or damaged ({reason}); restore it from a backup"
        ) from error
