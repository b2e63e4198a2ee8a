"""What fades, on a few numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from secede.erasure import fading
from secede.erasure.fading import SHARE, fade, ridge


def test_a_weight_that_nobody_uses_vanishes_and_one_that_all_use_hardly_changes() -> None:
    # One change of unit length along the first input; λ = 0.1 · 1 client / 2 inputs.
    found = ridge(torch.tensor([[3.0, 5.0]]), [torch.tensor([[2.0, 0.0]])])
    torch.testing.assert_close(found, torch.tensor([[3 / (1 + SHARE / 2), 0.0]]))


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
    ridged = energy + SHARE * 2 / 12 * torch.eye(12, dtype=torch.float64)
    expected = weight.flatten(1).double() @ energy @ torch.linalg.inv(ridged)
    torch.testing.assert_close(ridge(weight, changes).flatten(1), expected.float())


def test_no_client_counts_more_by_a_longer_update() -> None:
    draw = torch.Generator().manual_seed(0)
    weight, one, other = (torch.randn(2, 5, generator=draw) for _ in range(3))
    torch.testing.assert_close(ridge(weight, [one, other]), ridge(weight, [1000 * one, other]))


class Network(nn.Module):
    """Layers of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 2)
        self.places = nn.Parameter(torch.zeros(4, 2))
        self.kernel = nn.Conv2d(1, 1, 2)
        self.norm = nn.LayerNorm(2)
        self.hidden = nn.Linear(2, 2)
        self.frozen = nn.Linear(2, 2).requires_grad_(requires_grad=False)
        self.head = nn.Linear(2, 3)


def test_layers_are_those_whose_rows_act_on_an_input_but_for_the_last() -> None:
    assert fading.layers(Network()) == {"kernel.weight", "hidden.weight"}
    assert fading.layers(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))) == frozenset()


def test_other_values_are_zeroed_only_where_nobody_moved_any_of_an_input_to_the_bit() -> None:
    start = {"head": torch.ones(2, 3), "bias": torch.ones(2), "buffer": torch.ones(1)}

    def moved(row: int, column: int) -> dict[str, Tensor]:
        head = start["head"].clone()
        head[row, column] += 1e-6
        return {**start, "head": head, "bias": torch.tensor([1.0, 2.0])}

    updates = [moved(0, 0), moved(1, 1)]
    found = fade(start, start, updates, movable={"head", "bias"}, weights=frozenset())
    assert found.state["head"].tolist() == [[1, 1, 0], [1, 1, 0]]
    assert found.state["bias"].tolist() == [1, 1]
    assert found.state["buffer"].tolist() == [1]
    assert (found.zeroed, found.share) == (2, 0.0)
    found = fade(start, start, updates, movable={"head", "bias"}, weights=frozenset(), single=True)
    assert found.state["head"].tolist() == [[1, 0, 0], [0, 1, 0]]
    assert found.state["bias"].tolist() == [0, 1]


def test_embeddings_are_looked_up() -> None:
    assert fading.lookups(Network()) == {"words.weight"}


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("weights", [frozenset[str](), frozenset({"a"})])
def test_a_layer_that_nobody_trains_stays_as_it_is(weights: frozenset[str], single: bool) -> None:
    start = {"a": torch.tensor([[3.0, 1.0]])}
    found = fade(start, start, [start, start], movable=start.keys(), weights=weights, single=single)
    assert found.state["a"].tolist() == [[3.0, 1.0]]
    assert (found.zeroed, found.share) == (0, 0.0)


def test_short_numbers_stay_as_they_are_since_training_rounds_to_no_movement() -> None:
    start = {"a": torch.ones(2, 2, dtype=torch.bfloat16)}
    update = {"a": torch.tensor([[1.0, 2.0], [1.0, 1.0]], dtype=torch.bfloat16)}
    assert fade(start, start, [update], movable={"a"}, weights=frozenset()).zeroed == 0
    short = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(torch.bfloat16)
    assert fading.layers(short) == frozenset()


def test_weight_decay_is_no_use_of_a_weight() -> None:
    # The client's samples reach the first input alone; its decay shrinks both by a tenth.
    start = {"a": torch.tensor([[4.0, 2.0], [0.0, 2.0]])}
    decayed = {"a": 0.9 * start["a"] + torch.tensor([[0.0, 0.0], [1.0, 0.0]])}
    found = fade(start, start, [decayed], movable={"a"}, weights={"a"})
    assert found.state["a"][:, 1].abs().max() < 1e-5
    assert found.state["a"][0, 0].item() == pytest.approx(4 / (1 + SHARE / 2))


def test_a_layer_that_is_too_large_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fading, "_LARGEST", 1)
    weight = torch.ones(2, 2)
    assert ridge(weight, [torch.tensor([[1.0, 0.0], [0.0, 0.0]])]) is weight


def test_tiny_changes_have_a_length_too() -> None:
    tiny = torch.tensor([[1e-170, 0.0]], dtype=torch.float64)
    found = ridge(torch.ones(1, 2).double(), [tiny])
    assert found[0].tolist() == pytest.approx([1 / (1 + SHARE / 2), 0.0])


def test_the_share_that_is_gone_is_told() -> None:
    start = {"b": torch.tensor([[0.0, 4.0], [3.0, 0.0]])}
    update = {"b": torch.tensor([[0.0, 4.0], [3.0, 0.0]]) + torch.tensor([[1.0, 0.0], [0.0, 0.0]])}
    found = fade(start, start, [update], movable=start.keys(), weights=start.keys())
    kept = 3 / (1 + SHARE / 2)
    torch.testing.assert_close(found.state["b"], torch.tensor([[0.0, 0.0], [kept, 0.0]]))
    assert found.share == pytest.approx(1 - kept**2 / 25)
