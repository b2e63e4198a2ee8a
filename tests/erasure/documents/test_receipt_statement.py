"""Tests `erasure/types.py` too."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pydantic import ValidationError

from harness.erasure import papers
from harness.erasure.schema import FILE, schema_text
from secede.erasure.documents.canary_reading import SignedReading
from secede.erasure.documents.receipt import (
    STANDING_LIMITS,
    Models,
    Predicate,
    RequestPart,
    Scope,
    Statement,
)
from secede.erasure.types import Document

KINDS: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
KEYWORDS = {
    *("$ref", "$defs", "$schema", "$id", "title", "description", "default", "type", "const"),
    *("enum", "anyOf", "properties", "required", "additionalProperties", "patternProperties"),
    *("maxProperties", "items", "minItems", "maxItems", "minLength", "maxLength", "pattern"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}


def wrong(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> str | None:
    """Return why `value` does not fit the schema: the keywords that ours uses, and no others."""
    assert schema.keys() <= KEYWORDS, schema.keys() - KEYWORDS
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return wrong(value, root["$defs"][name], root)
    if "anyOf" in schema:
        reasons = [wrong(value, option, root) for option in schema["anyOf"]]
        return None if None in reasons else " or ".join(map(str, reasons))
    if "type" in schema:
        fits = isinstance(value, KINDS[schema["type"]])
        if not fits or (isinstance(value, bool) and schema["type"] != "boolean"):
            return f"{value!r} is no {schema['type']}"
    if value not in schema.get("enum", [value]) or value != schema.get("const", value):
        return f"{value!r} is none of the values"
    if isinstance(value, dict):
        return _wrong_object(value, schema, root)
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10**9):
            return "too few or too many items"
        return next(filter(None, (wrong(item, schema["items"], root) for item in value)), None)
    if isinstance(value, str):
        length = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**9)
        return None if length and re.search(schema.get("pattern", ""), value) else f"text {value!r}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        inside = schema.get("minimum", value) <= value <= schema.get("maximum", value)
        above = value > schema.get("exclusiveMinimum", value - 1)
        below = value < schema.get("exclusiveMaximum", value + 1)
        return None if inside and above and below else f"{value} is out of bounds"
    return None


def _wrong_object(
    value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any]
) -> str | None:
    known, further = schema.get("properties", {}), schema.get("additionalProperties", True)
    if missing := set(schema.get("required", ())) - value.keys():
        return f"missing {missing}"
    if len(value) > schema.get("maxProperties", 10**9):
        return "too many properties"
    for key, entry in value.items():
        patterns = schema.get("patternProperties", {})
        by_pattern = [inner for pattern, inner in patterns.items() if re.search(pattern, key)]
        if key in known:
            by_pattern.append(known[key])
        elif not by_pattern and not further:
            return f"unexpected {key}"
        for inner in by_pattern:
            if reason := wrong(entry, inner, root):
                return f"{key}: {reason}"
    return None


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


@pytest.fixture
def example() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(papers.statement().payload())
    return found


def test_the_committed_schema_is_current() -> None:
    assert FILE.read_text(encoding="utf-8") == schema_text(), "python -m harness.erasure.schema"


def test_the_schema_fits_an_example(schema: dict[str, Any], example: dict[str, Any]) -> None:
    assert wrong(example, schema, schema) is None


def test_the_schema_demands_every_field_and_no_other(
    schema: dict[str, Any], example: dict[str, Any]
) -> None:
    for path in ((), ("predicate",), ("predicate", "request"), ("predicate", "costs")):
        part = example
        for key in path:
            part = part[key]
        for key in list(part):
            value = part.pop(key)
            assert wrong(example, schema, schema), key
            part[key] = value
        part["further"] = 1
        assert wrong(example, schema, schema)
        del part["further"]
    assert wrong(example, schema, schema) is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("_type",), "https://in-toto.io/Statement/v0.1"),
        (("predicateType",), "https://secede.dev/erasure/v1"),
        (("subject",), []),
        (("subject", 0, "digest"), {"sha256": "AB" * 32}),
        (("predicate", "request", "client"), "two words"),
        (("predicate", "request", "client"), "x" * 65),
        (("predicate", "request", "received"), "2026-11-03 10:00:00"),
        (("predicate", "request", "trigger"), "because"),
        (("predicate", "scope", "weight"), 1.5),
        (("predicate", "scope", "weight"), "0.2"),
        (("predicate", "method", "parameters"), {"a": [1]}),
        (("predicate", "method", "parameters"), {"a b": 1}),
        (("predicate", "method", "rung"), "prayer"),
        (("predicate", "costs", "upload_bytes"), -1),
        (("predicate", "costs", "rounds"), True),
        (("predicate", "verification", "scores"), []),
        (("predicate", "verification", "forgotten"), "proven"),
        (("predicate", "limits"), ["\x1b[31mred"]),
        (("predicate", "limits"), ["abc\u202edef"]),
    ],
)
def test_schema_and_models_refuse_the_same(
    schema: dict[str, Any], example: dict[str, Any], path: tuple[Any, ...], value: object
) -> None:
    part: Any = example
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    assert wrong(example, schema, schema)
    with pytest.raises(ValidationError):
        Statement.model_validate_json(json.dumps(example))


def copied(part: Document, **changes: object) -> Any:
    return type(part).model_validate({**dict(part), **changes})


def test_parts_that_contradict_each_other_are_refused() -> None:
    told = papers.statement().predicate
    score = told.verification.scores[0]
    for change in ({"completed": "2026-11-15T11:59:59Z"}, {"promoted": "2026-11-03T09:59:59Z"}):
        with pytest.raises(ValidationError, match="not in this order"):
            copied(told.request, **change)
    late = papers.DESTROYED[0].model_copy(update={"at": "2026-11-15T13:00:01Z"})
    with pytest.raises(ValidationError, match="before the request came or after"):
        copied(told, destroyed=(late,))
    with pytest.raises(ValidationError, match="last round is before the first"):
        Scope(first_round=2, last_round=1, rounds=0, weight=0.1)
    with pytest.raises(ValidationError, match="more rounds than"):
        Scope(first_round=1, last_round=2, rounds=3, weight=0.1)
    with pytest.raises(ValidationError, match="is the one from before"):
        Models(before=papers.AFTER, after=papers.AFTER)
    with pytest.raises(ValidationError, match="outside of its interval"):
        copied(score, low=0.42)
    with pytest.raises(ValidationError, match="limits of a receipt must all be stated"):
        copied(told, limits=STANDING_LIMITS[1:])
    unread = judged(told, "undetermined", looks=(), before=None, absent="nobody was there")
    with pytest.raises(ValidationError, match="another model"):
        copied(
            papers.statement(),
            predicate=copied(unread, models=Models(before=papers.AFTER, after=papers.BEFORE)),
        )


def judged(told: Predicate, forgotten: str, **canaries: Any) -> Predicate:
    part = copied(told.verification.canaries, **canaries)
    changed = copied(told.verification, canaries=part, forgotten=forgotten)
    predicate: Predicate = copied(told, verification=changed)
    return predicate


def test_the_verdict_is_the_one_that_follows_from_the_readings() -> None:
    told = papers.statement().predicate
    judged(told, "no-trace-found")
    for wrong in ("trace-found", "undetermined", "by-construction"):
        with pytest.raises(ValidationError, match="forgotten is 'no-trace-found'"):
            judged(told, wrong)
    (look,) = told.verification.canaries.looks
    seen = copied(look, after=papers.reading(papers.AFTER, (12, 3, 1, 0), 15))
    judged(told, "trace-found", looks=(look, seen))
    with pytest.raises(ValidationError, match="forgotten is 'trace-found'"):
        judged(told, "no-trace-found", looks=(look, seen))
    blind = papers.reading(papers.BEFORE, (4, 4, 4, 4), 8)
    judged(told, "undetermined", before=blind)
    judged(told, "undetermined", looks=(), absent="nobody was there")
    retrained = copied(told.method, rung="retraining")
    verification = copied(told.verification, forgotten="by-construction")
    copied(told, method=retrained, verification=verification)


def test_readings_are_of_this_erasure_its_models_and_its_commitment() -> None:
    told = papers.statement().predicate
    (look,) = told.verification.canaries.looks
    other = papers.reading(papers.WITHOUT, (4, 4, 5, 3), 9)
    with pytest.raises(ValidationError, match=r"forgotten is|another model"):
        judged(told, "no-trace-found", looks=(copied(look, after=other),))
    with pytest.raises(ValidationError, match="another model"):
        judged(told, "no-trace-found", before=papers.reading(papers.WITHOUT, (12, 3, 1, 0), 15))
    few = papers.reading(papers.AFTER, (4, 4, 5), 8)
    with pytest.raises(ValidationError, match="other canaries"):
        judged(told, "no-trace-found", looks=(copied(look, after=few),))
    with pytest.raises(ValidationError, match="never committed to"):
        copied(told, scope=copied(told.scope, canaries=None))
    root = copied(papers.CANARIES_PLANTED.commitment, root="00" * 32)
    planted = copied(papers.CANARIES_PLANTED, commitment=root)
    with pytest.raises(ValidationError, match="never committed to"):
        copied(told, scope=copied(told.scope, canaries=planted))
    reading = look.after.reading
    for field in ("federation", "client", "request"):
        value = "00" * 32 if field == "request" else "other"
        stranger = SignedReading(reading=copied(reading, **{field: value}))
        with pytest.raises(ValidationError, match="another erasure"):
            judged(told, "no-trace-found", looks=(copied(look, after=stranger),))


def test_counts_that_cannot_be_are_refused() -> None:
    reading = papers.reading(papers.AFTER, (4, 4, 5, 3), 9).reading
    for wins in (3, 14):
        with pytest.raises(ValidationError, match="wins, where the ranks allow 4 to 13"):
            copied(reading, wins=wins)


def test_a_moment_must_exist() -> None:
    request = papers.statement().predicate.request
    for bad in ("2026-02-30T00:00:00Z", "2026-11-15T24:00:00Z", "2026-11-15T12:00:60Z"):
        with pytest.raises(ValidationError):
            RequestPart.model_validate({**dict(request), "due": bad})


def test_parts_are_frozen() -> None:
    told: Predicate = papers.statement().predicate
    with pytest.raises(ValidationError, match="frozen"):
        told.request.client = "other"
