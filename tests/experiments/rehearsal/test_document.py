from __future__ import annotations

from pathlib import Path

import pytest

from harness import rehearsals
from harness.erasure import small
from secede.audit import Ranks, Reading
from secede.errors import ConfigError
from secede.experiments.rehearsal import (
    RULE,
    Measured,
    Rehearsal,
    Scores,
    choose,
    load_rehearsal,
    make_twin,
    save_rehearsal,
)
from secede.experiments.rehearsal.document import describe

SEEN = Reading(ranks=Ranks(((20, 0),)), wins=20, count=20)
UNSEEN = Reading(ranks=Ranks(((10, 10),)), wins=10, count=20)


def scores(canaries: Reading) -> Scores:
    return Scores(
        clean_accuracy=0.9, leaver_loss=1.0, upload_bytes=8.0, seconds=1.0, canaries=canaries
    )


def rehearsal(folder: Path, home: Path | None = None) -> Rehearsal:
    text = rehearsals.CONFIG + "[settings]\nsecond-choice = { epochs = 2 }\n"
    text = text.replace("clients", 'methods = ["second-choice"]\nclients', 1)
    twin = make_twin(
        rehearsals.config(folder, text), {}, methods=("second-choice",), max_rounds=2, home=home
    )
    measured = Measured(
        before=scores(SEEN),
        retrained=scores(UNSEEN),
        again=scores(UNSEEN),
        accuracy_spread=0.01,
        loss_spread=0.1,
        candidates={"second-choice": scores(UNSEEN)},
    )
    return describe(twin, 3, measured, choose(measured))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.make(tmp_path_factory.mktemp("home")).path


def test_a_file_is_read_as_it_was_written(tmp_path: Path, home: Path) -> None:
    for found in (rehearsal(tmp_path), rehearsal(tmp_path, home)):
        save_rehearsal(found, tmp_path / "rehearsal.json")
        read = load_rehearsal(tmp_path / "rehearsal.json")
        assert read.model_dump_json() == found.model_dump_json()
        assert read.home == found.home
    assert (found.choice, found.settings) == ("second-choice", {"epochs": 2})
    assert (found.rule, found.seeds, found.max_rounds, found.clients) == (RULE, 3, 2, 4)
    assert found.candidates["second-choice"]["verdict"] == "no trace found"
    assert found.reference["before"]["canaries"]["p_value"] == pytest.approx(2**-20)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"version": 2}'])
def test_another_file_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"other\.json is no rehearsal \(.+\): give the file"):
        load_rehearsal(path)
    with pytest.raises(ConfigError, match=r"absent\.json is no rehearsal \(No such file"):
        load_rehearsal(tmp_path / "absent.json")


def test_a_home_that_was_rehearsed_fits_and_others_do_not(
    tmp_path: Path, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rehearsal(tmp_path, home).check_fits(home, "site-0")
    found = rehearsal(tmp_path, home)
    with pytest.raises(ConfigError, match="was of 'site-0' leaving, and 'site-1' leaves"):
        found.check_fits(home, "site-1")
    other = small.make(
        tmp_path_factory.mktemp("other"), small.CONFIG.replace("rounds = 4", "rounds = 1")
    )
    with pytest.raises(ConfigError, match=r"was of model \w{12} of federation 'north', and in"):
        found.check_fits(other.path)


def test_without_a_home_the_number_of_clients_has_to_fit(tmp_path: Path, home: Path) -> None:
    found = rehearsal(tmp_path)
    with pytest.raises(ConfigError, match=r"was of 3 clients, and the model in .* carries 4"):
        found.check_fits(home)
    found.model_copy(update={"clients": 4}).check_fits(home)


def test_a_live_federation_before_its_first_erasure_says_nothing(tmp_path: Path) -> None:
    rehearsal(tmp_path).check_fits(tmp_path)
