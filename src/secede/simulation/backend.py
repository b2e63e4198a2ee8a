"""The simulated backend of an erasure: server and clients live in one home folder.

A client's last own state, which a real federation has at the client, lies in `sites/` here. The
server may read it as far as single updates are not hidden. The federation is built again from its
recipe on every start, to the same bits.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import nn

from secede import __version__, files
from secede import state as states
from secede.canaries import Canaries, read
from secede.data import Samples
from secede.erasure import (
    Counts,
    FederationBackend,
    Home,
    ModelRegistry,
    Plan,
    Scope,
    Score,
    Setting,
    SignedReading,
    Software,
    load_private_key,
    new_reading,
    score_beside_reference,
    sign_reading,
)
from secede.errors import ConfigError, RecordError, SilentError, StorageError, TrustError
from secede.experiments import Config, Federation, federate, load_dataset, make_deterministic
from secede.federation.engine import ClientSide, Cost, OwnState, ReplyT, RoundReply
from secede.federation.simulator import Simulator
from secede.simulation.commitments import check_commitment, read_salts
from secede.state import State
from secede.unlearning import Server, Situation, UpdateHistory
from secede.verification import evaluate

LEVEL = 0.95  # of the intervals of held-out scores
_ORIGIN = "trained_from"  # in the metadata of a client's state


class Recipe(BaseModel):
    """What a simulated federation is built from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: Config
    seed: int
    search: str | None = None  # a folder with the user's own model

    @classmethod
    def load(cls, home: Home) -> Recipe:
        """Read the recipe of a home."""
        path = home.path / "recipe.json"
        try:
            content = path.read_bytes()
            return cls.model_validate_json(content)
        except ValidationError as error:
            if b'"engine":' in content:  # a live federation's names it
                raise ConfigError(
                    f"{home.path} is the home of a live federation: erase with `secede flower "
                    "erase`, or with the job on NVFlare (docs/flower.md, docs/nvflare.md)"
                ) from None
            raise RecordError(f"{path}: damaged; restore it from a backup") from error
        except OSError as error:
            raise RecordError(f"{path}: missing; restore it from a backup") from error

    def build(self, home: Home) -> Federation:
        """Return the federation of a home, untrained; every client with a salt plants canaries."""
        make_deterministic(self.config.precision)
        search = None if self.search is None else Path(self.search)
        data = load_dataset(self.config)
        salts = read_salts(home, self.config.clients.count)
        return federate(self.config, data, self.seed, search=search, salts=salts)

    def history(self, home: Home) -> UpdateHistory | None:
        """Return the history that the server keeps while it trains, if it keeps one."""
        situation = self.config.situation
        if not situation.history:
            return None
        return UpdateHistory(
            home.path / "history",
            interval=situation.history_interval,
            limit_bytes=int(situation.history_limit_gb * 1e9),
        )


