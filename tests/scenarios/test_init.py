import subprocess
import sys

import pytest
import torch

from secede.data.samples import Samples
from secede.errors import ConfigError
from secede.scenarios import SCENARIOS, create
from secede.scenarios.backdoor import Backdoor
from secede.scenarios.classes import Exclusive, WholeClass
from secede.scenarios.clean import Clean
from secede.scenarios.flipped import Flipped


def test_the_table_of_names_is_listed_without_torch() -> None:
    code = "import sys, secede.scenarios as s; assert s.SCENARIOS; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_table_tells_what_the_scenario_does(name: str) -> None:
    entry = SCENARIOS[name]
    scenario = create(name, classes=10, share=0.5 if "share" in entry.settings else None)
    probe = scenario.probe(Samples(torch.zeros(10, 1, 8, 8), torch.arange(10)))
    assert scenario.name == name
    assert scenario.main_measure == entry.measures[0]
    assert tuple(probe.measures) == entry.measures


def test_a_backdoor_aims_at_the_last_class_by_default() -> None:
    assert create("backdoor", classes=47, share=0.66) == Backdoor(share=0.66, target=46)


def test_settings_reach_the_scenario() -> None:
    assert create("backdoor", classes=10, share=0.8, target=0) == Backdoor(share=0.8, target=0)
    assert create("flipped", classes=10, share=0.8) == Flipped(share=0.8)
    assert create("clean", classes=10) == Clean()
    made = create("exclusive", classes=10, chosen=[3, 1], kept=0.05)
    assert made == Exclusive(classes=(3, 1), kept=0.05)
    assert create("class", classes=10, chosen=[3]) == WholeClass(classes=(3,))


@pytest.mark.parametrize(
    ("classes", "last"), [(10, (8, 9)), (47, tuple(range(38, 47))), (3, (2,)), (2, (1,))]
)
def test_the_leavers_classes_are_the_last_fifth_by_default(
    classes: int, last: tuple[int, ...]
) -> None:
    assert create("exclusive", classes=classes) == Exclusive(classes=last)
    assert create("class", classes=classes) == WholeClass(classes=last)


@pytest.mark.parametrize("chosen", [[10], [-1, 2], list(range(10))])
def test_classes_outside_of_the_data_sets_or_all_of_them_are_refused(chosen: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"scenario\.classes is .* from 0 to 9, and not all"):
        create("exclusive", classes=10, chosen=chosen)


def test_only_class_scenarios_take_classes_and_only_exclusive_keeps_some() -> None:
    with pytest.raises(ConfigError, match=r"scenario\.classes is \[1\], but 'clean' takes none"):
        create("clean", classes=10, chosen=[1])
    with pytest.raises(ConfigError, match=r"scenario\.kept is 0\.1, but 'class' takes none"):
        create("class", classes=10, kept=0.1)


def test_most_scenarios_leave_the_deal_and_the_held_out_samples_alone() -> None:
    parts = [torch.tensor([0, 2]), torch.tensor([1])]
    for scenario in (Clean(), Flipped(share=0.5), Backdoor(share=0.5, target=1)):
        draw = torch.Generator()
        dealt = scenario.deal(torch.arange(3), parts, 0, draw)
        assert all(a is b for a, b in zip(dealt, parts, strict=True))
        assert scenario.held_out(torch.arange(3), torch.arange(3), draw) is None


def test_an_unknown_name_is_refused_with_the_nearest_and_the_list() -> None:
    with pytest.raises(
        ConfigError, match=r"'backdor'; did you mean 'backdoor'\? expected one of .*flipped, clean"
    ):
        create("backdor", classes=10)


@pytest.mark.parametrize("target", [-1, 10])
def test_a_target_outside_of_the_classes_names_key_value_and_range(target: int) -> None:
    with pytest.raises(ConfigError, match=rf"scenario\.target is {target}, .* from 0 to 9"):
        create("backdoor", classes=10, share=0.5, target=target)


@pytest.mark.parametrize("name", ["backdoor", "flipped"])
def test_a_missing_share_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"scenario\.share is missing.*0\.66.*0\.8"):
        create(name, classes=10)


def test_a_clean_leaver_takes_no_share() -> None:
    with pytest.raises(ConfigError, match=r"scenario\.share is 0\.5, but 'clean' takes none"):
        create("clean", classes=10, share=0.5)


@pytest.mark.parametrize(("name", "share"), [("clean", None), ("flipped", 0.5)])
def test_only_a_backdoor_takes_a_target(name: str, share: float | None) -> None:
    with pytest.raises(ConfigError, match=r"scenario\.target is 0, but"):
        create(name, classes=10, share=share, target=0)
