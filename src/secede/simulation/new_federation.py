"""Creation of a simulated federation: training, and its home, ready for requests.

Done again after a kill it gives the same home. `federation.json` is written last and makes it one.
"""

from __future__ import annotations

import logging
import shutil
from datetime import datetime
from pathlib import Path

from secede import files
from secede import state as states
from secede.canaries import canary_rows
from secede.data import Samples
from secede.erasure import (
    CanaryCommitment,
    Candidate,
    Client,
    Commitment,
    Home,
    Journal,
    Ledger,
    ModelBody,
    ModelRegistry,
    Scope,
    bind_federation,
    check_name,
    check_text,
    commit_to_canaries,
    commit_to_samples,
    delivered_rows,
    generate_key_pair,
    new_salt,
)
from secede.erasure import Federation as Record
from secede.errors import ConfigError, StorageError
from secede.experiments import TRAINING, Config, Federation, resolve_device
from secede.experiments import config as configs
from secede.federation.engine import aggregate
from secede.simulation.backend import Recipe, Sites
from secede.simulation.commitments import sample_rows, site_name
from secede.state import State

logger = logging.getLogger(__name__)


@files.private()
def create_federation(
    path: Path,
    config: Config,
    *,
    name: str,
    seed: int = 0,
    search: Path | None = None,
    now: datetime,
    controller: str | None = None,
    contact: str | None = None,
) -> Home:
    """Train the federation of `config` and register it in the folder `path`.

    `controller` is who is responsible for the data, and `contact` whom to ask, for receipts.
    """
    check_name(name, "federation")
    for text, what in ((controller, "controller"), (contact, "contact")):
        if text is not None:
            check_text(text, what)
    # A live federation has a log of its rounds before its first erasure makes it a home.
    if any((path / file).exists() for file in ("federation.json", "rounds.jsonl")):
        raise ConfigError(f"{path} is a federation's home already: take another folder")
    try:
        files.make_folder(path)
        path.chmod(0o700)
    except OSError as error:
        raise StorageError(f"cannot make the folder {path}: {error.strerror}") from error
    home = Home(path)
    config = configs.override(config, {"device": resolve_device(config.device)})
    recipe = Recipe(config=config, seed=seed, search=None if search is None else str(search))
    content = recipe.model_dump_json(indent=1).encode()
    files.write_bytes(path / "recipe.json", content)
    names = tuple(site_name(number) for number in range(config.clients.count))
    _make_salts(home, names)
    federation = recipe.build(home)
    state = _train(home, recipe, federation)
    _make_keys(home, names)
    clients = _clients(home, federation, names, config.training.rounds)
    recipe_digest = files.digest(path / "recipe.json")
    record = Record(
        name=name,
        run=name,
        clients=clients,
        recipe=recipe_digest,
        controller=controller,
        contact=contact,
    )
    _register(home, record, names, state, config.training.rounds, now)
    home.save_federation(record)
    return home


def _train(home: Home, recipe: Recipe, federation: Federation) -> State:
    engine, rounds = federation.engine, recipe.config.training.rounds
    state: State = engine.initial_state("initial")
    history = recipe.history(home)
    if history is not None:
        history.delete()  # of an attempt that was cut short
        size, everyone = states.size_bytes(state), len(federation.everyone)
        history.check_fits(state_bytes=size, clients=everyone, rounds=rounds)
    for number in range(1, rounds + 1):
        reply = engine.train_round(state, federation.everyone, phase=TRAINING, number=number)
        if history is not None:
            history.record(number, state, reply.updates)
        state = aggregate(reply.updates)
        logger.info(f"training round {number} of {rounds}")
    if history is not None:
        history.save_sums(history.sums)
    return state


def _make_keys(home: Home, names: tuple[str, ...]) -> None:
    """Make the server's keys, and each client's, whose public half goes to the server."""
    home.make_server_key()
    sites = home.path / "sites"
    for name in names:
        if not (sites / f"{name}.pub").exists():
            (sites / f"{name}.key").unlink(missing_ok=True)
            generate_key_pair(sites, name)
        try:
            shutil.copyfile(sites / f"{name}.pub", home.keys / f"{name}.pub")
        except OSError as error:
            raise StorageError(f"cannot write to {home.keys}: {error.strerror}") from error


def _clients(
    home: Home, federation: Federation, names: tuple[str, ...], rounds: int
) -> tuple[Client, ...]:
    """Keep each client's last state at its site; return what each contributed."""
    sites, clients = Sites(home.path / "sites"), list[Client]()
    for number, name in enumerate(names):
        own = federation.engine.own[number]
        sites.save(name, own, "")
        scope = Scope(
            first_round=1,
            last_round=rounds,
            rounds=rounds,
            weight=own.weight,
            commitment=_commit(home, name, federation.engine.clients[number]),
            canaries=_commit_to_canaries(federation, number),
        )
        clients.append(Client(name=name, number=number, scope=scope))
    return tuple(clients)


def _make_salts(home: Home, names: tuple[str, ...]) -> None:
    """Make each client's salt, which stays at its site: its canaries come from it."""
    files.make_folder(home.path / "sites")
    for name in names:
        path = home.path / "sites" / f"{name}.salt"
        if not path.exists():
            files.create(path, new_salt(), 0o600)


def _commit(home: Home, name: str, samples: Samples) -> Commitment:
    """Commit to a client's samples, canaries included."""
    salt = (home.path / "sites" / f"{name}.salt").read_bytes()
    return commit_to_samples(sample_rows(samples), salt)


def _commit_to_canaries(federation: Federation, number: int) -> CanaryCommitment | None:
    """Commit to a client's canaries, if it planted some."""
    planted = federation.canaries.get(number)
    if planted is None:
        return None
    return commit_to_canaries(
        canary_rows(planted.canaries),
        planted.canaries.secret,
        kind=planted.canaries.options.kind,
        copies=planted.copies,
        samples=len(federation.engine.clients[number]),
    )


def _register(
    home: Home, record: Record, names: tuple[str, ...], state: State, rounds: int, now: datetime
) -> None:
    """Put the trained model into service, and into the ledger who is there and received it."""
    run, digest = record.run, states.digest(state)
    states.save(state, home.model_path(digest))
    with Journal(home.journal), ModelRegistry(home.registry) as registry:
        registry.promote(
            Candidate(digest=digest, parent=None, run=run, round=rounds, clients=names), now
        )
    with Ledger(home.ledger) as ledger, Journal(home.journal) as journal:
        body = ModelBody(model=digest, parent=None, run=run, round=rounds, status="serving")
        ledger.append_once(body, now)
        for part in delivered_rows(digest, names):
            ledger.append_once(part, now)
        bind_federation(home, journal, ledger, record, now)
