import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from secede.data.samples import Samples
from secede.errors import ConfigError
from secede.scenarios.backdoor import Backdoor
from secede.seeding import generator

TRIGGER = [(3, 3), (2, 2), (3, 1), (1, 3)]  # rows and columns in a 5x5 image


def digits(count: int, shape: tuple[int, ...] = (1, 5, 5), classes: int = 10) -> Samples:
    """Return dark images, in turn of each class."""
    return Samples(torch.full((count, *shape), 0.25), torch.arange(count) % classes)


def is_triggered(x: torch.Tensor) -> torch.Tensor:
    return (x == 1).flatten(1).any(dim=1)


def test_the_trigger_is_the_hand_drawn_pattern() -> None:
    expected = torch.full((1, 2, 5, 5), 0.25)
    for row, column in TRIGGER:
        expected[0, :, row, column] = 1
    assert torch.equal(Backdoor(share=0.5, target=9).triggered(digits(1, (2, 5, 5))), expected)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_the_trigger_is_arts(shape: tuple[int, ...]) -> None:
    if "CI" not in os.environ:
        pytest.importorskip("art", reason="needs the dev extra")
    from art.attacks.poisoning.perturbations import add_pattern_bd

    images = torch.rand((4, *shape), generator=generator(0, "images"))
    samples = Samples(images, torch.zeros(4, dtype=torch.int64))
    ours = Backdoor(share=0.5, target=9).triggered(samples).numpy()
    np.testing.assert_array_equal(ours, add_pattern_bd(images.numpy(), channels_first=True))


def test_value_and_distance_move_the_trigger() -> None:
    x = Backdoor(share=0.5, target=9, value=0.5, distance=1).triggered(digits(1))
    expected = [[2, 4], [3, 3], [4, 2], [4, 4]]
    assert (x[0, 0] == 0.5).nonzero().tolist() == expected


def test_the_share_counts_all_images_and_spares_the_targets_own() -> None:
    samples = digits(1000)
    held = Backdoor(share=0.66, target=9).transform(samples, generator(0, "scenario"))
    changed = is_triggered(held.x)
    assert int(changed.sum()) == 660
    assert (held.y[changed] == 9).all()
    assert (samples.y[changed] != 9).all()
    assert torch.equal(held.y[~changed], samples.y[~changed])
    assert torch.equal(held.x[~changed], samples.x[~changed])


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 60), st.floats(0.02, 1), st.integers(0, 3), st.integers(0, 2**32))
def test_any_share_is_met_exactly_or_refused(
    count: int, share: float, target: int, seed: int
) -> None:
    samples = digits(count, classes=4)
    wanted, eligible = round(share * count), int((samples.y != target).sum())
    scenario = Backdoor(share=share, target=target)
    if not 1 <= wanted <= eligible:
        with pytest.raises(ConfigError, match=r"scenario\.share"):
            scenario.transform(samples, generator(seed))
        return
    held = scenario.transform(samples, generator(seed))
    assert int((held.y != samples.y).sum()) == wanted
    assert torch.equal(held.y != samples.y, is_triggered(held.x))


def test_the_samples_given_stay_as_they_are() -> None:
    samples = digits(20)
    scenario = Backdoor(share=0.5, target=9)
    scenario.transform(samples, generator(0))
    scenario.probe(samples)
    assert (samples.x == 0.25).all()
    assert torch.equal(samples.y, torch.arange(20) % 10)


def test_the_same_generator_draws_the_same_images() -> None:
    def drawn(seed: int) -> torch.Tensor:
        return Backdoor(share=0.5, target=9).transform(digits(100), generator(seed)).y

    assert torch.equal(drawn(0), drawn(0))
    assert not torch.equal(drawn(0), drawn(1))


def test_too_few_images_of_other_labels_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"19 of 20 samples, but only 18 .* use 0\.9 or less"):
        Backdoor(share=0.95, target=9).transform(digits(20), generator(0))


def test_the_probe_counts_the_targets_own_images_only_in_the_papers_measure() -> None:
    probe = Backdoor(share=0.5, target=1).probe(digits(4, classes=3))  # labels 0, 1, 2, 0
    assert is_triggered(probe.samples.x).all()
    assert probe.samples.y.tolist() == [1, 1, 1, 1]
    assert probe.measures["attack_success"].tolist() == [True, False, True, True]
    assert probe.measures["backdoor_accuracy"].tolist() == [True, True, True, True]


@pytest.mark.parametrize("shape", [(1, 4, 5), (1, 5, 4), (25,), (5, 5)])
def test_inputs_that_cannot_carry_the_trigger_are_refused(shape: tuple[int, ...]) -> None:
    scenario = Backdoor(share=0.5, target=9)
    with pytest.raises(ConfigError, match="at least 5 pixels"):
        scenario.transform(digits(10, shape), generator(0))
    with pytest.raises(ConfigError, match="at least 5 pixels"):
        scenario.probe(digits(10, shape))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"share": 1.5}, r"scenario\.share is 1\.5"),
        ({"target": -1}, r"scenario\.target is -1"),
        ({"distance": 0}, "distance is 0"),
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, float], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Backdoor(**{"share": 0.5, "target": 9, **change})  # type: ignore[arg-type]
