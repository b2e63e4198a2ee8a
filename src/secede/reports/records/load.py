"""Read run folders, and merge runs of other methods on the same models.

Damaged records raise with file and line. A seed counts once its `result.json` exists; others are
left out and listed. A finished seed must be complete: every arm that its result names, every round
from 0 on, no incomplete line.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from secede.errors import RecordError
from secede.reports import names
from secede.reports.records.runs import Config, Point, Records, Run, SeedRecord
from secede.reports.records.schema import (
    Result,
    parse_model,
    read_config,
    read_curves,
    read_local_step,
    read_object,
    read_result,
)


def load_runs(paths: Sequence[Path]) -> Records:
    """Read every run folder in or below `paths`; at least one must hold a finished seed.

    Runs come in the paper's order: by scenario, data set and number of clients. Runs of other
    methods on the same models are merged.
    """
    in_paths = [folder for path in paths for folder in _run_folders(path)]
    folders = list({folder.resolve(): folder for folder in in_paths}.values())
    finished = [folder for folder in folders if any(_is_finished(s) for s in _seeds(folder))]
    if not finished:
        where = ", ".join(str(path) for path in paths)
        raise RecordError(
            f"no finished seed in {where}: a seed is finished once it has a result.json; "
            "run the same config again to finish it"
        )
    unfinished = tuple(folder for folder in folders if folder not in finished)
    return Records(merge_runs(sorted(map(read_run, finished), key=_order)), unfinished)


def read_run(folder: Path) -> Run:
    """Read one run folder."""
    config = read_config(folder / "config.json")
    finished = [path for path in _seeds(folder) if _is_finished(path)]
    unfinished = tuple(path.name for path in _seeds(folder) if not _is_finished(path))
    if not finished:
        raise RecordError(f"{folder}: no finished seed; run the same config again to finish it")
    results = [(path, read_result(path)) for path in finished]
    _check_same_config(results)
    # A method that destroyed the model in one seed has no mean over seeds: it is left out.
    failed = {name: why for _, result in results for name, why in result.failed.items()}
    config = replace(config, methods=tuple(m for m in config.methods if m not in failed))
    seeds = tuple(_seed(path, result, config, failed) for path, result in results)
    _check_same_rounds(folder, seeds)
    return Run(folder, config, results[0][1].config_digest, seeds, unfinished, failed)


def _order(run: Run) -> tuple[int, tuple[int, str], int, str]:
    config = run.config
    scenario = list(names.SCENARIOS).index(config.scenario)
    return scenario, names.data_order(config.data), config.clients, config.name


def _seed(folder: Path, result: Result, config: Config, left_out: Collection[str]) -> SeedRecord:
    all_curves = read_curves(folder / "curves.jsonl", (*config.arms, *left_out))
    curves = {arm: curve for arm, curve in all_curves.items() if arm not in left_out}
    ends = {arm: end for arm, end in result.arms.items() if arm not in left_out}
    result = replace(result, arms=ends)
    _check_complete(folder, result, curves, config)
    membership = {
        parse_model(key, config.arms, folder): attacks for key, attacks in result.membership.items()
    }
    return SeedRecord(
        seed=result.seed,
        curves=curves,
        reports=result.reports,
        local_step=read_local_step(result, folder),
        history=result.history,
        membership=membership,
        environment=read_object(folder / "environment.json"),
        seconds=result.seconds,
    )


def _check_complete(
    folder: Path, result: Result, curves: Mapping[str, tuple[Point, ...]], config: Config
) -> None:
    path = folder / "curves.jsonl"
    for arm in (*config.arms, *result.arms):
        if arm not in curves or arm not in result.arms:
            raise RecordError(f"{path}: no finished curve for {arm!r}, though the seed is finished")
        last, expected = curves[arm][-1], result.arms[arm]
        if (last.round, last.digest) != (expected.rounds, expected.digest):
            raise RecordError(
                f"{path}: {arm} ends at round {last.round} with state {last.digest[:8]}, "
                f"result.json says round {expected.rounds} with {expected.digest[:8]}"
            )
    needed = _needed_scores(config)
    for point in (point for curve in curves.values() for point in curve):
        missing = sorted(needed - set(point.scores))
        if missing:
            raise RecordError(
                f"{path}: {point.arm} round {point.round} lacks the score {missing[0]!r}"
            )


def _needed_scores(config: Config) -> set[str]:
    always = {names.CLEAN_ACCURACY, names.LEAVER_ACCURACY, names.LEAVER_LOSS}
    always |= {config.main_probe, config.utility}
    return always | ({names.BACKDOOR_ACCURACY} if config.scenario == "backdoor" else set())


def _check_same_config(results: Sequence[tuple[Path, Result]]) -> None:
    first, expected = results[0][0], results[0][1].config_digest
    for folder, result in results:
        if result.config_digest != expected:
            raise RecordError(
                f"{folder / 'result.json'}: has config digest {result.config_digest[:8]}, but "
                f"{first.name} has {expected[:8]}; keep one config per run folder"
            )


def _check_same_rounds(folder: Path, seeds: Sequence[SeedRecord]) -> None:
    shapes = [{arm: len(curve) for arm, curve in seed.curves.items()} for seed in seeds]
    for seed, shape in zip(seeds, shapes, strict=True):
        if shape != shapes[0]:
            raise RecordError(
                f"{folder}: seed {seed.seed} has other arms or rounds than seed {seeds[0].seed}; "
                "keep one config per run folder"
            )


def _run_folders(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        raise RecordError(f"{path}: not a folder; expected a run folder or a folder of runs")
    has_run, seen = False, set[str]()
    for folder, folders, files in os.walk(path, followlinks=True):
        folders.sort()
        if (real := os.path.realpath(folder)) in seen:
            folders.clear()  # links may lead back
            continue
        seen.add(real)
        if "config.json" in files:
            has_run = True
            folders.clear()
            yield Path(folder)
    if not has_run:
        raise RecordError(f"{path}: contains no run; expected a folder with a config.json in it")


def _seeds(folder: Path) -> list[Path]:
    seeds = [path for path in folder.glob("seed-*") if path.name[5:].isdecimal()]
    return sorted(seeds, key=lambda path: int(path.name[5:]))


def _is_finished(seed: Path) -> bool:
    return (seed / "result.json").is_file()


def merge_runs(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return the runs in their order, each with the methods of later runs that belong to it."""
    merged = list[Run]()
    for run in runs:
        index = next((i for i, other in enumerate(merged) if _belong_together(other, run)), None)
        if index is None:
            merged.append(run)
        else:
            # The one that begins with a variant is the second.
            both = sorted((merged[index], run), key=lambda each: "@" in each.config.methods[0])
            merged[index] = _merge(*both)
    return tuple(merged)


