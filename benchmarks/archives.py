"""Archives of records in docs/records: load, join and pack them, or compare repeated runs.

An archive holds what runs recorded, without models and evidence. An experiment that is in several
archives is merged if its models were the same.
"""

from __future__ import annotations

import io
import re
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from secede import files
from secede.experiments.records import CONFIG, RESULT
from secede.reports import names
from secede.reports.records.load import load_runs
from secede.reports.records.runs import Config, Run, SeedRecord

_AGAIN = "training.retrain_again"  # a key that the committed records have not
RECORDS = Path(__file__).parents[1] / "docs" / "records"


@cache
def load(name: str) -> tuple[Run, ...]:
    """Return the runs of the archive called `name`."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(RECORDS / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        return tuple(load_runs([Path(folder) / name]).runs)


def joined(records: str) -> list[Run]:
    """Return the runs of archives joined with `+`, those of one experiment as one."""
    found: dict[str, Run] = {}
    for run in (run for name in records.split("+") for run in load(name)):
        title = run.config.title
        found[title] = _both(found[title], run) if title in found else run
    return list(found.values())


def _both(one: Run, other: Run) -> Run:
    """Return one run with both runs' methods; what is in both must have ended alike."""
    shared = [m for m in one.config.methods if m in other.config.methods]
    for arm in (names.FEDAVG, names.RETRAIN, *shared):
        models = ([seed.curves[arm][-1].digest for seed in run.seeds] for run in (one, other))
        if len({*map(tuple, models)}) > 1:
            raise SystemExit(f"{one.config.title}: the records differ in {names.label(arm)}")
    methods = tuple(dict.fromkeys((*one.config.methods, *other.config.methods)))
    seeds = (
        replace(
            here,
            curves={**here.curves, **there.curves},
            reports={**here.reports, **there.reports},
            membership={**here.membership, **there.membership},
        )
        for here, there in zip(one.seeds, other.seeds, strict=True)
    )
    return replace(one, config=replace(one.config, methods=methods), seeds=tuple(seeds))


def pack(name: str, folders: Sequence[Path]) -> None:
    """Put what finished runs recorded into the archive `name`, without models and evidence."""
    if not re.fullmatch("[a-z]+", name):
        raise SystemExit(f"{name!r} is no name for records: expected small letters alone")
    if not folders:
        raise SystemExit(f"nothing to pack into {name}: name the runs' folders")
    found = [path for folder in sorted(folders) for path in _recorded(folder)]
    with files.replace(RECORDS / f"{name}.tar.xz") as file, tarfile.open(file, "w:xz") as archive:
        for folder, path in found:
            entry = tarfile.TarInfo(f"{name}/{path.relative_to(folder.parent).as_posix()}")
            entry.size = path.stat().st_size
            archive.addfile(entry, io.BytesIO(path.read_bytes()))
    load.cache_clear()


def repeated(folders: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Return, for each seed that was run again, how many models there are and how many differ.

    A model differs if the same method has not the same digest after the same round, or none.
    """
    archives = sorted(RECORDS.glob("*.tar.xz"))
    known = {_settings(run): run for path in archives for run in _runs(path)}
    found = []
    for run in load_runs(folders).runs:
        if _settings(run) not in known:
            raise SystemExit(f"no records have {run.config.title!r} with these settings")
        recorded = {seed.seed: seed for seed in known[_settings(run)].seeds}
        for seed in run.seeds:
            if seed.seed not in recorded:
                raise SystemExit(f"no records have seed {seed.seed} of {run.config.title!r}")
            models, before = _models(seed), _models(recorded[seed.seed])
            differ = len({place for place, _ in models.items() ^ before.items()})
            found.append((f"{run.config.title}, seed {seed.seed}", len(models), differ))
    return found


def _runs(archive: Path) -> tuple[Run, ...]:
    return load(archive.name.removesuffix(".tar.xz"))


def _settings(run: Run) -> Config:
    """Return what was run, but for the second retraining, which changes no other model."""
    settings = tuple(item for item in run.config.settings if item[0] != _AGAIN)
    return replace(run.config, settings=settings, retrains_again=False)


def _models(seed: SeedRecord) -> dict[tuple[str, int], str]:
    curves = (item for item in seed.curves.items() if item[0] != names.RETRAIN_AGAIN)
    return {(arm, at.round): at.digest for arm, curve in curves for at in curve}


def _recorded(folder: Path) -> list[tuple[Path, Path]]:
    """Return a run's folder with each of its small files; raise unless all its seeds are done."""
    seeds = sorted(folder.glob("seed-*"))
    missing = [
        path for path in (folder / CONFIG, *(s / RESULT for s in seeds)) if not path.exists()
    ]
    if missing or not seeds:
        what = missing[0] if missing else folder / "seed-0"
        raise SystemExit(f"{what} is missing: only runs that are done can be packed")
    return [(folder, path) for path in sorted([folder / CONFIG, *folder.glob("seed-*/*.json*")])]
