"""Tests `plugins.py` too."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from secede.errors import ConfigError
from secede.models import build

Write = Callable[..., Path]

HEAD = "import torch\nfrom torch import nn\n"
LINEAR = HEAD + "def make(shape, classes):\n    return nn.Linear(shape[0], classes)\n"


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Write a user's module into a folder that is not on the path; forget it afterwards."""
    before = set(sys.modules)

    def put(source: str, name: str = "own_model_under_test") -> Path:
        file = tmp_path / f"{name.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
        return tmp_path

    yield put
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]


def make(search: Path, value: str = "own_model_under_test:make") -> nn.Module:
    return build(value, shape=(3,), classes=2, search=search)


def refused(search: Path, problem: str, value: str = "own_model_under_test:make") -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        make(search, value)
    assert repr(value) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_factory_of_two_arguments_gets_shape_and_classes(write: Write) -> None:
    model = make(write(LINEAR))
    assert isinstance(model, nn.Linear)
    assert (model.in_features, model.out_features) == (3, 2)


def test_a_factory_of_no_arguments_is_called_without_any(write: Write) -> None:
    model = make(write(HEAD + "def make():\n    return nn.Linear(3, 2)\n"))
    assert isinstance(model, nn.Linear)


def test_further_arguments_with_defaults_are_left_alone(write: Write) -> None:
    source = HEAD + "def make(shape, classes, bias=False):\n    return nn.Linear(3, 2, bias)\n"
    assert make(write(source)).bias is None


def test_a_single_argument_with_a_default_does_not_get_the_shape(write: Write) -> None:
    source = HEAD + "def make(bias=False, **kwargs):\n    return nn.Linear(3, 2, bias)\n"
    assert make(write(source)).bias is None


def test_a_module_class_is_a_factory(write: Write) -> None:
    source = HEAD + ("class Net(nn.Module):\n    def forward(self, x):\n        return x[:, :2]\n")
    assert type(make(write(source), "own_model_under_test:Net")).__name__ == "Net"


def test_a_module_inside_a_package_is_found(write: Write) -> None:
    write("", "own_package.__init__")
    search = write(LINEAR, "own_package.nets")
    assert isinstance(make(search, "own_package.nets:make"), nn.Linear)


def test_an_installed_module_needs_no_search_folder() -> None:
    with pytest.raises(ConfigError, match="it must take"):
        build("torch.nn:Conv2d", shape=(3,), classes=2)


def test_the_search_folder_leaves_the_path_again(write: Write) -> None:
    before = list(sys.path)
    make(write(LINEAR))
    refused(write("raise OSError", "own_broken"), "OSError", "own_broken:make")
    assert sys.path == before


def test_the_trial_leaves_the_training_mode_and_the_buffers(write: Write) -> None:
    source = HEAD + (
        "def make(shape, classes):\n"
        "    return nn.Sequential(nn.Linear(shape[0], classes), nn.BatchNorm1d(classes))\n"
    )
    model = make(write(source))
    assert model.training
    assert model[1].num_batches_tracked.item() == 0  # type: ignore[index]


def test_lazy_layers_come_out_trainable(write: Write) -> None:
    model = make(write(HEAD + "def make(shape, classes):\n    return nn.LazyLinear(classes)\n"))
    model(torch.ones(2, 3)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("", "has no 'make'"),
        ("make = 3", "not callable but something of type 'int'"),
        (HEAD + "make = nn.Linear(3, 2)", "is one model"),
        ("def make(a, b, c): ...", r"must take \(shape, classes\) or nothing, not \(a, b, c\)"),
        ("def make(a): ...", "must take"),
        ("def make(shape, classes, *, width): ...", "must take"),
        ("def make(shape, classes): return None", "returned None, expected a torch.nn.Module"),
        ("def make(shape, classes): return [1]", "returned something of type 'list', expected"),
        ("def make(shape, classes): raise ValueError('no\\nway')", "failed: ValueError: no way"),
        ("import own_dependency_not_installed", "No module named 'own_dependency_not_installed'"),
        ("def make(:", "failed: SyntaxError"),
        ("import sys\nsys.exit(3)", "failed: SystemExit: 3"),
        (HEAD + "def make(): return nn.Linear(5, 2)", r"fails on a batch .* shape \(3,\)"),
        (HEAD + "def make(): return nn.Linear(3, 7)", r"has shape \(2, 7\), expected \(2, 2\)"),
        (HEAD + "def make(): return nn.LSTM(3, 2)", "output is .* 'tuple', expected a tensor"),
    ],
)
def test_each_failure_is_one_clear_line(write: Write, source: str, problem: str) -> None:
    refused(write(source), problem)


def test_a_module_that_is_not_there_is_named(tmp_path: Path) -> None:
    refused(tmp_path, "there is no module 'own_nowhere'", "own_nowhere:make")
    refused(tmp_path, re.escape("there is no module 'json.nowhere'"), "json.nowhere:make")


@pytest.mark.parametrize(
    "value",
    ["own_model_under_test.py:make", "folder/own:make", "own:", ":make", "own:a:b", "a..b:c"],
)
def test_a_value_of_another_form_is_refused(tmp_path: Path, value: str) -> None:
    refused(tmp_path, "expected the form package.module:factory", value)


def test_a_factory_that_hands_out_one_model_twice_is_refused(write: Write) -> None:
    search = write(HEAD + "only = nn.Linear(3, 2)\ndef make(): return only\n")
    make(search)
    refused(search, "the same model twice")


def test_a_module_shadowed_by_one_already_loaded_is_refused(write: Write) -> None:
    refused(write(LINEAR, "json"), "'json' is already loaded from", "json:make")


def test_a_built_in_module_is_no_special_case(tmp_path: Path) -> None:
    refused(tmp_path, "has no 'make'", "sys:make")
