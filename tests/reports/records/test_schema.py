import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from secede.errors import RecordError
from secede.reports.records.runs import Score
from secede.reports.records.schema import (
    parse_model,
    read_config,
    read_curves,
    read_local_step,
    read_object,
    read_result,
)

Write = Callable[..., Path]

ARMS = ("fedavg", "retrain", "projected-ascent", "fine-tune", "reference")


def edit(path: Path, change: Callable[[Any], None]) -> Path:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


def edit_line(path: Path, number: int, change: Callable[[Any], None]) -> Path:
    lines = path.read_text().splitlines()
    row = json.loads(lines[number - 1])
    change(row)
    lines[number - 1] = json.dumps(row)
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_config_is_read_whole_and_flat(write_run: Write) -> None:
    config = read_config(write_run(limit=500) / "config.json")
    assert (config.data, config.clients, config.leaver, config.limit) == ("mnist", 5, 0, 500)
    assert config.methods == ("projected-ascent", "fine-tune", "reference")
    assert ("settings.projected-ascent.stop_distance", "1.48") in config.settings
    assert config.main_probe == "attack_success"
    assert ("training.learning_rate", "0.01") in config.settings
    assert ("clients.sizes", "null") in config.settings


def test_a_config_without_title_is_called_by_its_name(write_run: Write) -> None:
    path = edit(write_run(name="mine") / "config.json", lambda config: config.pop("title"))
    assert read_config(path).title == "mine"


def test_an_unknown_scenario_is_refused(write_run: Write) -> None:
    path = edit(write_run() / "config.json", lambda c: c["scenario"].update(name="riddle"))
    with pytest.raises(RecordError, match=r"'riddle', expected one of backdoor, flipped, clean"):
        read_config(path)


def test_a_missing_key_is_named(write_run: Write) -> None:
    path = edit(write_run() / "config.json", lambda config: config["clients"].pop("count"))
    with pytest.raises(RecordError, match=r"config\.json: clients\.count: Field required"):
        read_config(path)


def test_curves_come_by_arm_in_the_order_of_rounds(write_run: Write) -> None:
    path = write_run() / "seed-0" / "curves.jsonl"
    path.write_text("\n".join(reversed(path.read_text().splitlines())) + "\n")
    curves = read_curves(path, ARMS)
    assert [point.round for point in curves["retrain"]] == list(range(21))
    assert {point.arm for point in curves["retrain"]} == {"retrain"}


def test_a_torn_line_is_named_by_file_and_line(write_run: Write) -> None:
    path = write_run() / "seed-0" / "curves.jsonl"
    path.write_text(path.read_text()[:-40])
    with pytest.raises(RecordError, match=r"s\.jsonl, line 75: incomplete or not JSON") as caught:
        read_curves(path, ARMS)
    assert caught.value.exit_code == 5


def test_a_round_recorded_twice_is_refused(write_run: Write) -> None:
    path = write_run() / "seed-0" / "curves.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    with pytest.raises(RecordError, match=r"line 76: fedavg round 0 is recorded twice"):
        read_curves(path, ARMS)


