"""What a receipt states: an in-toto Statement v1 with our predicate, of which this is version 1.

Model digests are SHA-256 over a state's names, dtypes, shapes and values, so they do not depend on
how a file is laid out. The schema generated from these models lies in `schemas/`. https://github.com/in-toto/attestation
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from secede.erasure.canonical_json import canonical
from secede.erasure.documents.receipt import Predicate
from secede.erasure.types import Digest, Document

STATEMENT: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
PREDICATE: Literal["https://secede.dev/erasure/v1"] = "https://secede.dev/erasure/v1"


class Sha256(Document):
    """A digest set with the one algorithm that is used."""

    sha256: Digest


class Subject(Document):
    """What the statement is about: the erased model."""

    name: Literal["erased-model"] = "erased-model"
    digest: Sha256


class Statement(Document):
    """The signed document."""

    type_: Annotated[Literal["https://in-toto.io/Statement/v1"], Field(alias="_type")] = STATEMENT
    subject: Annotated[tuple[Subject, ...], Field(min_length=1, max_length=1)]
    predicate_type: Annotated[
        Literal["https://secede.dev/erasure/v1"], Field(alias="predicateType")
    ] = PREDICATE
    predicate: Predicate

    @model_validator(mode="after")
    def _is_about_its_model(self) -> Self:
        if self.subject[0].digest.sha256 != self.predicate.models.after:
            raise ValueError("the subject is another model than the one after the erasure")
        return self

    def payload(self) -> bytes:
        """Return the bytes that are signed."""
        return canonical(self.model_dump(mode="json", by_alias=True))


def schema_text() -> str:
    """Return the JSON schema of a statement, as `schemas/erasure-v1.json` holds it.

    To renew that file: python -c 'from secede.erasure.documents.statement import *; print(schema_text())'
    """
    # As it is written: then all fields are required, also those that have a default here.
    schema = _closed(Statement.model_json_schema(by_alias=True, mode="serialization"))
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": PREDICATE}
    return json.dumps({**head, **schema}, indent=1, sort_keys=True, ensure_ascii=False)


def _closed(schema: Any) -> Any:
    """Return the schema with names that fit no pattern refused, as the models refuse them."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "patternProperties" in schema else {}
    return {**{key: _closed(part) for key, part in schema.items()}, **closed}
