from __future__ import annotations

import errno
import os
import struct
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from secede import state as states
from secede.errors import StateError, StorageError


def one(*values: float, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {"w": torch.tensor(values, dtype=dtype)}


def test_mean_weighs_by_hand_sum() -> None:
    # (1*1 + 3*5) / 4 = 4 and (1*2 + 3*0) / 4 = 0.5
    assert states.mean([one(1, 2), one(5, 0)], [1, 3])["w"].tolist() == [4.0, 0.5]


def test_reference_is_the_mean_of_the_others_under_unequal_sizes() -> None:
    a, b, leaver = one(1, 2), one(3, 8), one(10, -4)
    everyone = states.mean([a, b, leaver], [10, 30, 60])
    others = states.mean([a, b], [10, 30])
    found = states.reference(everyone, leaver, weight=0.6)
    torch.testing.assert_close(found["w"], others["w"])


def test_equal_sizes_give_the_papers_formula() -> None:
    # N = 5: (5 w - w_i) / 4 = (5*2 - 6) / 4 = 1
    assert states.reference(one(2), one(6), weight=1 / 5)["w"].item() == pytest.approx(1.0)


def test_a_leaver_absent_from_the_last_round_leaves_the_global_state() -> None:
    assert torch.equal(states.reference(one(2, 3), one(7, 7), weight=0)["w"], one(2, 3)["w"])


@pytest.mark.parametrize("weight", [-0.1, 1.0, 1.5, float("nan")])
def test_an_impossible_weight_is_refused(weight: float) -> None:
    with pytest.raises(StateError, match="weight must be"):
        states.reference(one(1), one(1), weight=weight)


def test_distance_is_plain_l2_over_all_entries() -> None:
    a = {"x": torch.tensor([3.0]), "y": torch.tensor([[4.0]])}
    b = {"x": torch.tensor([0.0]), "y": torch.tensor([[0.0]])}
    assert states.distance(a, b) == pytest.approx(5.0)


def test_projection_lands_on_the_sphere_and_leaves_inner_points_alone() -> None:
    # from (0, 0) towards (6, 8), distance 10, radius 5: (3, 4)
    assert states.project(one(6, 8), one(0, 0), 5)["w"].tolist() == pytest.approx([3.0, 4.0])
    assert states.project(one(1, 1), one(0, 0), 5)["w"].tolist() == [1.0, 1.0]


@settings(deadline=None)
@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=6),
    st.floats(0.1, 50),
)
def test_a_projected_state_is_within_the_ball(values: list[float], radius: float) -> None:
    center = {"w": torch.zeros(len(values))}
    assert states.distance(states.project(one(*values), center, radius), center) <= radius * 1.0001


def test_integer_buffers_neither_average_nor_project_nor_measure() -> None:
    a = {"w": torch.tensor([0.0]), "steps": torch.tensor(3)}
    b = {"w": torch.tensor([10.0]), "steps": torch.tensor(500)}
    assert states.mean([a, b], [1, 1])["steps"].item() == 3
    for place in range(3):  # one state alone decides nothing, wherever it stands
        three = [{**b}, {**b}, {**b}]
        three[place] = {"w": b["w"], "steps": torch.tensor(-1)}
        assert states.mean(three, [1, 1, 1])["steps"].item() == 500
        assert states.trimmed_mean(three, 1)["steps"].item() == 500
    assert states.reference(b, a, weight=0.5)["steps"].item() == 500
    assert states.distance(a, b) == 10.0
    assert states.project(b, a, 1.0)["steps"].item() == 500


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_accumulates_in_float32(dtype: torch.dtype) -> None:
    # 300 states of 1.0: summed in half precision the thirds of a percent would be lost.
    many = [one(1.0, dtype=dtype)] * 299 + [one(301.0, dtype=dtype)]
    result = states.mean(many, [1] * 300)["w"]
    assert result.dtype == dtype
    assert result.item() == pytest.approx(2.0, abs=0.01)
    big = {"w": torch.full((100_000,), 1.0, dtype=dtype)}
    zero = {"w": torch.zeros(100_000, dtype=dtype)}
    assert states.distance(big, zero) == pytest.approx(100_000**0.5, rel=1e-4)


