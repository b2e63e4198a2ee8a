import pytest

from secede.reports import names


def test_every_scenario_has_a_main_probe_with_a_label() -> None:
    assert set(names.MAIN_PROBE) == set(names.SCENARIOS)
    assert set(names.MAIN_PROBE.values()) <= set(names.SCORES)


def test_only_losses_and_ranks_are_no_proportions() -> None:
    odd = [score for score in names.SCORES if not names.is_proportion(score)]
    assert odd == [names.LEAVER_LOSS, names.CANARY_RANK]


@pytest.mark.parametrize(
    ("data", "label"),
    [("mnist", "MNIST"), ("own/scans.npz", "scans.npz"), ("own\\scans.npz", "scans.npz")],
)
def test_a_data_set_is_named_for_readers(data: str, label: str) -> None:
    assert names.data_label(data) == label


def test_data_sets_come_in_the_papers_order_and_unknown_ones_last() -> None:
    found = sorted(["zebra.npz", "cifar10", "mnist", "emnist47"], key=names.data_order)
    assert found == ["mnist", "emnist47", "cifar10", "zebra.npz"]


@pytest.mark.parametrize(
    ("arm", "label"),
    [
        ("fedavg", "FedAvg"),
        ("retrain", "Retrained"),
        ("fine-tune", "Fine-tuned"),
        ("reference", "Reference"),
        (names.ERASED, "Erased"),
        ("weight-negation", "Weight negation"),
        ("own.methods:Forget", "own.methods:Forget"),
    ],
)
def test_arms_are_called_by_words(arm: str, label: str) -> None:
    assert names.label(arm) == label


def test_a_methods_needs_come_from_the_table_of_methods() -> None:
    assert names.method_needs("projected-ascent") == "the leaver online"
    assert names.method_needs("fine-tune") == "nothing"
    assert names.method_needs("own.methods:Forget") == "as its class says"


def test_a_method_is_said_in_one_line() -> None:
    line = names.method_line("projected-ascent")
    assert line.startswith("projected ascent: ascend the leaver's loss")
    assert line.endswith("(Halimi et al. 2022, Algorithm 1)")
    assert names.method_line("own.methods:Forget") == "own.methods:Forget, a method of your own"
