from __future__ import annotations

from benchmarks.erasures.table import Line, compare, compared, summary, table


def line(method: str, seed: int = 0, **scores: float | None) -> Line:
    values: dict[str, object] = {
        "probe": 0.4,
        "clean": 0.9,
        "loss": 2.0,
        "auc": 0.5,
        "canary_p": 0.5,
    }
    cell = {"data": "digits", "network": "mlp", "scenario": "flipped", "share": 0.2, "seed": seed}
    return {**cell, "method": method, **values, **scores}


TRUE, NULL = {0: line("retrained")}, {0: line("again", probe=0.45, auc=0.49)}


def failed(**scores: float | None) -> list[str]:
    return compare({0: {**line("own"), **scores}}, TRUE, NULL).failed


def test_retraining_fails_nothing() -> None:
    assert failed() == []


def test_each_condition_fails_by_itself_just_beyond_its_bound() -> None:
    assert failed(canary_p=0.011) == []
    assert failed(canary_p=0.009) == ["canaries"]
    assert failed(canary_p=None) == []
    assert failed(loss=1.61) == failed(loss=2.49) == []
    assert failed(loss=1.59) == failed(loss=2.51) == ["loss"]
    assert failed(probe=0.49) == failed(probe=0.31) == []
    assert failed(probe=0.51) == failed(probe=0.29) == ["probe"]
    assert failed(clean=0.891) == failed(clean=0.95) == []
    assert failed(clean=0.889) == ["clean"]
    assert failed(auc=0.519) == []
    assert failed(auc=0.521) == failed(auc=0.479) == ["AUC"]


def test_the_probes_distance_is_taken_seed_by_seed() -> None:
    # Off by +0.1 and -0.1: the means agree, the seeds do not.
    own = {seed: line("own", seed, probe=probe) for seed, probe in ((0, 0.5), (1, 0.3))}
    true = {seed: line("retrained", seed) for seed in (0, 1)}
    judged = compare(own, true, {seed: line("again", seed) for seed in (0, 1)})
    assert round(judged.off, 9) == 0.1
    assert judged.failed == ["probe"]


def test_only_seeds_that_all_have_count() -> None:
    own = {0: line("own"), 1: line("own", 1, loss=9.0)}
    assert compare(own, TRUE, NULL).ratio == 1


def test_the_null_of_membership_is_that_of_all_scenarios_with_the_share() -> None:
    other = [{**line(name, auc=auc), "scenario": "clean"} for name, auc in
             (("retrained", 0.5), ("again", 0.53))]  # fmt: skip
    found = compared([*TRUE.values(), *NULL.values(), *other])
    assert round(found["digits", "mlp", "flipped", 0.2]["again"].auc_off_null, 9) == 0.02


def test_the_tables_have_a_row_for_each_model_and_leave_out_cells_without_a_null() -> None:
    alone = {**line("own", probe=0.9), "scenario": "clean"}
    lines = [*TRUE.values(), *NULL.values(), line("own", loss=1.0), alone]
    rows = table(lines).splitlines()
    assert len(rows) == 5
    assert rows[-1].endswith("| 0.50 (1.00) | 0.500 (±0.010) | 0 of 1 | loss |")
    assert summary(lines).splitlines()[-1] == (
        "| digits | mlp | own | +0.0 | 0.0 (5.0) | 2.00 (1.00) | 0 of 1 | 0 of 1 "
        "| 0 | 1 | 0 | 0 | 0 |"
    )


def test_losses_of_half_and_twice_retrainings_are_off_by_a_factor_of_two() -> None:
    cells = [line(name, loss=loss) for name, loss in
             (("retrained", 2.0), ("again", 2.0), ("own", 1.0))]  # fmt: skip
    others = [{**each, "scenario": "clean"} for each in cells[:2]]
    others.append({**line("own", loss=4.0), "scenario": "clean"})
    row = summary([*cells, *others]).splitlines()[-1]
    assert row.startswith("| digits | mlp | own | +0.0 | 0.0 (0.0) | 2.00 (1.00) | 0 of 2 |")
