"""Removal of unused weights, on a few numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from secede.erasure.defences import unused_weights
from secede.erasure.defences.unused_weights import (
    RIDGE_SHARE,
    WeightLayout,
    remove_unused_weights,
    too_large,
)


def ridge(weight: Tensor, changes: list[Tensor], form: WeightLayout | None = None) -> Tensor:
    """Fade a weight by changes from nothing, so that none of them is weight decay."""
    return unused_weights.ridge(
        weight, torch.zeros_like(changes[0]), changes, form or WeightLayout()
    )


def test_a_weight_that_nobody_uses_vanishes_and_one_that_all_use_hardly_changes() -> None:
    # One change of unit length along the first input; λ = 0.1 · 1 client / 2 inputs.
    found = ridge(torch.tensor([[3.0, 5.0]]), [torch.tensor([[2.0, 0.0]])])
    torch.testing.assert_close(found, torch.tensor([[3 / (1 + RIDGE_SHARE / 2), 0.0]]))


def test_directions_count_and_not_single_weights() -> None:
    # Both inputs always move together: what answers their difference is used by nobody.
    found = ridge(torch.tensor([[1.0, -1.0]]), [torch.tensor([[4.0, 4.0]])])
    torch.testing.assert_close(found, torch.zeros(1, 2))


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_few_and_many_rows_are_solved_alike(rows: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    weight = torch.randn(rows, 2, 3, 2, generator=draw)
    changes = [torch.randn(rows, 2, 3, 2, generator=draw) for _ in range(2)]
    d = torch.cat([(c / c.norm()).flatten(1) for c in changes]).double()
    energy = d.T @ d
    ridged = energy + RIDGE_SHARE * 2 / 12 * torch.eye(12, dtype=torch.float64)
    expected = weight.flatten(1).double() @ energy @ torch.linalg.inv(ridged)
    torch.testing.assert_close(ridge(weight, changes).flatten(1), expected.float())


def test_no_client_counts_more_by_a_longer_update() -> None:
    draw = torch.Generator().manual_seed(0)
    weight, one, other = (torch.randn(2, 5, generator=draw) for _ in range(3))
    torch.testing.assert_close(ridge(weight, [one, other]), ridge(weight, [1000 * one, other]))


def test_other_values_are_zeroed_only_where_nobody_moved_any_of_an_input_to_the_bit() -> None:
    start = {"head": torch.ones(2, 3), "bias": torch.ones(2), "buffer": torch.ones(1)}

    def moved(row: int, column: int) -> dict[str, Tensor]:
        head = start["head"].clone()
        head[row, column] += 1e-6
        return {**start, "head": head, "bias": torch.tensor([1.0, 2.0])}

    updates = [moved(0, 0), moved(1, 1)]
    found = remove_unused_weights(start, start, updates, trainable={"head", "bias"}, weights={})
    assert found.state["head"].tolist() == [[1, 1, 0], [1, 1, 0]]
    assert found.state["bias"].tolist() == [1, 1]
    assert found.state["buffer"].tolist() == [1]
    assert (found.zeroed, found.share) == (2, 0.0)
    found = remove_unused_weights(
        start, start, updates, trainable={"head", "bias"}, weights={}, single=True
    )
    assert found.state["head"].tolist() == [[1, 0, 0], [0, 1, 0]]
    assert found.state["bias"].tolist() == [0, 1]


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("weights", [{}, {"a": WeightLayout()}])
def test_a_layer_that_nobody_trains_stays_as_it_is(
    weights: dict[str, WeightLayout], single: bool
) -> None:
    start = {"a": torch.tensor([[3.0, 1.0]])}
    found = remove_unused_weights(
        start, start, [start, start], trainable=start.keys(), weights=weights, single=single
    )
    assert found.state["a"].tolist() == [[3.0, 1.0]]
    assert (found.zeroed, found.share) == (0, 0.0)


def test_short_numbers_stay_as_they_are_since_training_rounds_to_no_movement() -> None:
    start = {"a": torch.ones(2, 2, dtype=torch.bfloat16)}
    update = {"a": torch.tensor([[1.0, 2.0], [1.0, 1.0]], dtype=torch.bfloat16)}
    assert remove_unused_weights(start, start, [update], trainable={"a"}, weights={}).zeroed == 0


def test_weight_decay_is_no_use_of_a_weight() -> None:
    # The client's samples reach the first input alone; its decay shrinks both by a tenth.
    start = {"a": torch.tensor([[4.0, 2.0], [0.0, 2.0]])}
    decayed = {"a": 0.9 * start["a"] + torch.tensor([[0.0, 0.0], [1.0, 0.0]])}
    found = remove_unused_weights(
        start, start, [decayed], trainable={"a"}, weights={"a": WeightLayout()}
    )
    assert found.state["a"][:, 1].abs().max() < 1e-5
    assert found.state["a"][0, 0].item() == pytest.approx(4 / (1 + RIDGE_SHARE / 2))


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_what_it_is_given_stays_as_it_was(kind: torch.dtype, rows: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    forms = {"a": WeightLayout(), "b": WeightLayout(transposed=True)}
    given = [
        {name: torch.randn(rows, 6, generator=draw, dtype=kind) for name in forms} for _ in range(4)
    ]
    before = [{name: value.clone() for name, value in one.items()} for one in given]
    state, start, *updates = given
    assert remove_unused_weights(state, start, updates, trainable=forms, weights=forms).share > 0
    for one, other in zip(given, before, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in forms)


@pytest.mark.parametrize(
    ("limit", "value"), [("_MAX_SIDE", 1), ("_MAX_BYTES", 8 * (10 + 3) * 4 - 1)]
)
def test_a_layer_that_is_too_large_stays_as_it_is_and_is_named(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    start = {"a": torch.ones(2, 2), "b": torch.ones(1, 2)}
    update = {"a": torch.tensor([[1.0, 2.0], [0.0, 1.0]]), "b": torch.tensor([[1.0, 2.0]])}
    weights = {"a": WeightLayout(), "b": WeightLayout()}
    assert (
        remove_unused_weights(start, start, [update], trainable=weights, weights=weights).skipped
        == ()
    )
    monkeypatch.setattr(unused_weights, limit, value)
    found = remove_unused_weights(start, start, [update], trainable=weights, weights=weights)
    assert found.skipped == ("a",)
    assert found.state["a"].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    alone = remove_unused_weights(start, start, [update], trainable={"b"}, weights=weights)
    assert found.share == alone.share > 0.4  # of the weights that can be removed


def test_a_layer_with_a_hundred_million_weights_is_skipped_before_it_takes_any_memory() -> None:
    huge = torch.ones(1).expand(4096, 25088)
    assert too_large(huge, 5)  # too long
    assert too_large(huge, 1)  # too much: nine gigabytes
    assert not too_large(torch.ones(1).expand(128, 784), 100)


PEAK = """
import sys
from pathlib import Path

