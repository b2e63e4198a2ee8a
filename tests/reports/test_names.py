import pytest

from secede.reports import names


def test_every_scenario_has_a_main_probe_with_a_label() -> None:
    assert set(names.MAIN_PROBE) == set(names.SCENARIOS)
    assert set(names.MAIN_PROBE.values()) <= set(names.SCORES)


def test_only_losses_are_no_proportions() -> None:
    odd = [score for score in names.SCORES if not names.is_proportion(score)]
    assert odd == [names.LEAVER_LOSS]


@pytest.mark.parametrize(
    ("data", "label"),
    [("mnist", "MNIST"), ("own/scans.npz", "scans.npz"), ("own\\scans.npz", "scans.npz")],
)
def test_a_data_set_is_named_for_readers(data: str, label: str) -> None:
    assert names.data_label(data) == label


def test_data_sets_come_in_the_papers_order_and_unknown_ones_last() -> None:
    found = sorted(["zebra.npz", "cifar10", "mnist", "emnist47"], key=names.data_order)
    assert found == ["mnist", "emnist47", "cifar10", "zebra.npz"]