def _belong_together(run: Run, other: Run) -> bool:
    if (run.config.scenario, run.config.title) != (other.config.scenario, other.config.title):
        return False
    if [seed.seed for seed in run.seeds] != [seed.seed for seed in other.seeds]:
        return False
    shared = [arm for arm in run.config.arms if arm in other.config.arms]
    pairs = zip(run.seeds, other.seeds, strict=True)
    return all(_states(one, arm) == _states(two, arm) for one, two in pairs for arm in shared)


def _states(seed: SeedRecord, arm: str) -> list[str]:
    return [point.digest for point in seed.curves[arm]]


def _merge(run: Run, other: Run) -> Run:
    seeds = zip(run.seeds, other.seeds, strict=True)
    return replace(
        run,
        config=_merge_configs(run.config, other.config),
        seeds=tuple(_merge_seeds(one, two) for one, two in seeds),
        unfinished=(*run.unfinished, *other.unfinished),
        failed={**other.failed, **run.failed},
    )


def _merge_configs(config: Config, other: Config) -> Config:
    settings = {**dict(other.settings), **dict(config.settings)}
    return replace(
        config,
        methods=tuple(dict.fromkeys((*config.methods, *other.methods))),
        settings=tuple(settings.items()),
        retrains_again=config.retrains_again or other.retrains_again,
    )


def _merge_seeds(seed: SeedRecord, other: SeedRecord) -> SeedRecord:
    more = {arm: curve for arm, curve in other.curves.items() if arm not in seed.curves}
    seconds = sum(curve[-1].cost.seconds for curve in more.values())
    return replace(
        seed,
        curves={**seed.curves, **more},
        reports={**other.reports, **seed.reports},
        local_step=seed.local_step or other.local_step,
        history=seed.history or other.history,
        membership={**other.membership, **seed.membership},
        seconds=seed.seconds + seconds,
    )
