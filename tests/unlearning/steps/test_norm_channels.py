from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from secede.errors import ConfigError, StateError
from secede.unlearning.steps import norm_channels

IMAGE = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def fed(model: nn.Module, *layers: str, inputs: Tensor = IMAGE) -> dict[str, list[float]]:
    return {
        key: rows.tolist()
        for key, rows in norm_channels.channel_maps(model, layers, inputs).items()
    }


@pytest.mark.parametrize(
    "between",
    [
        [],
        [nn.ReLU()],
        [nn.ReLU(inplace=True), nn.MaxPool2d(2)],
        [nn.Dropout(0.5), nn.AvgPool2d(2)],
        [nn.Tanh()],
    ],
)
def test_a_norm_is_found_behind_what_leaves_zeros_zero(between: list[nn.Module]) -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), *between, nn.BatchNorm2d(3))
    assert fed(model, "0") == {f"0>{1 + len(between)}": [1, 2, 3]}


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True)]
)
def test_every_kind_of_norm_is_found(norm: nn.Module) -> None:
    assert fed(nn.Sequential(nn.Conv2d(1, 4, 3), norm), "0") == {"0>1": [1, 2, 3, 4]}


def test_a_norm_behind_another_layer_is_that_layers() -> None:
    # Without biases the second convolution would turn zeros into zeros.
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, bias=False), nn.Conv2d(2, 2, 1, bias=False), nn.BatchNorm2d(2)
    )
    assert fed(model, "0", "1") == {"1>2": [1, 2]}
    fresh = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.BatchNorm2d(2))
    assert fed(fresh, "0") == {"0>1": [1, 2]}  # and a norm's norm is nobody's


def test_hidden_units_and_pixels_have_rows_too() -> None:
    units = nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    assert fed(units, "1") == {"1>2": [1, 2, 3]}
    pixels = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.BatchNorm1d(8))
    assert fed(pixels, "0") == {"0>2": [1, 1, 1, 1, 2, 2, 2, 2]}


class Branching(nn.Module):
    """The norms come first, out of order: only running it shows what they normalise."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(2), nn.BatchNorm2d(2)])
        self.left, self.right, self.inner = (
            nn.Conv2d(1, 2, 1), nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 1)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        left: Tensor = self.norms[1](self.left(x).relu())
        added = self.norms[2](left + self.inner(left))  # alive whatever the inner one gives
        out: Tensor = self.norms[0](torch.cat([added, self.right(x)], dim=1))
        return out


def test_a_sum_with_something_else_is_not_dead_and_a_part_of_a_row_is_found() -> None:
    found = fed(Branching(), "left", "right", "inner")
    assert found == {"left>norms.1": [1, 2], "right>norms.0": [0, 0, 1, 2]}


def test_a_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert fed(model, "0")
    assert model.training
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_rows_that_do_not_share_out_are_refused() -> None:
    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, :3]

    model = nn.Sequential(nn.Conv2d(1, 4, 3), Half(), nn.BatchNorm2d(3))
    with pytest.raises(ConfigError, match=r"rows of '2' .* channels of '0': found 3 rows for 4"):
        fed(model, "0")


def test_masks_follow_the_channels_and_replies_that_disagree_are_refused() -> None:
    model = nn.Sequential(OrderedDict(a=nn.Conv2d(1, 2, 1), norm=nn.BatchNorm2d(4)))
    keep = {"a": torch.tensor([True, False])}
    found = norm_channels.masks(model, keep, {"a>norm": torch.tensor([0.0, 0.0, 1.0, 2.0])})
    assert set(found) == {"norm.weight", "norm.bias", "norm.running_mean"}
    assert all(mask.tolist() == [True, True, True, False] for mask in found.values())
    with pytest.raises(StateError, match="clients disagree on which channels of 'a' 'norm'"):
        norm_channels.masks(model, keep, {"a>norm": torch.tensor([0.0, 0.0, 1.5, 2.0])})
