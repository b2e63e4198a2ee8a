import pytest
import torch

from secede.data.samples import Samples
from secede.errors import ConfigError, DataError
from secede.scenarios.scenario import Probe, check_images, everyone

SAMPLES = Samples(torch.zeros(3, 1, 6, 4), torch.arange(3))


@pytest.mark.parametrize("mask", [torch.ones(3), torch.ones(2, dtype=torch.bool)])
def test_a_probe_refuses_masks_that_do_not_fit(mask: torch.Tensor) -> None:
    with pytest.raises(DataError, match="measure 'm' has a"):
        Probe(SAMPLES, {"m": mask})


def test_everyone_counts_every_sample() -> None:
    assert Probe(SAMPLES, {"m": everyone(SAMPLES)}).measures["m"].tolist() == [True, True, True]


def test_images_need_sides_that_suffice() -> None:
    check_images("flipped", SAMPLES, minimum_side=4)
    with pytest.raises(ConfigError, match=r"at least 5 pixels, got inputs of shape \(1, 6, 4\)"):
        check_images("flipped", SAMPLES, minimum_side=5)


@pytest.mark.parametrize("shape", [(3, 9), (3, 9, 9), (3, 1, 9, 9, 9)])
def test_what_is_no_image_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="'backdoor' needs images"):
        check_images("backdoor", Samples(torch.zeros(shape), torch.tensor([0, 1, 2])))
