from __future__ import annotations

import inspect
from datetime import datetime
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from secede.cli.commands.erase import EraseArguments, with_erase_options
from secede.erasure.documents.plan import Margins
from secede.erasure.planning.options import EraseOptions
from secede.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_rounds": 3, "min_rounds": 5}, "at most 3 rounds, but at least 5 after"),
        ({"max_rounds": 0}, "at most 0 rounds, but at least 1 after"),
        ({"min_distance": float("nan")}, "--min-distance nan cannot be used"),
        ({"set_": ["epochs=3"]}, "give METHOD.KEY=VALUE"),
        ({"method": ["fine-tune"]}, "method 'fine-tune' is a baseline"),
        ({"method": ["gradient-ascent"]}, "method 'gradient-ascent' is a baseline"),
        ({"method": ["second-choise"]}, "unknown method 'second-choise'; did you mean 'second-ch"),
        ({"set_": ["second-choice.epoch=3"]}, "did you mean 'epochs'"),
        ({"set_": ["a.b=3"]}, "unknown method 'a'"),
        ({"backups_until": datetime(2020, 1, 1)}, "2020-01-01 is past"),
        ({"margin": float("nan")}, "--margin nan with --class-margin 10.0 cannot be used"),
        ({"class_margin": 101.0}, "per_class"),
        ({"accept_loss": "two\nlines"}, "--accept-loss needs a reason of 1 to 250"),
    ],
)
def test_options_that_cannot_be_used_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EraseArguments(**changes).options()


def test_settings_are_read_as_toml_has_them() -> None:
    texts = ["projected-ascent.epochs=3", 'second-choice.labels="all"', "second-choice.epochs=1"]
    assert EraseArguments(set_=texts).options().settings == {
        "projected-ascent": {"epochs": 3},
        "second-choice": {"labels": "all", "epochs": 1},
    }


def test_the_defaults_are_those_of_the_library() -> None:
    assert EraseArguments().options() == EraseOptions()


def test_every_option_reaches_the_library() -> None:
    options = EraseArguments(
        min_rounds=0,
        max_rounds=7,
        aggregation="median",
        untrusted_leaver=True,
        leaver_timeout=8.0,
        wait_hours=1.0,
        client_timeout=9.0,
        quorum=0.9,
        min_distance=0.5,
        keep_unused_weights=True,
        measure_at_leaver=True,
        backups_until=datetime(2999, 1, 31),
        margin=2.5,
        class_margin=20.0,
        accept_loss="consent withdrawn",
    ).options()
    assert (options.min_rounds, options.max_rounds, options.max_server_rounds) == (0, 7, 7)
    assert (options.mean, options.untrusted_leaver) == ("median", True)
    assert (options.leaver_timeout, options.client_timeout) == (8.0, 9.0)
    assert (options.wait.total_seconds(), options.quorum) == (3600.0, 0.9)
    assert options.guard.min_distance == 0.5
    assert (options.keep_unused_weights, options.measure_at_leaver) == (True, True)
    assert options.margins == Margins(overall=0.025, per_class=0.2)
    assert options.accept_loss == "consent withdrawn"
    assert options.backups_until is not None
    assert f"{options.backups_until:%Y-%m-%d %z}" == "2999-01-31 +0000"


def test_a_command_takes_the_options_in_the_place_of_its_parameter() -> None:
    taken = list[tuple[str, EraseArguments, bool]]()

    def command(name: str, arguments: EraseArguments, last: bool = False) -> None:
        taken.append((name, arguments, last))

    wrapped = with_erase_options(command)
    names = list(inspect.signature(wrapped).parameters)
    assert (names[0], names[1], names[-1]) == ("name", "dry_run", "last")
    app = typer.Typer()
    app.command()(wrapped)
    ended = CliRunner().invoke(app, ["a", "--quorum", "0.75", "--method", "retrain", "--last"])
    assert ended.exit_code == 0, ended.output
    assert taken == [("a", EraseArguments(quorum=0.75, method=["retrain"]), True)]
    for wrong in (
        ["--aggregation", "middle"],
        ["--min-distance", "-1"],
        ["--quorum", "2"],
        ["--margin", "101"],
    ):
        assert CliRunner().invoke(app, ["a", *wrong]).exit_code == 2
