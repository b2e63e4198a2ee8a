"""Tests `erasure/documents/plan.py` and `erasure/planning/plan_table.py` too."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.erasure import small
from harness.erasure.small import CONFIG, NOW
from secede import state as states
from secede.erasure.canonical_json import digest, to_canonical
from secede.erasure.documents.plan import GuardLimits, Plan
from secede.erasure.documents.request import unverified_request
from secede.erasure.planning.options import EraseOptions, method_of, parameters
from secede.erasure.planning.plan_table import MEAN_LIMITS, plan_table, plan_text
from secede.erasure.planning.planner import rung_of
from secede.erasure.storage.home import Home
from secede.erasure.workflow import erase
from secede.errors import ConfigError, RecordError
from secede.federation.robust import MEANS
from secede.simulation.backend import SimulatedBackend
from secede.unlearning.registry import METHODS, create


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return small.make(tmp_path_factory.mktemp("planned"))


def plan(home: Home, *, gone: bool = False, **options: object) -> Plan:
    request = unverified_request(small.ask(home))
    ground = SimulatedBackend(home, gone=["site-0"] if gone else [])
    return erase.plan(home, ground, request, options=EraseOptions(**options), now=NOW)  # type: ignore[arg-type]


def test_the_ladder_is_local_step_server_side_retraining(home: Home) -> None:
    found = plan(home)
    assert [(s.rung, s.method) for s in found.ladder] == [
        ("local-step", "second-choice"),
        ("server-side", "weight-negation"),
        ("retraining", "retrain"),
    ]
    assert found.omitted == ()
    assert found.retained == ("site-1", "site-2", "site-3")
    assert found.ladder[0].needs == ("the leaver online",)
    assert [s.min_rounds for s in found.ladder] == [1, 0, 4]
    assert [s.min_rounds for s in plan(home, min_rounds=0).ladder] == [0, 0, 4]
    assert (found.quorum, found.client_timeout, found.guard) == (0.5, 3600, GuardLimits())
    assert found.ladder[2].max_rounds == 4


def test_bytes_are_predicted_by_hand_arithmetic(home: Home) -> None:
    size = 4 * (64 * 3 + 3)
    counts = 2 * 8 * 3
    assert states.size_bytes(states.load(home.model_path(small.serving(home)))[0]) == size
    local, negation, retrain = plan(home, max_rounds=2, measure_at_leaver=False).ladder
    # One exchange with the leaver and two rounds of three; counted before, and after 0, 1, 2
    # rounds with the changes, by three clients.
    assert local.upload_bytes == (1 + 2 * 3) * size + (1 + 3 * 2) * 3 * counts
    assert local.download_bytes == (1 + 2 * 3 + 4 * 3) * size
    assert negation.upload_bytes == 10 * 3 * size + (1 + 11 * 2) * 3 * counts
    assert retrain.download_bytes == (4 * 3 + 2 * 3) * size
    # And twice by the leaver, unless it is not asked to.
    measured = plan(home, max_rounds=2).ladder[0]
    assert measured.upload_bytes == local.upload_bytes + 2 * counts
    assert measured.download_bytes == local.download_bytes + 2 * size


def test_what_is_not_possible_is_left_out_and_said(home: Home) -> None:
    gone = plan(home, gone=True)
    assert [s.rung for s in gone.ladder] == ["server-side", "retraining"]
    assert gone.omitted[0].reason == ("second-choice needs the leaver online, which is not there")
    distrusted = plan(home, untrusted_leaver=True)
    assert [s.rung for s in distrusted.ladder] == ["server-side", "retraining"]
    with pytest.raises(
        ConfigError, match=r"'projected-ascent' needs the leaver online.*methods that work here"
    ):
        plan(home, gone=True, methods=("projected-ascent",))
    # What is there to compare with erases nobody, and retraining is a rung here.
    with pytest.raises(ConfigError, match=r"needs stored history.* rapid-retrain, retrain, [^;]*$"):
        plan(home, methods=("federaser",))


def test_methods_take_their_rungs_with_every_parameter(home: Home) -> None:
    settings = {"projected-ascent": {"epochs": 2, "stop_distance": 1.0}}
    found = plan(home, methods=("projected-ascent", "rapid-retrain"), settings=settings)
    assert [s.method for s in found.ladder] == [
        "projected-ascent",
        "weight-negation",
        "rapid-retrain",
    ]
    step = found.ladder[0]
    assert step.settings == settings["projected-ascent"]
    made = create("projected-ascent", settings["projected-ascent"])[1]
    assert step.parameters == parameters(made)
    assert step.parameters["epochs"] == 2
    assert step.parameters["clip"] == 5.0
    with pytest.raises(ConfigError, match="settings for 'fine-tune', which is not on the ladder"):
        plan(home, settings={"fine-tune": {}})
    with pytest.raises(ConfigError, match="unknown key"):
        plan(home, settings={"second-choice": {"epoch": 3}})


def test_no_other_method_runs_before_the_one_that_is_asked_for(home: Home) -> None:
    for how in ({"methods": ("retrain",)}, {"from_rung": "retraining"}):
        found = plan(home, **how)
        assert [step.method for step in found.ladder] == ["retrain"]
        assert [each.rung for each in found.omitted] == ["local-step", "server-side"]
    found = plan(home, methods=("weight-negation",))
    assert [step.method for step in found.ladder] == ["weight-negation", "retrain"]
    assert found.omitted[0].reason == "weight-negation was asked for, which comes later"
    found = plan(home, methods=("rapid-retrain",), from_rung="server-side")
    assert [step.method for step in found.ladder] == ["weight-negation", "rapid-retrain"]
    assert found.omitted[0].reason == "the erasure was asked to begin with server-side"
    with pytest.raises(ConfigError, match="'projected-ascent' belongs to the local-step rung"):
        plan(home, methods=("projected-ascent",), from_rung="server-side")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_rung_and_tells_its_parameters(name: str) -> None:
    settings = {"classes": (1,)} if name == "class-pruning" else {}
    entry, method = create(name, settings)
    if entry.needs.leaver_online:
        assert rung_of(entry) == "local-step"
    found = parameters(method)
    made: Any = getattr(method, "step", method)
    assert found.keys() == {field.name for field in fields(made) if field.init}


def test_a_rung_is_taken_as_it_was_planned_though_defaults_have_changed(home: Home) -> None:
    step = plan(home, settings={"second-choice": {"epochs": 3}}).ladder[0]
    assert parameters(method_of(step)) == step.parameters
    before = {"labels": "own", "floor": False, "hold_first": 0.75, "hold_by": "model"}
    older = step.model_copy(update={"parameters": step.parameters | before})
    assert parameters(method_of(older)) == older.parameters != step.parameters
    assert older.parameters["epochs"] == 3


@pytest.mark.parametrize("change", [{"strength": 2}, {"labels": "some"}], ids=["name", "value"])
def test_what_this_version_cannot_do_as_planned_is_refused(
    home: Home, change: dict[str, Any]
) -> None:
    step = plan(home).ladder[0]
    with pytest.raises(ConfigError, match=next(iter(change))):
        method_of(step.model_copy(update={"parameters": step.parameters | change}))
    fewer = {key: value for key, value in step.parameters.items() if key != "floor"}
    with pytest.raises(ConfigError, match=r"\(floor\): continue with the version that planned it"):
        method_of(step.model_copy(update={"parameters": fewer}))


def test_robust_means_state_their_limits_and_their_needs(home: Home, tmp_path: Path) -> None:
    assert MEAN_LIMITS.keys() == MEANS.keys()
    assert plan(home, mean="median").mean == "median"
    with pytest.raises(ConfigError, match="has a mean of its own"):
        plan(home, mean="median", methods=("rapid-retrain",))
    few = small.make(tmp_path, CONFIG.replace("count = 4", "count = 3"))
    with pytest.raises(ConfigError, match="three retained clients or more, there are 2"):
        plan(few, mean="trimmed")


def test_under_secure_aggregation_there_is_no_robust_mean(tmp_path: Path) -> None:
    home = small.make(tmp_path, CONFIG + "situation.secure_aggregation = true\n")
    with pytest.raises(ConfigError, match="secure aggregation hides"):
        plan(home, mean="median")
    assert SimulatedBackend(home).last_update("site-0") is None
    outcome = small.erase(home, small.receive(home).id)
    assert outcome.state == "promoted"


def test_kept_history_makes_the_replay_the_server_side_rung_and_goes_with_the_leaver(
    tmp_path: Path,
) -> None:
    home = small.make(tmp_path, CONFIG + "situation.history = true\n")
    assert plan(home).ladder[1].method == "federaser"
    ground = SimulatedBackend(home, gone=["site-0"])
    outcome = small.erase(home, small.receive(home).id, ground=ground, how=EraseOptions())
    assert outcome.method == "federaser"
    assert not (home.path / "history").exists()
    assert any("kept during training" in d["what"] for d in small.told(home)["destroyed"])
    again = plan_for(home, "site-1")
    assert again.ladder[1].method == "weight-negation"


def plan_for(home: Home, client: str) -> Plan:
    request = unverified_request(small.ask(home, client))
    return erase.plan(home, SimulatedBackend(home), request, options=EraseOptions(), now=NOW)


def test_a_plan_is_kept_by_its_digest_and_shown_whole(home: Home) -> None:
    found = plan(home, wait=timedelta(hours=2), mean="trimmed")
    digest = home.save_plan(found)
    assert home.load_plan(digest) == found
    assert Plan.model_validate_json(found.content()).digest() == digest
    assert found.wait_until == "2026-11-15T14:00:00Z"
    console = Console(width=100, record=True)
    console.print(plan_table(found))
    shown = " ".join(console.export_text().split())
    for words in (
        "second-choice",
        "1 to 5",
        "Quorum: 50 % of the retained clients' samples",
        "the state that the leaver returned does not go into service",
        "Who takes part: site-1, site-2, site-3 (3)",
        "again until 2026-11-15T14:00:00Z",
        *MEAN_LIMITS["trimmed"],
    ):
        assert words in shown
    path = home.path / "plans" / f"{digest}.json"
    path.write_bytes(path.read_bytes().replace(b"site-3", b"site-4"))
    with pytest.raises(RecordError, match="does not have the digest of its name"):
        home.load_plan(digest)
    path.unlink()
    with pytest.raises(RecordError, match="missing or damaged"):
        home.load_plan(digest)


def shown(found: Plan) -> str:
    return " ".join(plan_text(found).split())


def test_the_plan_says_what_was_set(home: Home) -> None:
    how = {"second-choice": {"hold": 0.5, "epochs": 1}}
    assert "Set for second-choice: hold = 0.5, epochs = 1." in shown(plan(home, settings=how))
    assert "Set for" not in shown(plan(home))


def test_the_plan_says_how_updates_are_joined_and_what_the_leaver_gets(home: Home) -> None:
    usual = shown(plan(home, measure_at_leaver=False))
    other = shown(plan(home, mean="median"))
    assert "Updates are joined by their weighted mean (one malicious" in usual
    assert "does not get the new model; nothing is measured on its samples." in usual
    assert "Updates are joined by the median (it holds while" in other
    assert "the leaver receives the new model and reports its accuracy" in other
    assert "It planted no canaries: whether a trace of it is left will stay undetermined" in other
    assert "a trimmed mean (it leaves out a fifth" in shown(plan(home, mean="trimmed"))


def test_the_plan_says_whether_anything_fades(home: Home) -> None:
    found, kept = plan(home), plan(home, keep_unused_weights=True)
    assert (found.keep_unused_weights, kept.keep_unused_weights) == (False, True)
    assert found.digest() != kept.digest()
    assert "does not use are removed from all layers but the last" in shown(found)
    assert "does not use are kept as the leaver returns them" in shown(kept)
    assert "removed" not in shown(kept)
    assert "No unused weights are removed: that takes a second round." in shown(
        plan(home, max_rounds=1)
    )
    for one in (found, kept):
        assert home.load_plan(home.save_plan(one)) == one
        assert Plan.of_line(one.line()) == one


def test_a_plans_digest_covers_every_field(home: Home) -> None:
    found = plan(home)
    fields = found.model_dump(mode="json")
    assert found.content() == to_canonical(fields)
    assert Plan.model_validate_json(to_canonical(fields)) == found
    assert found.digest() == digest(fields)


def test_the_ledgers_row_of_a_plan_holds_names_and_numbers_only(home: Home) -> None:
    body = plan(home, methods=("projected-ascent",)).body(0)
    assert body.method == "projected-ascent"
    assert body.settings["epochs"] == 5
    assert all(isinstance(v, str | int | float | bool | None) for v in body.settings.values())


def test_whoever_only_reads_needs_no_torch() -> None:
    program = (
        "import sys\n"
        "from secede.erasure.documents import plan\n"
        "from secede.erasure.storage import home, locks, progress\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
