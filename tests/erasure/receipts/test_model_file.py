from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch

from secede import state as states
from secede.erasure.receipts.model_file import _DTYPES, model_file_digest
from secede.errors import StateError


def write(path: Path, header: object, values: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + values)
    return path


def test_it_is_the_digest_of_the_loaded_state_for_every_dtype(tmp_path: Path) -> None:
    state = {
        f"layer.{name}": torch.arange(24).reshape(2, 3, 4).to(getattr(torch, name[6:]))
        for name, _ in _DTYPES.values()
    }
    state |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3), "größe": torch.ones(1)}
    states.save(state, tmp_path / "model", {"format": "pt"})
    assert model_file_digest(tmp_path / "model") == states.digest(state)


def test_long_tensors_are_read_in_pieces(tmp_path: Path) -> None:
    state = {"long": torch.randn(700_001), "b": torch.randn(3)}
    states.save(state, tmp_path / "model")
    assert model_file_digest(tmp_path / "model") == states.digest(state)


def test_another_value_name_or_shape_is_another_digest(tmp_path: Path) -> None:
    digests = set()
    for number, state in enumerate(
        ({"w": torch.ones(4)}, {"v": torch.ones(4)}, {"w": torch.ones(2, 2)}, {"w": torch.zeros(4)})
    ):
        states.save(state, tmp_path / f"{number}")
        digests.add(model_file_digest(tmp_path / f"{number}"))
    assert len(digests) == 4


W = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "values"),
    [
        ({"w": W}, bytes(7)),
        ({"w": W}, bytes(9)),
        ({"w": {**W, "data_offsets": [4, 12]}}, bytes(12)),
        ({"w": W, "v": W}, bytes(8)),
        ({"w": {**W, "dtype": "F33"}}, bytes(8)),
        ({"w": {**W, "shape": [3]}}, bytes(8)),
        ({"w": {**W, "shape": [-2]}}, bytes(8)),
        ({"w": {**W, "shape": ["2"]}}, bytes(8)),
        ([], b""),
        (b'{"w": 1, "w": 2}', b""),
        (b"{", b""),
        (b"\xff", b""),
    ],
)
def test_what_the_format_does_not_allow_is_refused(
    tmp_path: Path, header: object, values: bytes
) -> None:
    path = write(tmp_path / "model", header, values)
    with pytest.raises(StateError, match="not a readable safetensors file"):
        model_file_digest(path)
    with pytest.raises(StateError):
        states.load(path)


@pytest.mark.parametrize("content", [b"", b"nothing", struct.pack("<Q", 2**63) + b"{}"])
def test_what_has_no_header_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(StateError, match="not a readable safetensors file"):
        model_file_digest(tmp_path / "model")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="nowhere: no such file"):
        model_file_digest(tmp_path / "nowhere")
