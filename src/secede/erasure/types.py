"""What documents are made of: names, digests, moments, short texts, and a strict base for models.

Strings are bounded and numbers finite everywhere, so that no parsed document can be larger or
stranger than it looks. Names and digests hold no personal data: a client is an institution.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from secede.errors import ConfigError
from secede.text import one_line, printable

MAX_SAFE_INTEGER = 2**53 - 1  # the largest whole number that every JSON reader keeps exact
FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def format_time(now: datetime) -> str:
    """Return a moment as RFC 3339 in UTC with seconds; a time without a zone is refused."""
    if now.tzinfo is None:
        raise ValueError("a moment needs a time zone, such as datetime.UTC")
    return now.astimezone(UTC).strftime(FORMAT)


def parse_time(text: str) -> datetime:
    """Return the moment that `stamp` wrote."""
    return datetime.strptime(text, FORMAT).replace(tzinfo=UTC)


def _is_time(text: str) -> str:
    if format_time(parse_time(text)) != text:
        raise ValueError("expected a moment such as 2026-11-15T12:00:00Z")
    return text


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Timestamp = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"),
    AfterValidator(_is_time),
]
# Without control characters and those that turn the direction of writing, which could make a
# terminal or a page show something else than was signed.
Text = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=300,
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*$",
    ),
]
Count = Annotated[int, Field(ge=0, le=MAX_SAFE_INTEGER)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Integer = Annotated[int, Field(ge=-MAX_SAFE_INTEGER, le=MAX_SAFE_INTEGER)]
Scalar = bool | Integer | Number | Name | None
Scalars = Annotated[dict[Name, Scalar], Field(max_length=64)]


class Document(BaseModel):
    """A part of a document: nothing unknown, nothing converted, nothing changed later."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        validate_by_name=True,
        json_schema_serialization_defaults_required=True,
    )


def describe_errors(error: ValidationError) -> str:
    """Say what is wrong where, in one printable line, without repeating what was found there."""
    found = error.errors(include_input=False, include_url=False, include_context=False)
    told = []
    for fault in found[:3]:
        place = ".".join(str(part)[:40] for part in fault["loc"])[:120] or "it"
        told.append(f"{place}: {fault['msg']}")
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    line = one_line("; ".join(told))[:400] + more
    return printable(line)


_NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}")


def check_name(name: str, what: str = "name") -> str:
    """Return `name` if a client, federation or key may be called that."""
    if not is_name(name):
        raise ConfigError(
            f"{what} {name[:80]!r} cannot be used: expected 1 to 64 of A-Z a-z 0-9 . _ : -"
        )
    return name


def is_name(text: str) -> bool:
    """Return whether a client, federation or key may be called that."""
    return _NAME.fullmatch(text) is not None