@dataclass(frozen=True)
class Sites:
    """Each client's last own state, in a file of its own."""

    folder: Path

    def save(self, name: str, own: OwnState, trained_from: str, *, is_next: bool = False) -> None:
        """Keep a client's last state; the next one lies beside the one in use until `commit`."""
        metadata = {"weight": repr(own.weight), _ORIGIN: trained_from}
        states.save(own.state, self._path(name, ".next" if is_next else ""), metadata)

    def load(self, name: str) -> OwnState | None:
        """Return a client's last state; None if none belongs to the serving model."""
        if not self._path(name).exists():
            return None
        state, metadata = states.load(self._path(name))
        return OwnState(state, float(metadata["weight"]))

    def commit(self, name: str, trained_from: str | None) -> None:
        """Take the next state into use, if it is of the round that made the new model.

        That round began at `trained_from`. Without one, the client has no share in the new model.
        """
        next_path = self._path(name, ".next")
        if trained_from is not None and self._origin(next_path) == trained_from:
            try:
                files.move(next_path, self._path(name))
            except OSError as error:
                raise StorageError(f"cannot move {next_path}: {error.strerror}") from error
        self.delete_next(name)
        own = self.load(name)
        if own is not None and self._origin(self._path(name)) != trained_from and own.weight:
            self.save(name, OwnState(own.state, 0.0), "")

    def set_weight(self, name: str, weight: float) -> None:
        """Set the share that a client's next state has in the mean."""
        path = self._path(name, ".next")
        if path.exists():
            state, metadata = states.load(path)
            if metadata["weight"] != repr(weight):
                states.save(state, path, {**metadata, "weight": repr(weight)})

    def deleted_files(self, leaver: str, names: Iterable[str]) -> list[Path]:
        """Return the files that are deleted when `leaver` is erased, or replaced."""
        return [self._path(leaver), *(self._path(name, ".next") for name in names)]

    def delete_next(self, name: str) -> None:
        """Delete a client's next state."""
        files.delete(self._path(name, ".next"))

    def delete(self, name: str) -> None:
        """Delete what is kept of a client."""
        self.delete_next(name)
        files.delete(self._path(name))

    def _origin(self, path: Path) -> str | None:
        return states.load(path)[1].get(_ORIGIN) if path.exists() else None

    def _path(self, name: str, ending: str = "") -> Path:
        return self.folder / f"{name}{ending}.safetensors"


@dataclass(frozen=True)
class HomeEngine:
    """The simulator, with clients that may be gone or slow and keep their states on the disk."""

    simulator: Simulator
    sites: Sites
    names: Mapping[int, str]
    gone: frozenset[int] = frozenset()
    timeouts: Mapping[int, float] = field(default_factory=dict)  # seconds for some clients' answers
    timeout: float = float("inf")  # seconds for all the others
    check_update: Callable[[str, str], None] = lambda name, base: None  # raises to refuse one

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        """Train those who are present; the registry of models may refuse their updates.

        Each client keeps its new state beside the one that belongs to the old model.
        """
        base = states.digest(state)
        for client in clients:
            self.check_update(self.names[client], base)
        present = [client for client in clients if client not in self.gone]
        reply = self.simulator.train_round(state, present, phase=phase, number=number)
        total = sum(update.samples for update in reply.updates)
        for update in reply.updates:
            own = OwnState(update.state, update.samples / total)
            self.sites.save(self.names[update.client], own, base, is_next=True)
        return reply

    def ask(
        self,
        client: int,
        task: Callable[[ClientSide], ReplyT],
        *,
        global_state: State,
        number: int = 0,
    ) -> tuple[ReplyT, Cost]:
        """Ask a client that is present; SilentError if its answer comes too late."""
        if client in self.gone:
            raise SilentError(f"client {self.names[client]!r} does not answer")
        started = time.monotonic()
        reply = self.simulator.ask(client, task, global_state=global_state, number=number)
        timeout = self.timeouts.get(client, self.timeout)
        if time.monotonic() - started > timeout:
            raise SilentError(f"client {self.names[client]!r} took more than {timeout:g} seconds")
        return reply


def client_samples(home: Home, name: str) -> Samples:
    """Return a client's samples, from the home's recipe."""
    return Recipe.load(home).build(home).engine.clients[home.federation.client(name).number]


def client_canaries(home: Home, name: str) -> tuple[Canaries, Callable[[State], nn.Module]]:
    """Return a client's canaries, from its salt, and what makes a model of a state."""
    federation = Recipe.load(home).build(home)
    planted = federation.canaries.get(home.federation.client(name).number)
    if planted is None:
        raise ConfigError(f"{name!r} planted no canaries, or the salt at its site is gone")
    return planted.canaries, federation.engine.model


