"""The receipt's schema as the docs describe it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

from harness.paths import ROOT


def fields(node: dict[str, Any], kinds: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all fields in a JSON schema."""
    if "$ref" in node:
        node = kinds[node["$ref"].rpartition("/")[2]]
    for either in node.get("anyOf", ()):
        yield from fields(either, kinds, prefix)
    if node.get("type") == "array":
        yield from fields(node.get("items", {}), kinds, f"{prefix}[]")
    for name, inner in node.get("properties", {}).items():
        dotted = f"{prefix}.{name}" if prefix else name
        yield dotted
        yield from fields(inner, kinds, dotted)


def test_the_page_on_receipts_has_every_field_of_the_schema_and_no_other() -> None:
    text = resources.files("secede.erasure").joinpath("schemas/erasure-v2.json").read_text()
    schema = json.loads(text)
    page = (ROOT / "docs" / "receipt.md").read_text()
    told = re.findall(r"^\| `([^`]+)` \| \S", page, re.M)
    assert len(told) == len(set(told))
    assert set(told) == set(fields(schema, schema["$defs"]))
