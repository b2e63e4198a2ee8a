from __future__ import annotations

import random

import pytest
import torch

from secede.canaries import CanaryOptions, canary_rows, from_bytes, plant, read, to_bytes
from secede.data import Samples
from secede.errors import DataError
from secede.models import build


def file_of(images: Samples, salt: bytes, kind: str = "made-up") -> bytes:
    options = CanaryOptions(count=7, copies=1, kind=kind)  # type: ignore[arg-type]
    canaries = plant(images, salt, options, classes=10).canaries
    assert canaries is not None
    return to_bytes(canaries)


@pytest.mark.parametrize("kind", ["made-up", "mislabelled", "withheld-twins"])
def test_an_auditor_reads_what_the_client_would(images: Samples, salt: bytes, kind: str) -> None:
    options = CanaryOptions(count=7, copies=1, kind=kind)  # type: ignore[arg-type]
    canaries = plant(images, salt, options, classes=10).canaries
    assert canaries is not None
    again = from_bytes(to_bytes(canaries))
    assert list(canary_rows(again)) == list(canary_rows(canaries))
    assert (again.secret, again.options) == (canaries.secret, canaries.options)
    torch.manual_seed(0)
    model = build("mlp", shape=(1, 12, 12), classes=10)
    assert read(model, again) == read(model, canaries)


def test_the_salt_is_not_in_the_file(images: Samples, salt: bytes) -> None:
    data = file_of(images, salt)
    assert salt not in data
    assert salt.hex().encode() not in data


def test_a_mutated_file_is_refused_or_read_but_never_breaks(images: Samples, salt: bytes) -> None:
    data = file_of(images, salt)
    draw = random.Random(0)
    errors = list[str]()
    for _ in range(600):
        mutated = bytearray(data)
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(min(len(mutated), draw.choice([30, 1200, len(mutated)])))
            action = draw.randrange(3)
            if action == 0:
                mutated[place] ^= 1 << draw.randrange(8)
            elif action == 1:
                del mutated[place : place + draw.randint(1, 40)]
            else:
                mutated[place:place] = draw.randbytes(draw.randint(1, 9))
        try:
            from_bytes(bytes(mutated))
        except DataError as error:
            errors.append(str(error))
    assert len(errors) > 400
    assert not [text for text in errors if "\n" in text]


@pytest.mark.parametrize("end", [0, 10, 19, 26, 27, 200, -1])
def test_a_truncated_file_is_refused(images: Samples, salt: bytes, end: int) -> None:
    with pytest.raises(DataError, match="no file of canaries"):
        from_bytes(file_of(images, salt)[:end])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"candidates":10', b'"candidates":11'),
        (b'"count":7', b'"count":1'),
        (b'"kind":"made-up"', b'"kind":"made--p"'),
        (b'"version":1', b'"version":2'),
        (b'"max_share":0.02', b'"max_shade":0.02'),
        (b'"drawn":', b'"drown":'),
    ],
)
def test_a_changed_header_is_refused(images: Samples, salt: bytes, old: bytes, new: bytes) -> None:
    data = file_of(images, salt)
    assert old in data
    with pytest.raises(DataError, match="no file of canaries"):
        from_bytes(data.replace(old, new, 1))


def test_coins_of_another_secret_are_refused(images: Samples, salt: bytes) -> None:
    data = file_of(images, salt)
    start = data.index(b'"secret":"') + 10
    other = file_of(images, bytes(32))
    start_other = other.index(b'"secret":"') + 10
    swapped = data[:start] + other[start_other : start_other + 64] + data[start + 64 :]
    with pytest.raises(DataError, match="do not fit together"):
        from_bytes(swapped)
