"""The config of an experiment: every setting, its default and its bounds. Imports no torch.

It is read from TOML and checked; an error names the key, the value found and what is allowed.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from secede import models, scenarios
from secede.canaries.options import CanaryOptions
from secede.data import catalog
from secede.errors import ConfigError, did_you_mean
from secede.federation import executors
from secede.strict import as_json
from secede.text import shorten
from secede.unlearning import registry as methods

_SHOWN_CHARACTERS = 200  # of a wrong value
# Reading a dotted key takes time as its length squared.
MAX_CHARACTERS = 32_000
RECORD_VERSION = 2  # of the records' format and meaning; part of every config's digest
JUDGED_ROUND = 2  # post-training round at which a report judges the erased model

# A report judges the first; the others show what it is worth.
DEFAULT_METHODS = ("second-choice", "projected-ascent", "fine-tune")

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Clients(_Section):
    """Who takes part, who leaves, and how the data is partitioned."""

    count: Annotated[int, Field(ge=2)] = 5
    leaver: Annotated[int, Field(ge=0)] = 0
    partition: Literal["equal", "sizes", "dirichlet"] = "equal"
    sizes: tuple[Count, ...] | None = None
    alpha: Positive | None = None

    @model_validator(mode="after")
    def _fit(self) -> Clients:
        if self.leaver >= self.count:
            raise ValueError(
                f"clients.leaver is {self.leaver}, expected 0 to {self.count - 1}: "
                f"the federation has {self.count} clients"
            )
        for partition, key in (("sizes", "sizes"), ("dirichlet", "alpha")):
            value = getattr(self, key)
            if self.partition == partition and value is None:
                raise ValueError(f"clients.{key} is missing: partition {partition!r} needs it")
            if self.partition != partition and value is not None:
                raise ValueError(
                    f"clients.{key} is {value}, but only partition {partition!r} takes it "
                    f"(clients.partition is {self.partition!r})"
                )
        if self.sizes is not None and len(self.sizes) != self.count:
            raise ValueError(
                f"clients.sizes has {len(self.sizes)} entries, expected clients.count: {self.count}"
            )
        return self


class Scenario(_Section):
    """How the leaver's data differs."""

    name: str = "backdoor"
    share: Fraction | None = None  # of the leaver's images; None: the paper's
    target: Annotated[int, Field(ge=0)] | None = None  # of a backdoor; None: the last class
    # What the leaver holds alone; None: the last fifth of the classes.
    classes: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    # Share of those classes' samples that the other clients keep; None: nothing.
    kept: Annotated[float, Field(ge=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _check_settings(self) -> Scenario:
        scenarios.check_settings(self.name, self.model_dump(exclude={"name"}))
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            raise ValueError(f"scenario.classes is {list(self.classes)}, expected each class once")
        return self


class Training(_Section):
    """Rounds of federated training, and the local training in every round of every arm."""

    rounds: Count = 20
    epochs: Count = 1
    learning_rate: Positive = 0.01
    momentum: Momentum = 0.9
    batch_size: Count = 128
    retrain_again: bool = True  # retrain twice: what two retrainings differ by is the null

    def local(self) -> dict[str, Any]:
        """Return the settings of one client's training in one round."""
        return self.model_dump(exclude={"rounds", "retrain_again"})


class Situation(_Section):
    """What methods may use; a method whose needs are not met raises."""

    leaver_online: bool = True
    secure_aggregation: bool = False
    history: bool = False  # the server keeps clients' updates while training
    history_interval: Count = 2  # single updates are kept every so many rounds
    history_limit_gb: Positive = 8.0
    server_data: Annotated[int, Field(ge=0)] = 0  # unlabelled images, held back from training

    @model_validator(mode="after")
    def _fit(self) -> Situation:
        if self.history and self.secure_aggregation:
            raise ValueError(
                "situation.history keeps single updates, which situation.secure_aggregation hides "
                "from the server: choose one"
            )
        return self

    def for_methods(self) -> methods.Situation:
        """Return the situation as methods state their needs."""
        return methods.Situation(
            leaver_online=self.leaver_online,
            history=self.history,
            server_data=self.server_data > 0,
            single_updates=not self.secure_aggregation,
        )


class PostTraining(_Section):
    """Rounds of the retained clients after a method's start; they train as in `training`."""

    rounds: Count = 10


class CanarySection(_Section):
    """Canaries that the leaver plants before the training; in a home, every client."""

    count: Annotated[int, Field(ge=0)] = 0  # 0: none
    copies: Count = 3
    kind: str = "made-up"
    max_share: Fraction = 0.02  # of a client's samples
    noise: Annotated[float, Field(ge=0, le=1)] = 0.05

    @model_validator(mode="after")
    def _fit(self) -> CanarySection:
        self.options()
        return self

    def options(self) -> CanaryOptions | None:
        """Return the options of planting; None: no canaries."""
        return CanaryOptions(**self.model_dump()) if self.count else None


_SKIP_METHODS: Final = {"methods": "unchecked"}  # context of a validation


class Config(_Section):
    """One experiment; every random choice depends on a seed that is not part of it."""

    name: Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[A-Za-z0-9._/ -]+$")]
    title: str = ""
    data: str = "mnist-10k"
    limit: Count | None = None  # images in the training part, and in the test part
    model: str = "paper-cnn"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    executor: str = executors.AUTO  # how clients are computed; the record says what auto picked
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    clients: Clients = Clients()
    scenario: Scenario = Scenario()
    training: Training = Training()
    methods: Annotated[tuple[str, ...], Field(min_length=1)] = DEFAULT_METHODS
    settings: dict[str, dict[str, Any]] = {}  # of methods, by name; each checks its own
    situation: Situation = Situation()
    post_training: PostTraining = PostTraining()
    canaries: CanarySection = CanarySection()

    @model_validator(mode="after")
    def _check_names(self, info: ValidationInfo) -> Config:
        if not self.data.endswith(".npz"):
            catalog.entry(self.data)
        models.check_name(self.model)
        executors.check_name(self.executor)
        if info.context is not _SKIP_METHODS:
            self._check_methods()
        return self

    def _check_methods(self) -> None:
        situation = self.situation.for_methods()
        for name in self.methods:
            methods.check_name(name)
            base = methods.base_name(name)
            if base == "retrain":
                raise ConfigError("methods: 'retrain' is always run; leave it out")
            if self.methods.count(name) > 1:
                raise ConfigError(f"methods: {name!r} is named twice")
            if name != base and not self.settings.get(name):
                hint = did_you_mean(name, self.settings.keys() - set(self.methods))
                raise ConfigError(
                    f"methods: {name!r} has no settings of its own and would run as {base!r}; "
                    f"{hint}"
                    f'give some, as in settings."{name}" = {{ ... }}'
                )
            if base in methods.METHODS:
                methods.check_possible(methods.METHODS[base], situation, self.scenario.name)
        if unknown := sorted(self.settings.keys() - set(self.methods)):
            hint = did_you_mean(unknown[0], self.methods)
            raise ConfigError(
                f"settings.{unknown[0]}: {hint}that method is not run here; methods is "
                f"{', '.join(self.methods)}"
            )

    @property
    def share(self) -> float | None:
        """The leaver's share of changed images; by default the paper's for this many clients."""
        if (
            self.scenario.share is None
            and "share" in scenarios.SCENARIOS[self.scenario.name].settings
        ):
            return scenarios.default_share(self.clients.count)
        return self.scenario.share

    def absent(self) -> dict[str, Any]:
        """Return what records leave out: later settings where they ask for nothing.

        So a run without them is the experiment that it was before they came.
        """
        left_out: dict[str, Any] = {} if self.canaries.count else {"canaries": True}
        if not self.training.retrain_again:
            left_out["training"] = {"retrain_again"}
        return left_out

    def resolved(self) -> dict[str, Any]:
        """Return the config as records hold it: all defaults resolved, no path of this machine."""
        values = self.model_dump(mode="json", exclude=self.absent())
        values["scenario"]["share"] = self.share
        if self.data.endswith(".npz"):
            values["data"] = Path(self.data).name
        return values


def parse(
    text: str, *, name: str, file: str | None = None, methods_overridden: bool = False
) -> Config:
    """Read a config from TOML; `name` is used where the text gives none, `file` in errors."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"{file or name}: over {MAX_CHARACTERS:,} characters, too many")
    try:
        values = tomllib.loads(text)
        json.dumps(values, default=str)  # as deep as what follows goes
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else error
        raise ConfigError(f"{file or name}: not valid TOML: {reason}") from error
    return build({"name": name, **values}, methods_overridden=methods_overridden)


def build(values: dict[str, Any], *, methods_overridden: bool = False) -> Config:
    """Return the config that `values` describe, or raise.

    With `methods_overridden`, its methods are not checked: `override` replaces them.
    """
    try:
        return Config.model_validate_json(
            as_json(values),
            strict=True,
            context=_SKIP_METHODS if methods_overridden else None,
        )
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


def override(config: Config, changes: dict[str, Any]) -> Config:
    """Return `config` with dotted keys changed, and check it; `None` means no change."""
    values = config.model_dump()
    for key, value in changes.items():
        if value is None:
            continue
        if key == "methods":
            _choose_methods(values, value, config)
            continue
        *path, last = key.split(".")
        section = values
        for part in path:
            section = section[part]
        section[last] = value
    return build(values)


def _choose_methods(values: dict[str, Any], wanted: Sequence[str], config: Config) -> None:
    """Replace the methods in `values`, and drop the settings of methods no longer run."""
    if list(wanted) == ["all"]:
        situation, scenario = config.situation.for_methods(), config.scenario.name
        possible = methods.suitable(methods.METHODS.values(), situation, scenario)
        wanted = [name for name in possible if name != "retrain"]
    values["methods"] = list(wanted)
    values["settings"] = {n: s for n, s in config.settings.items() if n in wanted}


def digest(config: Config, fingerprints: dict[str, str]) -> str:
    """Return the SHA-256 that two runs share if they are of the same experiment.

    `fingerprints` are digests of what the config only names: data files and a user's own source.
    The executor is left out: all executors compute the same.
    """
    left_out = {"title": True, "executor": True, **config.absent()}
    values = config.model_dump(mode="json", exclude=left_out)
    if config.data.endswith(".npz"):
        values["data"] = Path(config.data).name  # the same file elsewhere is the same experiment
    canonical = json.dumps(
        {"version": RECORD_VERSION, "config": values, "fingerprints": fingerprints}, sort_keys=True
    )
    return hashlib.sha256(canonical.encode()).hexdigest()


def resolve_data_path(config: Config, folder: Path) -> Config:
    """Return `config` with a relative `.npz` path resolved from `folder`."""
    if not config.data.endswith(".npz") or Path(config.data).is_absolute():
        return config
    return config.model_copy(update={"data": str((folder / config.data).resolve())})


def _explain(error: ValidationError) -> str:
    expected: dict[str, list[str]] = {}
    sentences = []
    for item in error.errors():
        if item["type"] == "extra_forbidden":
            sentences.append(_unknown_key(item["loc"]))
        elif item["type"] == "value_error":
            sentences.append(str(item["ctx"]["error"]))
        else:
            key = ".".join(str(part) for part in item["loc"])
            allowed = str(item["msg"]).removeprefix("Input should ").removeprefix("be ")
            allowed = allowed.replace("an object", "a table")  # as TOML calls it
            if item["type"] == "too_short":
                allowed = f"at least {item['ctx']['min_length']} in it"
            found = shorten(repr(item["input"]), _SHOWN_CHARACTERS)
            expected.setdefault(f"{key} is {found}", []).append(allowed)
    sentences += [
        f"{found}, expected {' or '.join(allowed)}" for found, allowed in expected.items()
    ]
    return "; ".join(sentences)


def _unknown_key(path: tuple[str | int, ...]) -> str:
    section: Any = Config
    for part in path[:-1]:
        section = section.model_fields[str(part)].annotation
    allowed = list(section.model_fields)
    dotted = ".".join(str(part) for part in path)
    hint = did_you_mean(str(path[-1]), allowed)
    return f"unknown key {dotted!r}: {hint}allowed here: {', '.join(allowed)}"
