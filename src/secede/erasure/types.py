"""Types of fields in documents, a strict base model, and the format of times.

Strings are bounded and numbers finite, so that no parsed document can be larger or stranger than it
looks. Names and digests hold no personal data: a client is an institution.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from secede.errors import ConfigError
from secede.text import is_visible, one_line, printable

MAX_SAFE_INTEGER = 2**53 - 1  # the largest integer that every JSON reader keeps exact
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_NAME = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,63}")
# Letters, marks and a symbol that are blank by design; other categories are refused as a whole.
_BLANK = re.compile(
    r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    r"\U000e0100-\U000e01ef]"
)
_SHOWN_ERRORS = 3


class Document(BaseModel):
    """A document or a part of one: no unknown field, no conversion, no later change."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        validate_by_name=True,
        json_schema_serialization_defaults_required=True,
    )


def format_time(time: datetime) -> str:
    """Return a time as RFC 3339 in UTC with seconds; ValueError if it has no time zone."""
    if time.tzinfo is None:
        raise ValueError("a time needs a time zone, such as datetime.UTC")
    return time.astimezone(UTC).strftime(_TIME_FORMAT)


def parse_time(text: str) -> datetime:
    """Return the time that `format_time` wrote."""
    return datetime.strptime(text, _TIME_FORMAT).replace(tzinfo=UTC)


def _check_time(text: str) -> str:
    if format_time(parse_time(text)) != text:
        raise ValueError("expected a time such as 2026-11-15T12:00:00Z")
    return text


def _check_visible(text: str) -> str:
    """Refuse what could make a terminal or a page show something else than was signed."""
    for character in text:
        if not is_visible(character) or _BLANK.match(character):
            raise ValueError(f"U+{ord(character):04X} cannot be seen; expected visible characters")
    return text


Name = Annotated[str, StringConstraints(pattern=f"^{_NAME.pattern}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Timestamp = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"),
    AfterValidator(_check_time),
]
Text = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=300,
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*$",
    ),
    AfterValidator(_check_visible),
]
_TEXT: TypeAdapter[str] = TypeAdapter(Text)
Count = Annotated[int, Field(ge=0, le=MAX_SAFE_INTEGER)]
Integer = Annotated[int, Field(ge=-MAX_SAFE_INTEGER, le=MAX_SAFE_INTEGER)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Scalar = bool | Integer | Number | Name | None
Scalars = Annotated[dict[Name, Scalar], Field(max_length=64)]
Setting = bool | Integer | Number | Text | None

Trigger = Literal["consent-withdrawn", "objection", "unlawful", "contract-ended", "other"]
Rung = Literal["local-step", "server-side", "retraining"]
Status = Literal["serving", "superseded", "retired"]
Verdict = Literal["yes", "no", "undetermined"]
Forgotten = Literal["by-construction", "no-trace-found", "trace-found", "undetermined"]


def is_name(text: str) -> bool:
    """Return whether a client, federation or key may have this name."""
    return _NAME.fullmatch(text) is not None


def check_name(name: str, what: str = "name") -> str:
    """Return `name` if a client, federation or key may have it."""
    if not is_name(name):
        raise ConfigError(
            f"{what} {name[:80]!r} cannot be used: expected 1 to 64 of A-Z a-z 0-9 . _ : -, "
            "the first no dot"
        )
    return name


def check_text(text: str, what: str = "text") -> str:
    """Return `text` if a document may have it as a line for people."""
    try:
        return str(_TEXT.validate_python(text))
    except ValidationError:
        raise ConfigError(
            f"{what} {printable(text[:80])!r} cannot be used: expected 1 to 300 visible characters "
            "in one line"
        ) from None


def describe_errors(error: ValidationError) -> str:
    """Describe the first errors of a document in one printable line, without its values."""
    errors = error.errors(include_input=False, include_url=False, include_context=False)
    lines = []
    for part in errors[:_SHOWN_ERRORS]:
        place = ".".join(str(key)[:40] for key in part["loc"])[:120] or "it"
        lines.append(f"{place}: {part['msg']}")
    more = f" and {len(errors) - _SHOWN_ERRORS} more" if len(errors) > _SHOWN_ERRORS else ""
    return printable(one_line("; ".join(lines))[:400] + more)
