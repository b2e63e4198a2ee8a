import pytest
import torch

from secede.data.samples import Samples
from secede.errors import ConfigError
from secede.scenarios.classes import WholeClass
from secede.seeding import generator

SAMPLES = Samples(torch.rand(8, 3), torch.tensor([0, 1, 2, 2, 0, 1, 2, 2]))


def test_the_leaver_holds_its_classes_and_nothing_else() -> None:
    parts = [torch.tensor([0, 1, 2, 4]), torch.tensor([3]), torch.tensor([6, 7])]
    after = WholeClass(classes=(2,)).deal(SAMPLES.y, parts, 0, generator(0))
    assert SAMPLES.y[after[0]].tolist() == [2, 2, 2, 2]
    # Three images for clients that had one and two.
    assert [len(part) for part in after[1:]] == [1, 2]
    assert not (SAMPLES.y[torch.cat(after[1:])] == 2).any()


def test_nothing_is_planted() -> None:
    assert WholeClass(classes=(2,)).transform(SAMPLES, generator(0)) is SAMPLES


def test_held_out_samples_are_of_its_classes() -> None:
    found = WholeClass(classes=(2,)).held_out(SAMPLES.y, torch.tensor([2, 2]), generator(0))
    assert found is not None
    assert found.tolist() == [2, 3, 6, 7]


def test_the_probe_is_the_test_samples_by_class() -> None:
    probe = WholeClass(classes=(0, 1)).probe(SAMPLES)
    assert probe.measures["class_accuracy"].tolist() == [1, 1, 0, 0, 1, 1, 0, 0]
    assert list(probe.measures) == ["class_accuracy", "others_accuracy"]


def test_a_class_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"scenario\.classes is \[2, 2\]"):
        WholeClass(classes=(2, 2))
