from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness import rehearsals
from harness.erasure import small
from secede.erasure import Home
from secede.errors import ConfigError
from secede.experiments.rehearsal.twin import CANARIES, Twin, make_twin, serving_model

BARE = rehearsals.CONFIG.replace("canaries = { count = 20, copies = 4, max_share = 0.5 }\n", "")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.make(tmp_path_factory.mktemp("home")).path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def twin_of(folder: Path, home: Path, text: str = rehearsals.CONFIG, **options: Any) -> Twin:
    config = rehearsals.config(folder, text)
    return make_twin(config, {}, max_rounds=2, home=home, **options)


def test_all_methods_that_erase_and_can_work_are_candidates(folder: Path) -> None:
    named = rehearsals.twin(folder, methods=()).config.methods
    assert "second-choice" in named
    assert "weight-negation" in named
    for other in ("retrain", "fine-tune", "reference", "federaser", "class-pruning"):
        assert other not in named
    gone = rehearsals.CONFIG + "situation.leaver_online = false\n"
    assert rehearsals.twin(folder, gone, ()).config.methods == ("weight-negation", "rapid-retrain")


def test_canaries_are_the_configs_or_the_default(folder: Path) -> None:
    assert rehearsals.twin(folder).config.canaries.count == 20
    planted = rehearsals.twin(folder, BARE).config.canaries
    assert (
        planted.model_dump(include=set(CANARIES))
        == CANARIES
        == {
            "count": 16,
            "copies": 4,
            "max_share": 0.05,
        }
    )


def test_a_home_gives_clients_sizes_and_rounds(folder: Path, home: Path) -> None:
    twin = twin_of(folder, home, client="site-2")
    scopes = json.loads((home / "federation.json").read_text())["clients"]
    clients = twin.config.clients
    assert clients.sizes == tuple(each["scope"]["commitment"]["samples"] for each in scopes)
    assert (clients.count, clients.leaver, twin.config.training.rounds) == (4, 2, 4)
    assert twin.home is not None
    assert twin.home.clients == ("site-0", "site-1", "site-2", "site-3")
    assert (twin.home.leaver, twin.home.model) == ("site-2", serving_model(home).model)


def test_without_pinned_samples_sizes_follow_the_weights(
    folder: Path, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copied = small.copy(Home(home), tmp_path_factory.mktemp("copied") / "home")
    path = copied.path / "federation.json"
    record = json.loads(path.read_text())
    for client, weight in zip(record["clients"], (0.1, 0.2, 0.3, 0.4), strict=True):
        client["scope"] |= {"commitment": None, "weight": weight}
    path.write_text(json.dumps(record))
    assert twin_of(folder, copied.path).config.clients.sizes == (60, 120, 180, 240)


def test_a_method_that_retrains_takes_the_rounds_of_the_training(folder: Path) -> None:
    twin = rehearsals.twin(folder, methods=("rapid-retrain", "second-choice"))
    assert (twin.rounds_of("rapid-retrain"), twin.rounds_of("second-choice")) == (8, 2)
    assert twin.config.post_training.rounds == 8


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (("second-choise",), "did you mean 'second-choice'"),
        (("fine-tune",), "is a baseline for `secede run` and does not erase"),
        (("retrain",), "'retrain' is always run"),
        (("second-choice@free",), "is a variant"),
        (("federaser",), "needs stored history"),
    ],
)
def test_candidates_that_cannot_be_rehearsed_are_named(
    methods: tuple[str, ...], words: str, folder: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        rehearsals.twin(folder, methods=methods)


def test_homes_and_clients_that_do_not_fit_are_named(folder: Path, home: Path) -> None:
    with pytest.raises(ConfigError, match="--client site-1 needs --home"):
        make_twin(rehearsals.config(folder), {}, max_rounds=2, client="site-1")
    with pytest.raises(ConfigError, match=r"--client site-9 .* carries: .*expected one of site-0"):
        twin_of(folder, home, client="site-9")
    with pytest.raises(ConfigError, match="is no federation's home"):
        twin_of(folder, folder)
    many = rehearsals.CONFIG.replace("count = 3", "count = 9\nclients.leaver = 8")
    with pytest.raises(ConfigError, match=r"clients\.leaver is 8, and the model in .* carries 4"):
        twin_of(folder, home, many)
    with pytest.raises(ConfigError, match=r"needs canaries: .*raise canaries\.max_share"):
        twin_of(folder, home, BARE)


def test_overrides_replace_the_configs_keys(folder: Path) -> None:
    config = rehearsals.config(folder)
    twin = make_twin(config, {"limit": 300, "device": None}, max_rounds=1)
    assert (twin.config.limit, twin.config.device) == (300, "cpu")