def test_a_gap_in_the_rounds_is_refused(write_run: Write) -> None:
    path = write_run() / "seed-0" / "curves.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:4] + lines[5:]) + "\n")
    with pytest.raises(RecordError, match=r"fedavg has no row for round 4"):
        read_curves(path, ARMS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row.update(arm="magic"), r"line 3: arm 'magic', expected one of fedavg"),
        (lambda row: row.update(round=-1), r"line 3: round -1, expected 0 or more"),
        (
            lambda row: row["scores"]["clean_accuracy"].update(value=98.1),
            r"line 3: clean_accuracy is 98\.1, expected a share from 0 to 1",
        ),
        (
            lambda row: row["scores"]["clean_accuracy"].update(value=float("nan")),
            r"line 3: clean_accuracy is nan",
        ),
        (
            lambda row: row["scores"]["clean_accuracy"].update(count=0),
            r"line 3: clean_accuracy counts 0 samples",
        ),
        (lambda row: row.pop("cost"), r"line 3: cost: Field required"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(
    write_run: Write, change: Callable[[Any], None], message: str
) -> None:
    path = edit_line(write_run() / "seed-0" / "curves.jsonl", 3, change)
    with pytest.raises(RecordError, match=message):
        read_curves(path, ARMS)


def test_a_loss_may_be_infinite(write_run: Write) -> None:
    path = edit_line(
        write_run() / "seed-0" / "curves.jsonl",
        3,
        lambda row: row["scores"]["leaver_loss"].update(value=float("inf")),
    )
    assert read_curves(path, ARMS)["fedavg"][2].scores["leaver_loss"].value == float("inf")


def test_a_result_of_another_seed_is_refused(write_run: Write) -> None:
    folder = write_run() / "seed-1"
    edit(folder / "result.json", lambda result: result.update(seed=7))
    with pytest.raises(RecordError, match=r"states seed 7, but its folder is seed-1"):
        read_result(folder)


def test_a_membership_rate_that_is_no_share_is_refused(write_run: Write) -> None:
    folder = write_run() / "seed-1"
    edit(
        folder / "result.json",
        lambda result: result["membership"]["fedavg@20"]["yeom"]["member_rate"].update(value=81),
    )
    with pytest.raises(RecordError, match=r"fedavg@20 yeom member_rate is 81"):
        read_result(folder)


def test_a_local_step_may_lack_radius_stop_distance_accuracy_and_loss(write_run: Write) -> None:
    folder = write_run() / "seed-1"
    missing = dict.fromkeys(("radius", "stop_distance", "accuracy", "loss"))
    edit(
        folder / "result.json",
        lambda result: result["reports"]["projected-ascent"].update(missing),
    )
    step = read_local_step(read_result(folder), folder)
    assert step is not None
    assert (step.radius, step.stop_distance, step.accuracy, step.loss) == (None,) * 4
    assert step.steps == 13


def test_a_seed_without_projected_ascent_has_no_local_step(write_run: Write) -> None:
    folder = write_run(methods=("weight-negation", "fine-tune")) / "seed-1"
    result = read_result(folder)
    assert read_local_step(result, folder) is None
    assert result.reports["weight-negation"]["passes"] == 4


def test_a_damaged_local_step_is_named(write_run: Write) -> None:
    folder = write_run() / "seed-1"
    edit(folder / "result.json", lambda r: r["reports"]["projected-ascent"].pop("steps"))
    with pytest.raises(RecordError, match=r"reports\.projected-ascent: steps: Field required"):
        read_local_step(read_result(folder), folder)


def test_a_record_from_before_there_were_methods_is_refused(write_run: Write) -> None:
    run = write_run()
    edit(run / "seed-1" / "result.json", lambda r: r.update(local_step=r.pop("reports")))
    with pytest.raises(RecordError, match=r"result\.json: reports: Field required"):
        read_result(run / "seed-1")
    path = edit(run / "config.json", lambda config: config.pop("methods"))
    with pytest.raises(RecordError, match=r"config\.json: methods: Field required"):
        read_config(path)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ([], r"methods: List should have at least 1 item"),
        (["retrain"], r"methods: arm 'retrain' is listed twice"),
        (["reference", "reference"], r"methods: arm 'reference' is listed twice"),
    ],
)
def test_methods_must_be_some_and_each_once(
    write_run: Write, methods: list[str], message: str
) -> None:
    path = edit(write_run() / "config.json", lambda config: config.update(methods=methods))
    with pytest.raises(RecordError, match=message):
        read_config(path)


def test_a_history_is_read_where_there_is_one(write_run: Write) -> None:
    kept = read_result(write_run(methods=("own.methods:Forget",)) / "seed-0").history
    assert kept is not None
    assert (kept.bytes, kept.rounds) == (159_683_520, 10)
    assert read_result(write_run() / "seed-0").history is None


def test_a_model_is_named_by_arm_and_round(tmp_path: Path) -> None:
    assert parse_model("projected-ascent@10", ARMS, tmp_path) == ("projected-ascent", 10)
    for key in ("projected-ascent", "retrain@last", "magic@1"):
        with pytest.raises(RecordError, match="expected an arm and a round"):
            parse_model(key, ARMS, tmp_path)


def test_a_users_own_method_is_a_model_too(tmp_path: Path) -> None:
    own = "own.methods:Forget"
    assert parse_model(f"{own}@2", (*ARMS, own), tmp_path) == (own, 2)


def test_broken_json_is_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "environment.json"
    path.write_text('{\n"secede": oops}')
    with pytest.raises(RecordError, match=r"environment\.json, line 2: not JSON"):
        read_object(path)
    path.write_text("[1]")
    with pytest.raises(RecordError, match=r"contains a list, expected an object"):
        read_object(path)


def test_files_that_are_missing_or_no_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"config\.json: missing"):
        read_config(tmp_path / "config.json")
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordError, match=r"config\.json: cannot be read as text"):
        read_config(tmp_path / "config.json")


def test_canaries_of_a_row_are_a_score_beside_the_others(write_run: Write) -> None:
    said = {"ranks": [[3, 1], [0, 0, 1]], "wins": 3}
    folder = write_run(canaries=lambda seed, arm, round: said)
    point = read_curves(folder / "seed-0" / "curves.jsonl", ARMS)["fedavg"][0]
    assert point.canaries is not None
    assert point.canaries.reading().wins == 3
    assert point.scores["canary_rank"] == Score((3 + 2 + 3) / 5, 5)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"ranks": [[3, 1]], "wins": 2}, "wins, where the ranks allow 3 to 3"),
        ({"ranks": [[0, 0]], "wins": 0}, "no canary"),
        ({"ranks": [], "wins": 0}, "no canary"),
    ],
)
def test_canaries_whose_counts_cannot_be_are_refused(
    write_run: Write, said: dict[str, Any], words: str
) -> None:
    path = write_run() / "seed-0" / "curves.jsonl"
    edit_line(path, 2, lambda row: row.update(canaries=said))
    with pytest.raises(RecordError, match=rf"line 2: canaries: .*{words}"):
        read_curves(path, ARMS)
