from __future__ import annotations

from pathlib import Path

import pytest

from secede.canaries import CanaryOptions
from secede.errors import ConfigError
from secede.experiments import presets
from secede.unlearning.registry import METHODS, base_name


@pytest.mark.parametrize("name", presets.NAMES)
def test_every_preset_is_a_valid_config_and_named_after_itself(name: str) -> None:
    config = presets.load(name)
    assert config.name == name
    assert config.title


def test_the_demo_plants_canaries_and_the_papers_cells_do_not() -> None:
    assert presets.load("demo").canaries.options() == CanaryOptions(
        count=16, copies=4, max_share=0.04
    )
    assert not any(presets.load(f"paper/{name}").canaries.options() for name in presets.PAPER)


@pytest.mark.parametrize("name", presets.PAPER)
def test_the_papers_cells_say_what_their_name_says(name: str) -> None:
    data, scenario, clients = name.split("-")
    config = presets.load(f"paper/{name}")
    assert (config.data, config.scenario.name) == (data, scenario)
    assert config.clients.count == int(clients)
    assert config.share == {5: 0.66, 10: 0.80}[int(clients)]
    assert config.model == "paper-cnn"


def test_every_cell_of_the_paper_is_there() -> None:
    assert len(presets.PAPER) == 10


def test_unknown_presets_and_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no preset 'foo'; expected a path ending in"):
        presets.load("foo")
    with pytest.raises(ConfigError, match="did you mean 'paper/mnist-backdoor-5'") as told:
        presets.load("paper/mnist-backdor-5")
    assert len(str(told.value)) < 300  # not every name there is
    with pytest.raises(ConfigError, match="cannot be read"):
        presets.load(str(tmp_path / "absent.toml"))
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        presets.load(str(binary))


def test_a_users_file_takes_its_name_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('data = "scans.npz"\n')
    config = presets.load(str(tmp_path / "mine.toml"))
    assert config.name == "mine"
    assert config.data == str(tmp_path.resolve() / "scans.npz")


@pytest.mark.parametrize("cell", presets.PAPER)
def test_a_suite_changes_the_methods_of_a_cell_and_nothing_else(cell: str) -> None:
    paper, compared = presets.load(f"paper/{cell}"), presets.load(f"compare/{cell}")
    assert paper.methods == ("projected-ascent", "fine-tune", "reference")
    assert compared.methods[0] == "second-choice"
    changed = {"name", "methods", "settings"}
    assert paper.model_dump(exclude=changed) == compared.model_dump(exclude=changed)


def test_suites_joined_by_a_plus_train_a_cell_once_for_all_their_methods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("natural", "ablation")
    one, two = (presets.load(f"{suite}/mnist-backdoor-half") for suite in names)
    both = presets.load("natural+ablation/mnist-backdoor-half")
    assert both.methods == (*one.methods, *two.methods)
    assert both.settings == {**one.settings, **two.settings}
    changed = {"name", "methods", "settings"}
    assert both.model_dump(exclude=changed) == one.model_dump(exclude=changed)
    assert presets.load("natural+natural/mnist-backdoor-half").methods == one.methods
    assert presets.cells("natural+ablation") == presets.UNEVEN
    monkeypatch.setattr(presets, "_read", lambda name: f'settings.x = {{ of = "{name}" }}')
    with pytest.raises(ConfigError, match="the suite ablation has another x: run it by itself"):
        presets.load("natural+ablation/mnist-backdoor-half")
    with pytest.raises(ConfigError, match="no cell is in all of the suites paper, natural"):
        presets.cells("paper+natural")
    with pytest.raises(ConfigError, match="no suite 'foo'; expected one of: paper, compare"):
        presets.cells("paper+foo")
    with pytest.raises(ConfigError, match="no preset 'paper\\+foo/mnist-backdoor-5'"):
        presets.load("paper+foo/mnist-backdoor-5")


def test_every_method_is_in_a_suite_over_the_papers_cells() -> None:
    run = {
        base_name(method)
        for suite in ("paper", "compare", "history", "regimes")
        for method in presets.load(f"{suite}/mnist-backdoor-5").methods
    }
    # Class pruning erases classes; none of the paper's leavers has any of its own.
    assert run == METHODS.keys() - {"retrain", "class-pruning"}


@pytest.mark.parametrize("cell", ["mnist-exclusive-5", "mnist-nearly-5"])
def test_every_method_but_class_pruning_meets_a_leaver_with_classes_of_its_own(cell: str) -> None:
    run = {
        base_name(method)
        for suite in ("natural", "history", "regimes")
        for method in presets.load(f"{suite}/{cell}").methods
    }
    assert run == METHODS.keys() - {"retrain", "class-pruning"}  # which `--method` adds


def test_ablations_are_ours_without_one_part_each() -> None:
    for cell in (*presets.PAPER, *presets.UNEVEN):
        config = presets.load(f"ablation/{cell}")
        assert {base_name(method) for method in config.methods} == {"second-choice"}
        assert set(config.settings) == set(config.methods)
        assert [len(config.settings[method]) for method in config.methods] == [1, 1, 1, 1, 2, 1, 1]
    assert all(("half" in c) or ("small" in c) or ("skewed" in c) for c in presets.UNEVEN)


def test_natural_leavers_meet_the_methods_that_are_compared_and_the_teacher_with_our_hold() -> None:
    compared = presets.load("compare/mnist-backdoor-5")
    held = "virtual-teacher@held"
    settings = presets.load("controls/mnist-backdoor-5").settings[held]
    for cell in presets.NATURAL:
        config = presets.load(f"natural/{cell}")
        assert {*config.methods} == {*compared.methods, held}
        assert config.settings == {**compared.settings, held: settings}
