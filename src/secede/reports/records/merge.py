"""Runs of other methods on the very same models are shown as one.

Two runs belong together if they have the same seeds, and in each of them federation and retraining
went through the same states: then their methods began at the same model and have the same aim.
What is shown against the others is a method as it is, rather than a variant of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from secede.reports.records.runs import Config, Run, SeedRecord


def merge_runs(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return the runs in their order, each with the methods of later ones that fit it."""
    found = list[Run]()
    for run in runs:
        at = next((i for i, other in enumerate(found) if _belong_together(other, run)), None)
        if at is None:
            found.append(run)
        else:
            found[at] = _join(*sorted((found[at], run), key=_begins_with_a_variant))
    return tuple(found)


def _begins_with_a_variant(run: Run) -> bool:
    return "@" in run.config.methods[0]


def _belong_together(run: Run, other: Run) -> bool:
    if (run.config.scenario, run.config.title) != (other.config.scenario, other.config.title):
        return False
    if [seed.seed for seed in run.seeds] != [seed.seed for seed in other.seeds]:
        return False
    both = [arm for arm in run.config.arms if arm in other.config.arms]
    pairs = zip(run.seeds, other.seeds, strict=True)
    return all(_states(one, arm) == _states(two, arm) for one, two in pairs for arm in both)


def _states(seed: SeedRecord, arm: str) -> list[str]:
    return [point.digest for point in seed.curves[arm]]


def _join(run: Run, other: Run) -> Run:
    seeds = zip(run.seeds, other.seeds, strict=True)
    return replace(
        run,
        config=_join_configs(run.config, other.config),
        seeds=tuple(_join_seeds(one, two) for one, two in seeds),
        unfinished=(*run.unfinished, *other.unfinished),
        failed={**other.failed, **run.failed},
    )


def _join_configs(config: Config, other: Config) -> Config:
    settings = {**dict(other.settings), **dict(config.settings)}
    return replace(
        config,
        methods=tuple(dict.fromkeys((*config.methods, *other.methods))),
        settings=tuple(settings.items()),
    )


def _join_seeds(seed: SeedRecord, other: SeedRecord) -> SeedRecord:
    more = {arm: curve for arm, curve in other.curves.items() if arm not in seed.curves}
    spent = sum(curve[-1].cost.seconds for curve in more.values())
    return replace(
        seed,
        curves={**seed.curves, **more},
        reports={**other.reports, **seed.reports},
        local_step=seed.local_step or other.local_step,
        history=seed.history or other.history,
        membership={**other.membership, **seed.membership},
        seconds=seed.seconds + spent,
    )
