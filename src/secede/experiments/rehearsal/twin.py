"""The simulated twin of a federation: its config, and which methods can be rehearsed on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secede.erasure import EraseOptions, Home, ModelRegistry, check_options, rung_of
from secede.errors import ConfigError, did_you_mean
from secede.experiments import Config, load_dataset, override
from secede.unlearning import registry

# Where the config plants none. Of the leaver's samples more may be canaries than in a federation
# that is used: the twin's model serves nobody.
CANARIES = {"count": 16, "copies": 4, "max_share": 0.05}


@dataclass(frozen=True, kw_only=True)
class HomeFacts:
    """The federation that a twin stands for: what `secede erase` compares with its own home."""

    federation: str
    model: str  # digest of the model that served
    clients: tuple[str, ...]
    leaver: str


@dataclass(frozen=True, kw_only=True)
class Twin:
    """What is simulated: a config whose methods are the candidates, and whom it stands for."""

    config: Config
    max_rounds: int
    home: HomeFacts | None = None
    named: bool = False  # the user named the candidates

    def rounds_of(self, method: str, search: Path | None = None) -> int:
        """Return a candidate's rounds: one that retrains takes as many as the training did."""
        entry, _ = registry.create(method, self.config.settings.get(method), search=search)
        is_retraining = rung_of(entry) == "retraining"
        return self.config.training.rounds if is_retraining else self.max_rounds


def make_twin(
    config: Config,
    overrides: Mapping[str, Any],
    *,
    methods: Sequence[str] = (),
    max_rounds: int,
    home: Path | None = None,
    client: str | None = None,
) -> Twin:
    """Return the twin of a config, or of the federation in `home` with its model and data.

    `overrides` replace top-level keys of the config. The candidates are `methods`, or all that
    erase and can work here. With `home`, `client` is the leaver, or else the one at the place of
    the config's.
    """
    given = {key: value for key, value in overrides.items() if value is not None}
    config = config.model_copy(update=given)  # checked below, with its methods
    if client is not None and home is None:
        raise ConfigError(f"--client {client} needs --home: a config numbers its clients")
    facts, changes = _of_home(config, home, client) if home else (None, {})
    if not config.canaries.count:
        changes |= {f"canaries.{key}": value for key, value in CANARIES.items()}
    changes["methods"] = _candidates(config, methods)
    changes["training.retrain_again"] = True
    twin = override(config, changes)
    # As long as a candidate's rounds may be: one that retrains takes as many as the training.
    longest = max(max_rounds, twin.training.rounds)
    twin = override(twin, {"post_training.rounds": longest})
    _check_canaries(twin)
    return Twin(config=twin, max_rounds=max_rounds, home=facts, named=bool(methods))


def _candidates(config: Config, names: Sequence[str]) -> list[str]:
    """Return the methods to rehearse, each with no variant: `secede erase` takes none."""
    for name in names:
        registry.check_name(name)
        if name != registry.base_name(name):
            raise ConfigError(
                f"method {name!r} is a variant: `secede erase` takes a method's own name; give "
                f"{registry.base_name(name)!r}, and its settings as settings.{name} in the config"
            )
    check_options(EraseOptions(methods=tuple(names)))
    if names:
        return list(dict.fromkeys(names))
    situation, scenario = config.situation.for_methods(), config.scenario.name
    possible = registry.suitable(registry.METHODS.values(), situation, scenario)
    return [name for name in possible if name != "retrain" and registry.METHODS[name].erases]


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What serves in a home."""

    federation: str
    model: str  # digest
    clients: tuple[str, ...]
    counts: frozenset[int]  # of the clients that it carries, and that its predecessor did


def serving_model(folder: Path) -> Serving:
    """Return what serves in a home."""
    home = Home(folder)
    federation = home.federation
    with ModelRegistry(home.registry) as registry:
        model = registry.serving_model(federation.run)
        line = [each for each in registry.models() if each.digest in (model.digest, model.parent)]
    return Serving(
        federation=federation.name,
        model=model.digest,
        clients=model.clients,
        counts=frozenset(len(each.clients) for each in line),
    )


def _of_home(config: Config, home: Path, leaver: str | None) -> tuple[HomeFacts, dict[str, Any]]:
    """Return whom a home's twin stands for, and what it changes in the config."""
    serving = serving_model(home)
    clients = Home(home).federation.clients
    scopes = {each.name: each.scope for each in clients if each.name in serving.clients}
    names = tuple(scopes)
    place = _place(config, names, leaver, home)
    pinned = [scope.commitment.samples for scope in scopes.values() if scope.commitment]
    if len(pinned) < len(names):
        pinned = _in_proportion([scope.weight for scope in scopes.values()], _available(config))
    changes = {
        "clients": {
            "count": len(names),
            "leaver": place,
            "partition": "sizes",
            "sizes": tuple(pinned),
        },
        "training.rounds": max(scope.last_round for scope in scopes.values()),
    }
    facts = HomeFacts(
        federation=serving.federation, model=serving.model, clients=names, leaver=names[place]
    )
    return facts, changes


def _place(config: Config, names: Sequence[str], leaver: str | None, home: Path) -> int:
    if leaver is not None and leaver not in names:
        raise ConfigError(
            f"--client {leaver} is none that the model in {home} carries: "
            f"{did_you_mean(leaver, names)}expected one of {', '.join(names[:20])}"
        )
    place = config.clients.leaver if leaver is None else names.index(leaver)
    if place >= len(names):
        raise ConfigError(
            f"clients.leaver is {place}, and the model in {home} carries {len(names)} "
            "clients: name the leaver with --client"
        )
    return place


def _available(config: Config) -> int:
    """Return how many training samples the config deals."""
    if config.clients.sizes:
        return sum(config.clients.sizes)
    return len(load_dataset(config).train) - config.situation.server_data


def _in_proportion(weights: Sequence[float], total: int) -> list[int]:
    """Return sizes in proportion to the clients' weights in the mean, where none are pinned."""
    return [max(1, int(total * weight / sum(weights))) for weight in weights]


def _check_canaries(config: Config) -> None:
    """Raise if the leaver is known to be too small for canaries."""
    options, sizes = config.canaries.options(), config.clients.sizes
    if sizes and options and options.size(sizes[config.clients.leaver]) is None:
        raise ConfigError(
            f"the rehearsal needs canaries: {options.why_too_small(sizes[config.clients.leaver])};"
            " raise canaries.max_share in the config"
        )
