import pytest
import torch

from secede.data.samples import Samples
from secede.errors import ConfigError
from secede.scenarios.classes import Exclusive
from secede.seeding import generator

SAMPLES = Samples(torch.rand(8, 3), torch.tensor([0, 1, 2, 2, 0, 1, 2, 2]))


def test_the_leavers_samples_stay_as_they_are() -> None:
    assert Exclusive(classes=(2,)).transform(SAMPLES, generator(0)) is SAMPLES


def test_the_leaver_ends_with_its_classes_and_a_few_stay_behind() -> None:
    parts = [torch.tensor([0, 1, 2, 4]), torch.tensor([3, 5, 6, 7])]
    alone = Exclusive(classes=(2,)).deal(SAMPLES.y, parts, 0, generator(0))
    assert SAMPLES.y[alone[0]].tolist() == [2, 2, 2, 2]
    shared = Exclusive(classes=(2,), kept=0.4).deal(SAMPLES.y, parts, 0, generator(0))
    assert int((SAMPLES.y[shared[1]] == 2).sum()) == 1  # 0.4 of three is 1.2
    assert [len(part) for part in shared] == [4, 4]


def test_held_out_samples_have_the_leavers_mix() -> None:
    found = Exclusive(classes=(2,)).held_out(SAMPLES.y, torch.tensor([2, 2, 1]), generator(0))
    assert found is not None
    assert sorted(SAMPLES.y[found].tolist()) == [1, 1, 2, 2, 2, 2]


def test_the_probe_is_the_test_samples_by_class() -> None:
    probe = Exclusive(classes=(2,)).probe(SAMPLES)
    assert list(probe.measures) == ["exclusive_accuracy", "others_accuracy"]
    assert probe.measures["exclusive_accuracy"].tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize("kept", [-0.1, 1.0, float("nan")])
def test_a_share_that_is_kept_outside_of_its_range_is_refused(kept: float) -> None:
    with pytest.raises(ConfigError, match=r"scenario\.kept is .* from 0 to below 1"):
        Exclusive(classes=(2,), kept=kept)


def test_no_class_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"scenario\.classes is \[\]"):
        Exclusive(classes=())
