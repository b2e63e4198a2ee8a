"""Canaries from the command line; their sources are in `cli/canary_source.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from harness.erasure import small
from secede.audit import rank_test_power, smallest_effect
from secede.cli.app import app
from secede.erasure.documents.canary_reading import SignedReading
from secede.erasure.documents.signed_reading import check_reading
from secede.erasure.signing.keys import load_public_key
from secede.erasure.storage.home import Home
from secede.errors import SecedeError

CONFIG = small.CONFIG + "canaries = { count = 7, copies = 3, max_share = 0.5 }\n"
NETWORK = "harness.erasure.small:build"


def call(*arguments: object) -> Result:
    """Run `secede canaries ...`; an error keeps its type."""
    return CliRunner().invoke(app, ["canaries", *map(str, arguments)])


def told(*arguments: object) -> dict[str, Any]:
    result = call(*arguments, "--json")
    if result.exception is not None:
        raise result.exception
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def refused(*arguments: object) -> SecedeError:
    error = call(*arguments).exception
    assert isinstance(error, SecedeError)
    assert "\n" not in str(error)
    return error


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return small.make(tmp_path_factory.mktemp("canaries"), CONFIG)


@pytest.fixture(scope="module")
def model(home: Home) -> Path:
    return home.model_path(small.serving(home))


@pytest.fixture
def exported(home: Home, tmp_path: Path) -> Path:
    """The secret of site-0 and its commitment beside it."""
    path = tmp_path / "site-0.canaries"
    told("export", "--home", home.path, "--client", "site-0", "--out", path)
    return path


def committed(path: Path) -> tuple[object, ...]:
    return ("--commitment", path.with_suffix(".commitment.json"))


def test_power_is_that_of_the_rank_test() -> None:
    row = told("power", "--canaries", 12, "--candidates", 4, "--win-rate", 0.8, "--level", 0.05)
    assert row["smallest_win_rate"] == smallest_effect(12, 4, level=0.05)
    (only,) = row["rows"]
    assert only["power"] == rank_test_power(12, 4, 0.8, level=0.05)
    assert rank_test_power(only["canaries_for_90"], 4, 0.8, level=0.05) >= 0.9


def test_without_a_win_rate_power_says_whose_was_measured_and_that_it_may_differ() -> None:
    shown = call("power", "--copies", 5).stdout
    assert "mlp, 3 copies: win rate" in shown
    assert "small-cnn, 3 copies: win rate" in shown
    assert "measured on embedded MNIST" in shown
    assert "yours may differ" in shown.replace("\n", " ")


def test_power_that_cannot_be_had_is_one_line(home: Home) -> None:
    assert "cannot have a power" in str(refused("power", "--canaries", 1, "--candidates", 2))
    assert refused("power", "--win-rate", 1.5).exit_code == 2
    shown = told("power", "--win-rate", 0.5)
    assert shown["rows"][0]["canaries_for_90"] is None


def test_home_and_client_are_enough_in_a_simulation(home: Home, model: Path) -> None:
    serving = told("read", "--home", home.path, "--client", "site-0")
    assert serving["canaries"] == 7
    assert serving["model"]["model"] == model.stem
    assert serving["judgement"] is None
    both = told("read", "--home", home.path, "--client", "site-0", "--before", model)
    assert both["before"] == both["model"]
    assert both["judgement"]["verdict"] in ("trace found", "undetermined")
    shown = call("read", "--home", home.path, "--client", "site-0").stdout
    assert "7 canaries of site-0, those committed to: root" in shown
    assert "No verdict without the model from before" in shown
    assert "give --client" in str(refused("read", "--home", home.path))


def test_the_opened_secret_reads_as_the_home_does(
    home: Home, model: Path, exported: Path, tmp_path: Path
) -> None:
    assert exported.stat().st_mode & 0o777 == 0o600
    secret = ("read", model, "--network", NETWORK, "--secret", exported)
    there = told(*secret, *committed(exported))
    assert there["model"] == told("read", "--home", home.path, "--client", "site-0")["model"]
    assert told(*secret, "--root", there["root"])["model"] == there["model"]
    other = refused(*secret, "--root", "0" * 64)
    assert other.exit_code == 8
    assert "not the canaries that were committed to" in str(other)
    assert "canaries that nobody committed to show nothing" in str(refused(*secret))
    assert "expected 64 hexadecimal digits" in str(refused(*secret, "--root", "abc"))
    who = refused(*secret, *committed(exported), "--client", "site-1")
    assert "is about client 'site-0', expected 'site-1'" in str(who)
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    assert refused(*secret, "--commitment", broken).exit_code == 8


def test_what_does_not_fit_together_is_one_line(home: Home, model: Path, exported: Path) -> None:
    known = committed(exported)
    assert "give --network" in str(refused("read", model, "--secret", exported, *known))
    neither = refused("read", model, "--network", NETWORK, *known)
    assert "give --secret or --sealed" in str(neither)
    wrong = refused("read", model, "--network", "mlp", "--secret", exported, *known)
    assert wrong.exit_code == 4
    assert "is it another network" in str(wrong)
    again = ("export", "--home", home.path, "--client", "site-0", "--out", exported)
    assert "exists and is not replaced" in str(refused(*again))
    no_model = ("read", "--network", NETWORK, "--secret", exported, *known)
    assert "give the model's safetensors file" in str(refused(*no_model))


def test_what_is_sealed_opens_for_its_auditor_federation_and_client_alone(
    home: Home, model: Path, exported: Path, tmp_path: Path
) -> None:
    keys = [told("keygen", name, "--folder", tmp_path) for name in ("auditor", "other")]
    assert Path(keys[0]["private"]).stat().st_mode & 0o777 == 0o600
    assert "exists and is not replaced" in str(refused("keygen", "auditor", "--folder", tmp_path))
    sealed = tmp_path / "site-0.sealed"
    client, public = ("--client", "site-0"), ("--for", keys[0]["public"])
    told("export", "--home", home.path, *client, *public, "--out", sealed)
    root = told("read", "--home", home.path, *client)["root"]
    reading = ("read", model, "--network", NETWORK, "--sealed", sealed, "--root", root)
    about = (*client, "--federation", small.NAME)
    opened = told(*reading, *about, "--key", keys[0]["private"])
    assert opened["model"] == told("read", "--home", home.path, *client)["model"]
    assert refused(*reading, *about, "--key", keys[1]["private"]).exit_code == 8
    elsewhere = (*client, "--federation", "south", "--key", keys[0]["private"])
    assert refused(*reading, *elsewhere).exit_code == 8
    assert "bound to both" in str(refused(*reading, "--key", keys[0]["private"]))
    assert "give --key" in str(refused(*reading, *about))
    own = ("export", "--secret", exported, *about, *public, "--out", tmp_path / "own.sealed")
    assert told(*own)["root"] == root


def test_a_signed_reading_is_the_clients(home: Home, model: Path, tmp_path: Path) -> None:
    out, key = tmp_path / "reading.json", home.path / "sites" / "site-0.key"
    signing = ("read", "--home", home.path, "--client", "site-0", "--sign", key, "--out", out)
    told(*signing, "--request", "1" * 64)
    signed = SignedReading.model_validate_json(out.read_bytes())
    check_reading(signed, load_public_key(home.keys / "site-0.pub"))
    assert (signed.reading.client, signed.reading.model) == ("site-0", model.stem)
    assert "--sign needs --request" in str(refused(*signing))


def test_after_an_erasure_the_receipt_names_commitment_models_and_counts(
    home: Home, tmp_path: Path
) -> None:
    own = small.copy(home, tmp_path / "home")
    old = tmp_path / "old.safetensors"
    old.write_bytes(own.model_path(small.serving(own)).read_bytes())
    outcome = small.erase(own, small.receive(own).id)
    assert outcome.receipt is not None
    assert outcome.model is not None
    secret = tmp_path / "site-0.canaries"
    told("export", "--home", own.path, "--client", "site-0", "--out", secret)
    read = told(
        *("read", own.model_path(outcome.model), "--before", old, "--network", NETWORK),
        *("--secret", secret, "--receipt", outcome.receipt, "--keys", own.keys),
    )
    receipt = small.told(own)
    assert (read["client"], read["federation"]) == ("site-0", small.NAME)
    assert read["model"]["of_receipt"] == "after"
    assert read["before"]["of_receipt"] == "before"
    assert read["before"]["as_stated"] is True
    assert read["root"] == receipt["scope"]["canaries"]["commitment"]["root"]
    if receipt["verification"]["forgotten"] != "by-construction":
        assert read["model"]["as_stated"] is True


def test_a_client_without_canaries_has_nothing_to_read(founded: Home) -> None:
    error = refused("read", "--home", founded.path, "--client", "site-0")
    assert "'site-0' planted no canaries" in str(error)
