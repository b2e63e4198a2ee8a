import pytest
import torch

from secede.data.samples import Samples
from secede.errors import ConfigError
from secede.scenarios.flipped import Flipped
from secede.seeding import generator


def images(count: int) -> Samples:
    """Return 2x3 images whose columns tell left from right."""
    x = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]).repeat(count, 1, 1, 1)
    return Samples(x, torch.arange(count) % 10)


FLIPPED = torch.tensor([[0.3, 0.2, 0.1], [0.6, 0.5, 0.4]])


def test_all_images_flipped_are_the_hand_drawn_ones() -> None:
    held = Flipped(share=1).transform(images(3), generator(0))
    assert torch.equal(held.x, FLIPPED.repeat(3, 1, 1, 1))


def test_the_share_is_met_and_labels_are_kept() -> None:
    samples = images(100)
    held = Flipped(share=0.66).transform(samples, generator(0))
    flipped = (held.x == FLIPPED).flatten(1).all(dim=1)
    kept = (held.x == samples.x).flatten(1).all(dim=1)
    assert int(flipped.sum()) == 66
    assert torch.equal(kept, ~flipped)
    assert torch.equal(held.y, samples.y)


def test_the_same_generator_draws_the_same_images() -> None:
    def drawn(seed: int) -> torch.Tensor:
        return Flipped(share=0.5).transform(images(100), generator(seed)).x

    assert torch.equal(drawn(0), drawn(0))
    assert not torch.equal(drawn(0), drawn(1))


def test_the_samples_given_stay_as_they_are() -> None:
    samples = images(10)
    Flipped(share=1).transform(samples, generator(0))
    assert torch.equal(samples.x, images(10).x)


def test_the_probe_is_every_test_image_flipped_with_its_own_label() -> None:
    probe = Flipped(share=0.5).probe(images(4))
    assert torch.equal(probe.samples.x, FLIPPED.repeat(4, 1, 1, 1))
    assert probe.samples.y.tolist() == [0, 1, 2, 3]
    assert probe.measures["flipped_accuracy"].tolist() == [True] * 4


def test_what_is_no_image_is_refused() -> None:
    flat = Samples(torch.zeros(4, 6), torch.arange(4))
    with pytest.raises(ConfigError, match="'flipped' needs images"):
        Flipped(share=0.5).transform(flat, generator(0))
    with pytest.raises(ConfigError, match="'flipped' needs images"):
        Flipped(share=0.5).probe(flat)


def test_a_share_above_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"scenario\.share is 1\.2"):
        Flipped(share=1.2)