import torch

from secede.erasure.defences import unused_weights


def kilobytes(key):  # of this program alone; getrusage counts the one that started it, too
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


torch.set_num_threads(1)
rows, inputs, count = (int(value) for value in sys.argv[1:])
unused_weights.ridge(*torch.randn(2, 4, 4), [torch.randn(4, 4)])  # loads what it needs
weight, start, *updates = (torch.randn(rows, inputs) for _ in range(count + 2))
before = kilobytes("VmRSS")
unused_weights.ridge(weight, start, updates)
print(1024 * (kilobytes("VmHWM") - before), unused_weights.peak_bytes(weight, count))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is told by Linux")
@pytest.mark.parametrize(("rows", "inputs"), [(2000, 2000), (400, 12000)])
def test_a_layer_takes_as_much_memory_as_is_said(rows: int, inputs: int) -> None:
    command = [sys.executable, "-c", PEAK, str(rows), str(inputs), "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    taken, said = (int(value) for value in done.stdout.split())
    assert said / 2 < taken < said + (32 << 20)  # libraries take some for themselves


def test_groups_of_a_convolution_are_reduced_each_by_its_own_changes() -> None:
    # The first group's samples reach its first input alone, the second's its second.
    weight = torch.tensor([[3.0, 5.0], [7.0, 11.0]])
    found = ridge(weight, [torch.tensor([[2.0, 0.0], [0.0, 2.0]])], WeightLayout(2))
    kept = 1 + RIDGE_SHARE / 2
    torch.testing.assert_close(found, torch.tensor([[3 / kept, 0.0], [0.0, 11 / kept]]))


def test_a_group_that_nobody_trains_stays_as_it_is() -> None:
    change = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    found = ridge(torch.tensor([[3.0, 5.0], [7.0, 11.0]]), [change], WeightLayout(2))
    assert found[0, 1] == 0
    assert found[1].tolist() == [7.0, 11.0]


@pytest.mark.parametrize("rows", [1, 40])
def test_a_transposed_weight_is_reduced_as_the_weight_itself(rows: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    weight, change = (torch.randn(rows, 6, generator=draw) for _ in range(2))
    plain = ridge(weight, [change])
    turned = ridge(weight.T, [change.T], WeightLayout(transposed=True))
    torch.testing.assert_close(turned, plain.T)


def test_an_input_of_a_transposed_convolution_that_nobody_reaches_is_set_to_zero() -> None:
    start = {"a": torch.ones(2, 1, 3)}
    moved = {"a": torch.ones(2, 1, 3)}
    moved["a"][0] += 1
    form = WeightLayout(transposed=True)
    found = remove_unused_weights(start, start, [moved], trainable={"a"}, weights={"a": form})
    assert found.state["a"][1].tolist() == [[0.0, 0.0, 0.0]]
    assert found.zeroed == 3


def test_tiny_changes_have_a_length_too() -> None:
    tiny = torch.tensor([[1e-170, 0.0]], dtype=torch.float64)
    found = ridge(torch.ones(1, 2).double(), [tiny])
    assert found[0].tolist() == pytest.approx([1 / (1 + RIDGE_SHARE / 2), 0.0])


def test_the_removed_share_is_returned() -> None:
    start = {"b": torch.tensor([[0.0, 4.0], [3.0, 0.0]])}
    update = {"b": torch.tensor([[0.0, 4.0], [3.0, 0.0]]) + torch.tensor([[1.0, 0.0], [0.0, 0.0]])}
    found = remove_unused_weights(
        start, start, [update], trainable=start.keys(), weights={"b": WeightLayout()}
    )
    kept = 3 / (1 + RIDGE_SHARE / 2)
    torch.testing.assert_close(found.state["b"], torch.tensor([[0.0, 0.0], [kept, 0.0]]))
    assert found.share == pytest.approx(1 - kept**2 / 25)
