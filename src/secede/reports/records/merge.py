"""Merge runs of different methods on the same models.

Two runs belong together if they have the same seeds, and federation and retraining went through
the same states in each: then their methods began at the same model and have the same aim. A run
that begins with a method itself comes before one that begins with a variant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from secede.reports.records.runs import Config, Run, SeedRecord


def merge_runs(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return the runs in their order, each with the methods of later runs that belong to it."""
    merged = list[Run]()
    for run in runs:
        index = next((i for i, other in enumerate(merged) if _belong_together(other, run)), None)
        if index is None:
            merged.append(run)
        else:
            merged[index] = _merge(*sorted((merged[index], run), key=_begins_with_a_variant))
    return tuple(merged)


def _begins_with_a_variant(run: Run) -> bool:
    return "@" in run.config.methods[0]


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
