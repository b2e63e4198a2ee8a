from __future__ import annotations

from pathlib import Path

import pytest

from secede.erasure.canonical_json import load_document, save_document
from secede.erasure.types import Count, Document, Name
from secede.errors import RecordError


class Thing(Document):
    name: Name
    size: Count


def test_a_document_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "thing.json"
    save_document(path, Thing(name="a", size=3))
    assert path.read_bytes() == b'{"name":"a","size":3}\n'
    assert load_document(Thing, path, 1000) == Thing(name="a", size=3)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"name":"a","size":-1}', "size: "),
        (b'{"name":"a","size":"3"}', "size: "),
        (b'{"name":"a","name":"b","size":3}', "a key is repeated"),
        (b"\xff", "not UTF-8"),
        (b" " * 1001, "limit of 1,000"),
    ],
)
def test_a_damaged_document_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "thing.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=f"thing.json: missing or damaged .*{words}"):
        load_document(Thing, path, 1000)


def test_a_missing_document_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="missing or damaged"):
        load_document(Thing, tmp_path / "absent.json", 1000)