class SimulatedBackend(FederationBackend):
    """The federation that a home's recipe describes; `gone` names clients that do not answer."""

    def __init__(
        self, home: Home, *, gone: Sequence[str] = (), federation: Federation | None = None
    ) -> None:
        self._home, self._record, self._recipe = home, home.federation, Recipe.load(home)
        if files.digest(home.path / "recipe.json") != self._record.recipe:
            raise RecordError(f"{home.path / 'recipe.json'} was changed: restore it from a backup")
        self._federation = federation or self._recipe.build(home)
        simulator = self._federation.engine
        simulator.remembers = False  # what belongs to the serving model stays
        self.clients = {client.name: client.number for client in self._record.clients}
        self._pinned = {
            client.name: client.scope.commitment.samples
            for client in self._record.clients
            if client.scope.commitment is not None
        }
        self._check_samples()
        self._sites, self._gone = Sites(home.path / "sites"), frozenset(gone)
        self._simulator = simulator
        config = self._recipe.config
        self.device = torch.device(config.device)
        for name, number in self.clients.items():
            if (own := self._sites.load(name)) is not None:
                state = states.to(own.state, self.device)
                simulator.own[number] = OwnState(state, own.weight)
        self.engine = HomeEngine(
            simulator,
            self._sites,
            {number: name for name, number in self.clients.items()},
            frozenset(self.clients[name] for name in self._gone),
            check_update=self._check_update,
        )
        self._history = self._recipe.history(home) if (home.path / "history").exists() else None
        model = simulator.model(simulator.initial_state("initial")).eval()
        outputs = model(self._federation.test.x[:1])
        self.classes = int(outputs.shape[1])
        self.scenario, self.training_rounds = config.scenario.name, config.training.rounds

    def _check_samples(self) -> None:
        """Raise if a client's number, samples or commitment are another's."""
        for client in self._record.clients:
            if client.scope.commitment is not None:
                samples = self._federation.engine.clients[client.number]
                try:
                    check_commitment(self._home, client.name, samples, client.scope.commitment)
                except TrustError as error:
                    raise TrustError(
                        f"client {client.name!r} has number {client.number} in federation.json, "
                        f"whose samples are not those it committed to: {error}"
                    ) from None

    def situation(self, client: str) -> Situation:
        """Return what there is to erase `client` with, by the config and who is gone."""
        return replace(
            self._recipe.config.situation.for_methods(),
            leaver_online=client not in self._gone,
            history=self._history is not None,
        )

    def scope(self, client: str) -> Scope:
        """Return what `client` contributed while the first model was trained."""
        return self._record.client(client).scope

    def samples(self, client: str) -> int | None:
        """Return how many samples the federation pinned when it was created."""
        return self._pinned.get(client)

    def set_timeout(self, seconds: float) -> None:
        """Set the time that each retained client has for one answer."""
        self.engine = replace(self.engine, timeout=seconds)

    def server(self, client: str, retained: Sequence[str], state: State, timeout: float) -> Server:
        """Return what a method finds."""
        leaver = self.clients[client]
        own = self._simulator.own.get(leaver)
        return Server(
            engine=replace(self.engine, timeouts={leaver: timeout}),
            global_state=state,
            leaver=leaver,
            retained=tuple(self.clients[name] for name in retained),
            fresh_state=lambda: self._simulator.initial_state("retraining"),
            fresh_model=lambda: self._simulator.fresh_model("template"),
            history=self._history,
            unlabelled=self._federation.unlabelled,
            weight=None if own is None else own.weight,
        )

    def last_update(self, client: str) -> OwnState | None:
        """Return the client's last update, unless secure aggregation hides it."""
        if self._recipe.config.situation.secure_aggregation:
            return None
        return self._simulator.own.get(self.clients[client])

    def fresh_model(self, number: int) -> nn.Module:
        """Return the n-th fresh model."""
        return self._simulator.fresh_model("guard", number)

    def scores(self, client: str, before: State, after: State) -> tuple[Score, ...]:
        """Measure on the held-out samples, and on the probe if it is of this leaver."""
        federation = self._federation
        scores = [self._score("usefulness", "right answers on held-out samples", before, after)]
        if self.clients[client] == federation.leaver:
            for name in federation.probe.measures:
                words = f"{name.replace('_', ' ')} on held-out samples"
                scores.append(self._score("leaver", words, before, after, name))
        return tuple(scores)

    def training(self) -> dict[str, Setting]:
        """Return the local training's settings, and the seed."""
        settings = self._recipe.config.training.local()
        return {**settings, "seed": self._recipe.seed}

    def read_canaries(
        self, client: str, state: State, plan: Plan, model: str
    ) -> tuple[SignedReading, Cost]:
        """Let a client read its canaries in a model, with the salt and the key at its site."""
        planted = self._federation.canaries.get(self.clients[client])
        if client in self._gone or planted is None:
            raise SilentError(f"client {client!r} does not answer")
        started = time.monotonic()
        committed = self.scope(client).canaries
        assert committed is not None  # it planted them
        reading = new_reading(
            read(self._simulator.model(state), planted.canaries, device=self.device),
            committed.commitment.root,
            federation=plan.federation,
            client=client,
            request=plan.request,
            model=model,
        )
        key = load_private_key(self._sites.folder / f"{client}.key")
        signed = sign_reading(reading, key)
        cost = Cost(
            download_bytes=states.size_bytes(state),
            upload_bytes=len(signed.model_dump_json()),
            seconds=time.monotonic() - started,
        )
        return signed, cost

    def held_out(self, state: State) -> Counts:
        """Count right answers by class on the held-out samples."""
        test = self._federation.test
        answers = evaluate(self._simulator.model(state), test).logits.argmax(dim=1).cpu()
        labels = test.y.cpu()
        right, samples = (
            torch.bincount(part, minlength=self.classes).tolist()
            for part in (labels[answers == labels], labels)
        )
        return Counts(tuple(right), tuple(samples))

    def aggregated(self, shares: Mapping[str, float]) -> None:
        """Let each client keep its new state with its share; outside of the mean it keeps none."""
        for name in self.clients:
            if name in shares:
                self._sites.set_weight(name, shares[name])
            else:
                self._sites.delete_next(name)

    def software(self) -> Software:
        """Return versions and what decides how numbers are rounded."""
        versions = {"secede": __version__, "python": platform.python_version()}
        return Software(
            versions={**versions, "torch": torch.__version__},
            environment={
                "engine": "simulator",
                "device": self.device.type,
                "executor": self._simulator.choice.name,
                "precision": self._recipe.config.precision,
                "threads": str(torch.get_num_threads()),
            },
        )

    def holdings(self, client: str) -> tuple[str, ...]:
        """Return what lies here of the client; the history holds everybody's updates."""
        has_update = self.last_update(client) is not None
        return ("last-update",) * has_update + ("history",) * (self._history is not None)

    def files_to_destroy(self, client: str) -> Sequence[Path]:
        """Return the client's states, those that others gave up, and the history's files."""
        states_of = self._sites.deleted_files(client, self.clients)
        history = self._home.path / "history"
        return [*states_of, *(path for path in history.rglob("*") if not path.is_dir())]

    def roll_back(self) -> None:
        """Let every client delete its state of a round that led nowhere."""
        for name in self.clients:
            self._sites.delete_next(name)

    def commit(self, client: str, trained_from: str | None) -> None:
        """Keep the retained clients' states of the last round, and nothing of `client`."""
        self._sites.delete(client)
        for name in self.clients.keys() - {client}:
            self._sites.commit(name, trained_from)
        if self._history is not None:
            self._history.delete()

    def _check_update(self, client: str, base: str) -> None:
        """Refuse an update of an erased client, or from a retired model."""
        with ModelRegistry(self._home.registry, read_only=True) as registry:
            registry.check_update(client, base, in_progress=None)

    def _score(
        self, about: str, words: str, before: State, after: State, probe: str | None = None
    ) -> Score:
        federation = self._federation
        samples = federation.test if probe is None else federation.probe.samples
        mask = None if probe is None else federation.probe.measures[probe]
        old, new = (
            evaluate(self._simulator.model(state), samples).accuracy(mask)
            for state in (before, after)
        )
        return score_beside_reference(about, words, new, old, LEVEL)