def test_digest_ignores_insertion_order_and_layout_but_nothing_else() -> None:
    a, b = torch.arange(6.0).reshape(2, 3), torch.tensor([1, 2])
    base = states.digest({"a": a, "b": b})
    assert states.digest(OrderedDict([("b", b), ("a", a)])) == base
    assert states.digest({"a": a.t().contiguous().t(), "b": b}) == base
    changed = [
        {"a": a + 1e-7, "b": b},
        {"a": a.reshape(3, 2), "b": b},
        {"a": a.double(), "b": b},
        {"c": a, "b": b},
        {"a": a},
    ]
    assert base not in {states.digest(other) for other in changed}


def test_files_come_back_the_same(tmp_path: Path) -> None:
    value = {
        "w": torch.randn(3, 4).to(memory_format=torch.contiguous_format).t(),
        "half": torch.randn(2).bfloat16(),
        "steps": torch.tensor(7),
    }
    states.save(value, tmp_path / "s.safetensors", {"round": "3"})
    loaded, metadata = states.load(tmp_path / "s.safetensors")
    assert states.digest(loaded) == states.digest(value)
    assert metadata == {"round": "3"}


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.safetensors"
    states.save(one(1), path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        states.save(one(2), path)
    assert states.load(path)[0]["w"].item() == 1
    assert [p.name for p in tmp_path.iterdir()] == ["s.safetensors"]


def test_corrupt_files_are_one_clear_error(tmp_path: Path) -> None:
    good = tmp_path / "good.safetensors"
    states.save(one(1, 2, 3), good)
    content = good.read_bytes()
    for bad in (b"", content[:-4], struct.pack("<Q", 1 << 60) + content[8:], b"\x80\x04evil"):
        path = tmp_path / "bad.safetensors"
        path.write_bytes(bad)
        with pytest.raises(StateError, match=r"bad\.safetensors"):
            states.load(path)
    with pytest.raises(StateError, match="no such file"):
        states.load(tmp_path / "absent.safetensors")


def test_schema_differences_are_named() -> None:
    with pytest.raises(StateError, match=r"missing \['w'\], unexpected \['v'\]"):
        states.check_schema({"v": torch.zeros(1)}, one(1))
    with pytest.raises(StateError, match=r"'w' is torch.float32 \(2,\), expected"):
        states.mean([one(1), one(1, 2)], [1, 1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_found(bad: float) -> None:
    states.check_finite(one(1, 2))
    with pytest.raises(StateError, match="'w' holds values that are not finite"):
        states.check_finite(one(1, bad))


@pytest.mark.parametrize("weights", [[0, 0], [-1, 2], [float("nan"), 1], [1]])
def test_impossible_mean_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(StateError):
        states.mean([one(1), one(2)], weights)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight


def test_a_shared_parameter_counts_once_and_loads_under_both_names() -> None:
    model = Tied()
    state = states.of(model)
    assert list(state) == ["first.weight"]
    states.load_into(model, {"first.weight": torch.ones(3, 3)})
    assert torch.equal(model.second.weight, torch.ones(3, 3))
    torn = {"first.weight": torch.ones(3, 3), "second.weight": torch.zeros(3, 3)}
    with pytest.raises(StateError, match="one shared parameter"):
        states.load_into(model, torn)


def test_of_is_a_copy() -> None:
    model = nn.Linear(2, 2)
    before = states.of(model)
    nn.init.zeros_(model.weight)
    assert not torch.equal(before["weight"], model.weight)


def test_entries_that_share_memory_are_saved(tmp_path: Path) -> None:
    value = torch.arange(3.0)
    states.save({"a": value, "b": value, "c": value[1:]}, str(tmp_path / "s.safetensors"))
    loaded, _ = states.load(str(tmp_path / "s.safetensors"))
    assert loaded["c"].tolist() == [1.0, 2.0]


class Extra(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


def test_extra_state_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(StateError, match="get_extra_state"):
        states.of(Extra(2, 2))
