from __future__ import annotations

from pathlib import Path

import pytest

from secede.errors import ConfigError
from secede.experiments import config as configs
from secede.experiments.config import Config, digest, override, parse

OLD = "647ce69315e07290b2c4fedd1535c3f3db4563df783f87eebbda379c0bc179b3"


def test_an_empty_config_is_the_papers_setting_on_embedded_data() -> None:
    config = parse("", name="x")
    assert (config.data, config.model, config.clients.count) == ("mnist-10k", "paper-cnn", 5)
    assert (config.training.learning_rate, config.training.batch_size) == (0.01, 128)
    assert config.methods == ("second-choice", "projected-ascent", "fine-tune")
    assert config.share == 0.66


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("training.round = 3", "unknown key 'training.round': did you mean 'rounds'?"),
        ("nonsense = 1", "unknown key 'nonsense': allowed here: name, title, data"),
        ("clients.leaver = 7", "clients.leaver is 7, expected 0 to 4"),
        ("clients.leaver = -1", "clients.leaver is -1, expected greater than or equal to 0"),
        ("clients.count = 1", "clients.count is 1, expected greater than or equal to 2"),
        ("scenario.share = 1.5", "scenario.share is 1.5, expected less than or equal to 1"),
        ("scenario.share = 0", "scenario.share is 0, expected greater than 0"),
        ("training.epochs = -2", "training.epochs is -2, expected greater than or equal to 1"),
        ("training.rounds = 'many'", "training.rounds is 'many', expected a valid integer"),
        ("training.rounds = '3'", "training.rounds is '3', expected a valid integer"),
        ("situation.history = 'no'", "situation.history is 'no', expected a valid boolean"),
        ("clients.count = true", "clients.count is True, expected a valid integer"),
        ("training.learning_rate = inf", "training.learning_rate is inf, expected a finite"),
        ("training.momentum = 1.0", "training.momentum is 1.0, expected less than 1"),
        ("settings.second-choice = 3", "settings.second-choice is 3, expected a table"),
        ("methods = []", "methods is [], expected at least 1 in it"),
        ("data = 1979-05-27", "1979-05-27 is a date, expected text, a number, true, false"),
        (
            "settings.projected-ascnt.clip = 1",
            "settings.projected-ascnt: did you mean 'projected-a",
        ),
        (
            'methods = ["reference@x"]\nsettings."reference@x" = {}',
            "has no settings of its own and",
        ),
        ("methods = ['fine-tun']", "did you mean 'fine-tune'?"),
        ("methods = ['retrain']", "'retrain' is always run"),
        ("methods = ['reference', 'reference']", "'reference' is named twice"),
        (
            "methods = ['reference@x']",
            "'reference@x' has no settings of its own and would run as 'ref",
        ),
        (
            "methods = ['reference@every']\nsettings.\"reference@evry\" = {}",
            "would run as 'reference'; did you mean 'reference@evry'? give some",
        ),
        ("situation.leaver_online = false", "needs the leaver online, which this federation does"),
        ("settings.federaser.interval = 2", "settings.federaser: that method is not run here"),
        ("situation.server_data = -1", "situation.server_data is -1, expected greater than"),
        ("data = 'mnst'", "did you mean 'mnist'?"),
        ("model = 'paper_cnn'", "did you mean 'paper-cnn'?"),
        ("scenario.name = 'backdor'", "did you mean 'backdoor'?"),
        ("scenario.classes = [1]", "scenario.classes is (1,), but 'backdoor' takes none"),
        ("scenario = {name = 'class', kept = 0.1}", "scenario.kept is 0.1, but 'class' takes none"),
        ("scenario = {name = 'class', share = 0.1}", "scenario.share is 0.1, but 'class' takes"),
        ("scenario = {name = 'class', classes = []}", "scenario.classes is [], expected"),
        ("scenario = {name = 'class', classes = [-1]}", "scenario.classes.0 is -1, expected"),
        ("scenario = {name = 'class', classes = [1, 1]}", "[1, 1], expected each class once"),
        ("scenario = {name = 'exclusive', kept = 1.0}", "scenario.kept is 1.0, expected less than"),
        ("clients.partition = 'sizes'", "clients.sizes is missing"),
        ("clients.alpha = 0.5", "only partition 'dirichlet' takes it"),
        ("clients.partition='sizes'\nclients.sizes=[3,4]", "clients.sizes has 2 entries, expected"),
        ("name = '$(rm)'", "name is '$(rm)', expected"),
        ("clients = 3", "clients is 3, expected"),
        ("= broken", "not valid TOML"),
    ],
)
def test_bad_configs_name_the_key_the_value_and_what_is_allowed(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, name="x")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_methods_can_be_chosen_and_take_their_settings_with_them() -> None:
    text = "methods = ['projected-ascent', 'reference']\nsettings.projected-ascent.epochs = 3"
    config = parse(text, name="x")
    assert override(config, {"methods": ["reference"]}).settings == {}
    assert override(config, {"methods": ["projected-ascent"]}).settings == config.settings
    every = override(config, {"methods": ["all"]}).methods
    assert "projected-ascent" in every
    assert "retrain" not in every
    assert "federaser" not in every  # needs a history


