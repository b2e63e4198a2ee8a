import pytest
import torch
from torch import nn

from secede.errors import ConfigError
from secede.models import build


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("shape", "classes", "parameters"),
    [
        ((1, 28, 28), 10, 1_663_370),
        ((1, 28, 28), 47, 1_682_351),
        ((3, 32, 32), 10, 2_156_490),
    ],
)
def test_the_papers_cnn_has_the_papers_parameters(
    shape: tuple[int, ...], classes: int, parameters: int
) -> None:
    assert count(build("paper-cnn", shape=shape, classes=classes)) == parameters


def test_the_small_cnn_has_the_hand_counted_parameters() -> None:
    # (25 + 1) * 16, (16 * 25 + 1) * 32, (32 * 7 * 7 + 1) * 128, (128 + 1) * 10
    expected = 416 + 12_832 + 200_832 + 1_290
    assert count(build("small-cnn", shape=(1, 28, 28), classes=10)) == expected


def test_the_perceptron_has_the_hand_counted_parameters() -> None:
    # (6 + 1) * 200, (200 + 1) * 200, (200 + 1) * 4
    assert count(build("mlp", shape=(2, 3), classes=4)) == 1_400 + 40_200 + 804


@pytest.mark.parametrize("name", ["paper-cnn", "small-cnn"])
@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 5, 11), (2, 28, 7)])
def test_a_cnn_takes_images_of_any_size_from_four_pixels(name: str, shape: tuple[int, ...]) -> None:
    assert build(name, shape=shape, classes=3)(torch.zeros(2, *shape)).shape == (2, 3)


@pytest.mark.parametrize("shape", [(7,), (2, 3), (1, 2, 3), (2, 1, 2, 2)])
def test_the_perceptron_takes_inputs_of_any_shape(shape: tuple[int, ...]) -> None:
    assert build("mlp", shape=shape, classes=3)(torch.zeros(2, *shape)).shape == (2, 3)


@pytest.mark.parametrize("shape", [(28, 28), (784,), (1, 3, 28), (1, 28, 3), (1, 1, 28, 28)])
def test_a_cnn_refuses_what_is_no_image_and_points_to_the_perceptron(
    shape: tuple[int, ...],
) -> None:
    with pytest.raises(ConfigError, match=r"'paper-cnn' needs images .* 'mlp' takes any shape"):
        build("paper-cnn", shape=shape, classes=10)


def test_the_cnn_layers_come_in_the_papers_order() -> None:
    kinds = [
        type(layer).__name__ for layer in build("paper-cnn", shape=(1, 8, 8), classes=2).children()
    ]
    block = ["Conv2d", "ReLU", "MaxPool2d"]
    assert kinds == [*block, *block, "Flatten", "Linear", "ReLU", "Linear"]
