from __future__ import annotations

from pathlib import Path

import pytest

from secede.errors import ConfigError
from secede.experiments import config as configs
from secede.experiments.config import Config, digest, override, parse


def test_an_empty_config_is_the_papers_setting_on_embedded_data() -> None:
    config = parse("", name="x")
    assert (config.data, config.model, config.clients.count) == ("mnist-10k", "paper-cnn", 5)
    assert (config.training.learning_rate, config.training.batch_size) == (0.01, 128)
    assert (config.unlearning.batch_size, config.unlearning.epochs) == (1024, 5)
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
        ("training.learning_rate = inf", "training.learning_rate is inf, expected a finite"),
        ("training.momentum = 1.0", "training.momentum is 1.0, expected less than 1"),
        ("unlearning.radius = 'big'", "unlearning.radius is 'big', expected 'third' or a valid"),
        ("unlearning.stop = 'never'", "unlearning.stop is 'never', expected 'distance' or 'acc"),
        ("data = 'mnst'", "did you mean 'mnist'?"),
        ("model = 'paper_cnn'", "did you mean 'paper-cnn'?"),
        ("scenario.name = 'backdor'", "did you mean 'backdoor'?"),
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
