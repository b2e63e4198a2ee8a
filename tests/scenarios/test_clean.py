import torch

from secede.data.samples import Samples
from secede.scenarios.clean import Clean
from secede.seeding import generator

SAMPLES = Samples(torch.rand(4, 3), torch.arange(4))


def test_the_leavers_samples_stay_as_they_are() -> None:
    assert Clean().transform(SAMPLES, generator(0)) is SAMPLES


def test_the_probe_is_the_test_samples() -> None:
    probe = Clean().probe(SAMPLES)
    assert probe.samples is SAMPLES
    assert probe.measures["holdout_accuracy"].tolist() == [True] * 4
