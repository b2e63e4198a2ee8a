"""`secede flower erase`: what it checks first, what reaches the run, and what it tells."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from harness.erasure import vectors
from secede.cli.app import app
from secede.errors import ConfigError, LossError, RolledBackError, SecedeError


def test_a_run_that_failed_by_a_roll_back_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from secede.flower.deploy import runs, server_home
    from secede.flower.deploy.scaffold import write_project

    folder = write_project(tmp_path / "p", sites=["a", "b"], port=9092).folder
    states = iter([None, SimpleNamespace(open=False)])

    def fails(*_: object, **__: object) -> str:
        raise SecedeError("run 7 ended as finished:failed")

    def rolled_back(*_: object) -> None:
        raise RolledBackError("a was not erased: rolled-back")

    monkeypatch.setattr(runs, "run", fails)
    monkeypatch.setattr(runs, "check_running", lambda _: None)
    for name in ("check_leaver", "prepare_erasure"):
        monkeypatch.setattr(server_home, name, lambda *_, **__: None)
    monkeypatch.setattr(server_home, "earlier_result", lambda *_: None)
    monkeypatch.setattr(server_home, "last_request", lambda *_: next(states, None))
    monkeypatch.setattr(server_home, "verified_result", rolled_back)
    command = ["flower", "erase", str(folder), "name:a", "--trigger", "other"]
    rolled = CliRunner().invoke(app, command)
    assert isinstance(rolled.exception, RolledBackError)
    failed = CliRunner().invoke(app, command)  # before anything was asked
    assert not isinstance(failed.exception, RolledBackError)
    assert "run 7 ended" in str(failed.exception)


def test_a_run_that_ended_without_a_decision_says_so(
    recorded_runs: tuple[str, list[dict[str, object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from secede.flower.deploy import runs, server_home

    def fails(*_: object, **__: object) -> str:
        raise SecedeError("run 7 ended as finished:failed")

    def undecided(*_: object) -> None:
        raise LossError("retraining without a lost accuracy")

    monkeypatch.setattr(runs, "run", fails)
    waits = SimpleNamespace(open=True, state="undecided")
    monkeypatch.setattr(server_home, "last_request", lambda *_: waits)
    monkeypatch.setattr(server_home, "verified_result", undecided)
    command = ["flower", "erase", recorded_runs[0], "name:a", "--trigger", "other"]
    ended = CliRunner().invoke(app, command)
    assert isinstance(ended.exception, LossError)
    failed = CliRunner().invoke(app, [*command, "--accept-loss", "objection upheld"])
    assert "run 7 ended" in str(failed.exception)  # it failed for another reason


def test_options_of_an_erasure_reach_the_run(
    recorded_runs: tuple[str, list[dict[str, object]]], tmp_path: Path
) -> None:
    from secede.erasure.planning.options import EraseOptions, options_from_json

    folder, given = recorded_runs
    options = (
        "--trigger objection --leaver-gone --method retrain --leaver-timeout 60 --min-rounds 2"
    )
    options += " --keep-unused-weights"
    more = ["--set", "retrain.x=1"]
    wrong = CliRunner().invoke(app, ["flower", "erase", folder, "name:a", *options.split(), *more])
    assert isinstance(wrong.exception, ConfigError)  # before anything runs
    assert given == []
    CliRunner().invoke(app, ["flower", "erase", folder, "name:a", *options.split()])
    (config,) = given
    assert (config["erasure.leaver"], config["erasure.trigger"]) == ("name:a", "objection")
    told = json.loads(str(config["erasure.options"]))
    assert told.keys() == {"options", "leaver_gone"}
    expected = EraseOptions(
        methods=("retrain",), leaver_timeout=60.0, min_rounds=2, keep_unused_weights=True
    )
    assert options_from_json(told["options"]) == expected
    path = tmp_path / "r.json"
    path.write_text("{}")
    no = CliRunner().invoke(app, ["flower", "erase", folder, "name:a", "--request", str(path)])
    assert isinstance(no.exception, ConfigError)
    assert "r.json is no request: give the file" in str(no.exception)
    assert len(given) == 1
    path.write_text('{"payload": "whether it holds is for the app to see"}')
    CliRunner().invoke(app, ["flower", "erase", folder, "name:a", "--request", str(path)])
    assert Path(json.loads(str(given[-1]["erasure.options"]))["request"]).is_absolute()
    CliRunner().invoke(app, ["flower", "erase", folder, "name:a", "--trigger", "other"])
    assert "erasure.options" not in given[-1]  # the app may have its own


def test_an_erasure_has_all_options_of_the_simulated_one() -> None:
    shown = CliRunner().invoke(app, ["flower", "erase", "--help"]).stdout
    simulated = CliRunner().invoke(app, ["erase", "--help"]).stdout
    wanted = {word for word in simulated.split() if word.startswith("--")} - {"--home"}
    assert len(wanted) > 12
    assert wanted <= {word for word in shown.split() if word.startswith("--")}


def test_why_a_site_leaves_must_be_said(recorded_runs: tuple[str, list[dict[str, object]]]) -> None:
    folder, given = recorded_runs
    silent = CliRunner().invoke(app, ["flower", "erase", folder, "name:a"])
    assert isinstance(silent.exception, ConfigError)
    assert "`--trigger` is required because the receipt states the reason" in str(silent.exception)
    other = CliRunner().invoke(app, ["flower", "erase", folder, "name:a", "--trigger", "boredom"])
    assert "no trigger 'boredom'" in str(other.exception)
    assert given == []


def test_a_dry_run_shows_the_plan_that_the_run_tells(
    recorded_runs: tuple[str, list[dict[str, object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from secede.erasure import Plan
    from secede.flower.deploy import runs

    example = Plan.model_validate_json(json.dumps(vectors.plan()))
    plan = example.model_copy(update={"client": "a", "federation": "north"})

    def run(_project: object, config: dict[str, str], *, show: object, **_: object) -> str:
        assert json.loads(config["erasure.options"]) == {"dry_run": True}
        assert callable(show)
        show("leaver name:a")
        show(plan.line())
        return "7"

    folder, _ = recorded_runs
    monkeypatch.setattr(runs, "run", run)
    command = ["flower", "erase", folder, "name:a", "--dry-run"]
    shown = CliRunner().invoke(app, command)
    assert "Plan: erase a from north" in shown.stdout
    assert "leaver name:a" in shown.stderr
    assert json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["client"] == "a"


def test_an_app_of_an_older_version_is_told_before_anything_runs(
    recorded_runs: tuple[str, list[dict[str, object]]],
) -> None:
    folder, given = recorded_runs
    path = Path(folder) / "app" / "pyproject.toml"
    path.write_text(path.read_text().replace(', trigger = "", options = ""', ""))
    command = ["flower", "erase", folder, "name:a", "--trigger", "other", "--leaver-gone"]
    shown = CliRunner().invoke(app, command)
    assert isinstance(shown.exception, ConfigError)
    assert "has no erasure.trigger, erasure.options" in str(shown.exception)
    assert 'erasure = { home = "home", leaver = "", trigger = "", options = "" }' in str(
        shown.exception
    )
    assert given == []


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("older", "has no erasure.trigger"),
        ("trigger", "`--trigger` is required"),
        ("request", "is no request"),
        ("down", "does not run: secede flower up"),
        ("plan", "--dry-run writes nothing"),
    ],
)
def test_a_mistake_leaves_a_training_that_was_cut_as_it_was(
    tmp_path: Path, mistake: str, words: str
) -> None:
    from harness.flower.dying import dying
    from harness.flower.small import Federation
    from secede.flower.deploy.scaffold import write_project
    from secede.flower.storage.training_state import TrainingState

    project = write_project(tmp_path / "p", sites=["a", "b"], port=9092)
    federation = Federation(project.folder)
    with pytest.raises(KeyboardInterrupt):
        federation.train(4, grid=dying(federation, 3))
    config = project.app / "pyproject.toml"
    if mistake == "older":
        config.write_text(config.read_text().replace(', trigger = "", options = ""', ""))
    before = {p: p.read_bytes() for p in project.home.rglob("*") if p.is_file()}
    cut = TrainingState(project.home).unfinished()
    assert cut is not None
    options = {"trigger": [], "request": ["--request", str(config)], "plan": ["--dry-run"]}
    more = options.get(mistake, ["--trigger", "other"])
    command = ["flower", "erase", str(project.folder), "name:site-1", "--accept-unfinished", *more]
    shown = CliRunner().invoke(app, command)
    assert isinstance(shown.exception, SecedeError)
    assert words in str(shown.exception)
    assert {p: p.read_bytes() for p in project.home.rglob("*") if p.is_file()} == before
    assert TrainingState(project.home).unfinished() == cut


def test_erasing_again_says_when_it_was_done_and_where_the_receipt_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.flower.small import Federation
    from secede.flower.deploy import runs
    from secede.flower.deploy.scaffold import write_project

    project = write_project(tmp_path / "p", sites=["a", "b"], port=9092)
    federation = Federation(project.folder)
    federation.train(2)
    monkeypatch.setattr(runs, "check_running", lambda _: None)

    def run(*_: object, **__: object) -> str:
        federation.erase("name:site-1")
        return "7"

    monkeypatch.setattr(runs, "run", run)
    command = ["flower", "erase", str(project.folder), "name:site-1"]
    first = CliRunner().invoke(app, [*command, "--trigger", "other"])
    assert first.exit_code == 0
    assert "site-1 is erased: " in first.stdout
    assert "already" not in first.output
    again = CliRunner().invoke(app, command)  # nor is a reason asked for
    assert again.exit_code == 0
    assert "site-1 was erased already, at 20" in again.stdout
    (receipt,) = (project.home / "receipts").glob("*.json")
    assert f"{receipt}  receipt, verified" in again.stdout
    assert str(receipt) in again.stderr
    assert json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["already"] is True

    def down(*_: object) -> None:
        raise SecedeError("the SuperLink does not run")

    monkeypatch.setattr(runs, "check_running", down)
    offline = CliRunner().invoke(app, [*command, "--json"])
    assert offline.exit_code == 0
    assert json.loads(offline.stdout)["run"] is None
    assert "is not asked again to delete its updates: the SuperLink does" in offline.stderr
