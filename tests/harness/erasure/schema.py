"""The JSON schema of a receipt. `python -m harness.erasure.schema` in `tests` renews its file."""

from __future__ import annotations

import json
from typing import Any

from harness.paths import ROOT
from secede.erasure.documents.receipt import PREDICATE_TYPE, Statement

FILE = ROOT / "src" / "secede" / "erasure" / "schemas" / "erasure-v2.json"


def schema_text() -> str:
    # As it is written: then all fields are required, also those that have a default.
    schema = _closed(Statement.model_json_schema(by_alias=True, mode="serialization"))
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": PREDICATE_TYPE}
    content = json.dumps({**head, **schema}, indent=1, sort_keys=True, ensure_ascii=False)
    return content + "\n"


def _closed(schema: Any) -> Any:
    """Return the schema with names that fit no pattern refused, as the models refuse them."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "patternProperties" in schema else {}
    return {**{key: _closed(part) for key, part in schema.items()}, **closed}


if __name__ == "__main__":
    FILE.write_text(schema_text(), encoding="utf-8")