def test_a_refused_method_names_those_that_would_work_and_what_to_try_first() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("situation.leaver_online = false", name="x")
    assert str(caught.value) == (
        "method 'second-choice' needs the leaver online, which this federation does not have "
        "(situation.leaver_online in a config); methods that work here, best first: "
        "weight-negation, rapid-retrain; baselines: retrain, which is always run, fine-tune"
    )
    with pytest.raises(ConfigError, match="best first: distillation, federaser, weight-negation, "):
        parse("situation = {leaver_online = false, history = true, server_data = 9}", name="x")
    best_first = r"best first: federaser, .*rapid-retrain, distillation; "
    with pytest.raises(ConfigError, match=best_first):
        parse(
            "situation = {leaver_online = false, history = true, server_data = 9}\n"
            "scenario.name = 'exclusive'",
            name="x",
        )
    with pytest.raises(
        ConfigError, match=r"scenarios class and exclusive only, not in backdoor \(scenario"
    ):
        parse("methods = ['class-pruning']", name="x")


def test_overrides_are_checked_like_everything_else() -> None:
    config = parse("", name="x")
    assert override(config, {"training.rounds": 3, "limit": None}).training.rounds == 3
    with pytest.raises(ConfigError, match=r"training\.rounds is 0"):
        override(config, {"training.rounds": 0})


def test_the_digest_tells_experiments_apart_and_ignores_the_title() -> None:
    base = parse("", name="x")
    assert digest(base, {}) == digest(override(base, {"title": "other"}), {})
    others: list[Config] = [
        override(base, {"training.rounds": 21}),
        override(base, {"limit": 100}),
        override(base, {"device": "cpu"}),
    ]
    assert len({digest(c, {}) for c in (base, *others)}) == 4
    assert digest(base, {}) != digest(base, {"model": "abc"})


def test_a_run_that_does_not_retrain_again_is_the_experiment_that_it_was() -> None:
    # As `digest` gave it before the key was there.
    old = override(parse("", name="x"), {"training.retrain_again": False})
    assert digest(old, {}) == OLD
    assert "retrain_again" not in old.resolved()["training"]
    new = parse("", name="x")
    assert digest(new, {}) != OLD
    assert new.resolved()["training"]["retrain_again"] is True


def test_the_same_data_file_elsewhere_is_the_same_experiment() -> None:
    a, b = (parse(f"data = '{folder}/scans.npz'", name="x") for folder in ("/here", "/there"))
    assert digest(a, {"data": "1"}) == digest(b, {"data": "1"})
    assert digest(a, {"data": "1"}) != digest(a, {"data": "2"})


def test_a_relative_data_file_is_found_beside_the_config() -> None:
    config = configs.resolve_data_path(parse("data = 'scans.npz'", name="x"), Path("/some/place"))
    assert config.data == "/some/place/scans.npz"


def test_the_share_is_the_papers_unless_given() -> None:
    assert parse("clients.count = 10", name="x").share == 0.80
    assert parse("scenario.share = 0.3", name="x").share == 0.3
    assert parse("scenario.name = 'clean'", name="x").share is None


def test_the_leavers_classes_are_part_of_the_experiment() -> None:
    text = "scenario = {name = 'exclusive', classes = [1, 2], kept = 0.05}"
    config = parse(text, name="x")
    assert (config.scenario.classes, config.scenario.kept, config.share) == ((1, 2), 0.05, None)
    assert digest(config, {}) != digest(override(config, {"scenario.classes": [1]}), {})
