"""Which weights can be removed, and how they act on their input."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from secede.erasure.defences.unused_weights import WeightLayout, embeddings, find_layers, last_layer


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
    found = find_layers(Network(), 3)
    assert found.weights == {"kernel.weight": WeightLayout(), "hidden.weight": WeightLayout()}
    assert (found.left_out, found.transposed) == (("places",), frozenset())
    assert find_layers(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), 2).weights == {}


def test_embeddings_are_looked_up() -> None:
    assert embeddings(Network()) == {"words.weight"}


class HeadFirst(nn.Module):
    """Its last layer is registered first; another one has as many outputs as there are classes."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 10)
        self.body = nn.Linear(20, 6)
        self.second = nn.Conv2d(10, 20, 3)
        self.first = nn.Conv2d(1, 10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x).relu()).relu().mean(dim=(2, 3))
        answer: Tensor = self.head(self.body(x).relu())
        return answer


@pytest.mark.parametrize("classes", [10, 7, None])
def test_the_last_layer_is_that_of_the_computation(classes: int | None) -> None:
    found = find_layers(HeadFirst(), classes)
    assert found.weights.keys() == {"body.weight", "second.weight", "first.weight"}


@pytest.mark.parametrize(
    ("model", "place"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), 1),  # each could take the other's
        (nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4), nn.Conv1d(4, 2, 1)), 1),
        (nn.Sequential(nn.Linear(4, 5), nn.Linear(4, 6)), 1),  # two heads
        (nn.Sequential(nn.Conv1d(4, 2, 1), nn.Conv1d(2, 3, 1)), 1),
        (nn.Sequential(nn.MultiheadAttention(4, 2), nn.Linear(4, 2)), 1),
    ],
)
def test_else_the_last_layer_is_that_of_registration(model: nn.Sequential, place: int) -> None:
    assert last_layer(model) is model[place]


def test_a_model_without_layers_has_no_last_one() -> None:
    assert last_layer(nn.ReLU()) is None


def test_of_several_that_could_be_the_last_layer_it_is_the_last_one() -> None:
    same = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    assert find_layers(same, 3).weights.keys() == {"0.weight"}


def test_a_last_layer_that_is_frozen_is_the_last_one_all_the_same() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    model[2].requires_grad_(requires_grad=False)
    assert find_layers(model, 2).weights.keys() == {"0.weight", "1.weight"}


def old_weight_norm(layer: nn.Linear) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        found: nn.Module = nn.utils.weight_norm(layer)
    return found


@pytest.mark.parametrize(
    ("wrap", "names"),
    [
        (old_weight_norm, ("0.weight_g", "0.weight_v")),
        (
            parametrizations.weight_norm,
            ("0.parametrizations.weight.original0", "0.parametrizations.weight.original1"),
        ),
        (nn.utils.spectral_norm, ("0.weight_orig",)),
    ],
)
def test_a_weight_that_is_made_of_others_is_left_out_by_name(
    wrap: object, names: tuple[str, ...]
) -> None:
    assert callable(wrap)
    model = nn.Sequential(wrap(nn.Linear(4, 3)), nn.Linear(3, 3), nn.Linear(3, 2))
    found = find_layers(model, 2)
    assert (found.weights, found.left_out) == ({"1.weight": WeightLayout()}, names)
    head = nn.Sequential(nn.Linear(4, 3), wrap(nn.Linear(3, 2)))  # and is the last layer still
    found = find_layers(head, 2)
    assert found.weights == {"0.weight": WeightLayout()}
    assert found.left_out == tuple(f"1{name[1:]}" for name in names)


def test_short_numbers_are_left_out_by_name() -> None:
    short = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2)).to(torch.bfloat16)
    found = find_layers(short, 2)
    assert (found.weights, found.left_out) == ({}, ("0.weight", "1.weight"))


def test_convolutions_have_groups_and_transposed_ones_their_inputs_first() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3, groups=2),
        nn.ConvTranspose2d(6, 4, 3),
        nn.ConvTranspose1d(4, 6, 3, groups=2),
        nn.Conv2d(6, 6, 3, groups=6),
        nn.Linear(6, 5),
    )
    found = find_layers(model, 5)
    assert found.weights == {
        "0.weight": WeightLayout(2),
        "1.weight": WeightLayout(transposed=True),
        "2.weight": WeightLayout(2, transposed=True),
    }
    assert found.left_out == ("3.weight",)  # a row for each input cannot tell


def test_what_is_left_out_with_its_inputs_first_is_told() -> None:
    model = nn.Sequential(
        nn.ConvTranspose1d(4, 4, 3, groups=4),
        parametrizations.weight_norm(nn.ConvTranspose1d(4, 2, 3)),
        nn.Conv1d(2, 2, 3, groups=2),
        nn.Linear(2, 3),
    )
    found = find_layers(model, 3)
    part = "1.parametrizations.weight.original"
    assert found.left_out == ("0.weight", f"{part}0", f"{part}1", "2.weight")
    assert found.transposed == {*found.left_out} - {"2.weight"}
    assert find_layers(nn.ConvTranspose1d(4, 2, 3), 2).transposed == {"weight"}  # the last one


def test_attention_and_recurrent_layers_are_matrices() -> None:
    model = nn.ModuleList([nn.LSTM(3, 4), nn.MultiheadAttention(4, 2), nn.Linear(4, 2)])
    assert find_layers(model, 2).weights.keys() == {
        "0.weight_ih_l0",
        "0.weight_hh_l0",
        "1.in_proj_weight",
        "1.out_proj.weight",
    }


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(4, 6, 3, groups=2),
        nn.Conv1d(4, 6, 3),
        nn.ConvTranspose1d(4, 6, 3),
        nn.ConvTranspose1d(4, 6, 3, groups=2),
    ],
)
def test_every_gradient_of_a_layer_lies_in_what_its_inputs_span_by_its_form(
    layer: nn.Conv1d | nn.ConvTranspose1d,
) -> None:
    # Channels of the same group always have opposite values: what answers their sum is not used.
    (form,) = find_layers(nn.Sequential(layer, nn.Linear(9, 2)), 2).weights.values()
    x = torch.randn(5, 4, 7, generator=torch.Generator().manual_seed(0))
    x[:, 1::2] = -x[:, ::2]
    layer(x).square().sum().backward()
    assert layer.weight.grad is not None
    blocks = form.blocks(layer.weight.grad)
    channels = 4 // form.groups
    assert blocks.shape[::2] == (form.groups, channels * (1 if form.transposed else 3))
    by_channel = blocks.unflatten(2, (channels, -1))
    torch.testing.assert_close(by_channel[:, :, 1::2], -by_channel[:, :, ::2])
    torch.testing.assert_close(form.join(blocks, layer.weight), layer.weight.grad)
