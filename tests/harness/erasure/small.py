"""A federation whose erasure takes a fraction of a second, in a home folder of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from harness import tiny
from harness.lines import passed_to
from secede import state as states
from secede.erasure.documents.receipt import RECEIPT_TYPE
from secede.erasure.documents.request import new_request, sign_request
from secede.erasure.planning.options import EraseOptions
from secede.erasure.signing.keys import load_private_key
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.journal_entries import Entry
from secede.erasure.storage.ledger import Ledger
from secede.erasure.storage.model_registry import ModelRegistry
from secede.erasure.storage.progress import Progress
from secede.erasure.storage.transition_details import Exchange
from secede.erasure.workflow import erase as workflow
from secede.erasure.workflow.erase import Outcome
from secede.experiments import presets
from secede.federation.engine import ClientSide, Cost, ReplyT, RoundReply, Update
from secede.simulation.backend import SimulatedBackend
from secede.simulation.new_federation import create_federation as found
from secede.state import State
from secede.unlearning.method import LocalResult, Server

HAPPY = ["received", "planned", "local-step", "guarded"]  # the way of an honest erasure begins
NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
NAME = "north"
CONFIG = """
data = "tiny.npz"
model = "harness.erasure.small:build"
clients.count = 4
device = "cpu"
executor = "loop"
scenario = { name = "backdoor", share = 0.5 }
training = { rounds = 4, batch_size = 16, learning_rate = 0.1 }
"""
DEEP = CONFIG.replace("small:build", "small:build_deep")  # something can fade
Tamper = Callable[[State], State]
Rounds = dict[tuple[str, tuple[int, ...], str, int], RoundReply]  # by what went in
# A step that moves little: what is tested is the way, not the method.
STEP = {"epochs": 1, "batch_size": 16, "learning_rate": 0.1, "stop_distance": 100.0}


def options(**changes: Any) -> EraseOptions:
    """Return options with that local step; with `max_rounds=0` none must be taken."""
    if changes.get("max_rounds") == 0:
        changes = {"min_rounds": 0, **changes}
    return EraseOptions(
        methods=("projected-ascent",), settings={"projected-ascent": STEP}, **changes
    )


def build(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a linear model."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def build_deep(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a model with a hidden layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes))


def build_normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the same with a hidden layer whose weight is made of two others."""
    model = build_deep(shape, classes)
    assert isinstance(model, nn.Sequential)
    weight_norm(model[1])
    return model


class Own(nn.Module):
    """A layer written by hand, whose last input nobody's samples reach."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(16, 65))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(nn.functional.pad(x, (0, 1)), self.weight)


def build_own(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the same with a hidden layer that is no layer of torch."""
    return nn.Sequential(nn.Flatten(), Own(), nn.ReLU(), nn.Linear(16, classes))


def make(folder: Path, config: str = CONFIG) -> Home:
    """Train the federation into `folder`/home."""
    path = tiny.write(folder, config)
    return found(folder / "home", presets.load(str(path)), name=NAME, now=NOW)


def copy(home: Home, to: Path) -> Home:
    """Return the same home in another folder."""
    shutil.copytree(home.path, to)
    return Home(to)


def serving(home: Home) -> str:
    with ModelRegistry(home.registry, read_only=True) as registry:
        model = registry.serving(NAME)
    assert model is not None
    return model.digest


def ask(home: Home, client: str = "site-0", *, model: str | None = None) -> bytes:
    """Return a client's signed request."""
    made = new_request(
        federation=NAME,
        client=client,
        trigger="objection",
        model=model or serving(home),
        server=home.server_id,
        now=NOW,
    )
    return sign_request(made, load_private_key(home.path / "sites" / f"{client}.key"))


def receive(home: Home, client: str = "site-0") -> Entry:
    return workflow.receive(home, ask(home, client), NOW)


def erase(
    home: Home,
    number: int,
    *,
    ground: SimulatedBackend | None = None,
    how: EraseOptions | None = None,
    now: datetime = NOW,
    tell: Callable[[str], None] = lambda _: None,
) -> Outcome:
    with passed_to(tell):
        return workflow.erase(
            home,
            ground or SimulatedBackend(home),
            number,
            key=home.server_key(),
            clock=lambda: now,
            options=how or options(),
        )


def course(home: Home, number: int = 1) -> Progress:
    with Journal(home.journal, read_only=True) as journal:
        return Progress.read(journal, journal.entry(number))


def way(home: Home, number: int = 1) -> list[str]:
    """Return a request's states in order."""
    return [transition.state for transition in course(home, number).transitions]


def told(home: Home, number: int = 1) -> dict[str, Any]:
    """Return a receipt's predicate."""
    from secede.erasure.documents.receipt import MAX_RECEIPT_BYTES
    from secede.erasure.signing import dsse

    with Journal(home.journal, read_only=True) as journal:
        path = home.receipt_path(journal.entry(number).digest)
    payload = dsse.unverified_payload(path.read_bytes(), RECEIPT_TYPE, limit=MAX_RECEIPT_BYTES)
    found: dict[str, Any] = json.loads(payload)["predicate"]
    return found


def timeless(home: Home, number: int = 1) -> dict[str, Any]:
    """Return everything that an erasure leaves, without times: equal for equal erasures."""
    with Ledger(home.ledger, read_only=True) as ledger:
        ledger.verify()
        rows = [(row.kind, row.body) for row in ledger.rows()]
    predicate = told(home, number) if way(home, number)[-1] == "promoted" else {}
    times = {"request": ("received", "acknowledged", "promoted", "completed")}
    for part, names in {**times, "costs": ("seconds",), "ledger": ("hash",)}.items():
        for key in names:
            predicate.get(part, {}).pop(key, None)
    for thing in predicate.get("destroyed", ()):
        del thing["at"]
    # The receipt's digest covers its times.
    rows = [(kind, {k: v for k, v in body.items() if k != "receipt"}) for kind, body in rows]
    for _, body in rows:
        body.get("scalars", {}).pop("receipt", None)
        for key in ("sketch", "seed", "acknowledged"):  # the seed is drawn; a time
            body.pop(key, None)
    return {
        "serving": serving(home),
        "predicate": predicate,
        "ledger": rows,
        "way": way(home, number),
        "files": sorted(
            str(path.relative_to(home.path))
            for path in home.path.rglob("*")
            if path.is_file() and not path.name.endswith(("-wal", "-shm"))
        ),
    }


class Hostile(SimulatedBackend):
    """A federation whose leaver, or whose last retained clients, send something else.

    Several that share `rounds` train each round once.
    """

    def __init__(
        self,
        home: Home,
        *,
        leaver: Tamper | None = None,
        retained: Callable[[Update, State], State] | None = None,
        malicious: int = 1,
        silent: bool = False,
        rounds: Rounds | None = None,
        **options: Any,
    ) -> None:
        super().__init__(home, **options)
        self.rounds = rounds
        self.leaver_sends, self.retained_send = leaver, retained
        self.malicious, self.silent = malicious, silent

    def server(self, client: str, retained: Sequence[str], state: State, seconds: float) -> Server:
        plain = super().server(client, retained, state, seconds)
        return replace(plain, engine=_Wire(self, plain))


class _Wire:
    """An engine that lets hostile clients change what they send."""

    def __init__(self, ground: Hostile, server: Server) -> None:
        self.ground, self.inner, self.leaver = ground, server.engine, server.leaver

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        reply = self._trained(state, clients, phase, number)
        if self.ground.retained_send is None:
            return reply
        updates = list(reply.updates)
        for place in range(-self.ground.malicious, 0):
            evil = updates[place]
            sent = self.ground.retained_send(evil, state)
            updates[place] = Update(evil.client, sent, evil.samples)
        return RoundReply(tuple(updates), reply.cost)

    def _trained(self, state: State, clients: Sequence[int], phase: str, number: int) -> RoundReply:
        """Train, unless the very same round was trained before: it would give the same bits."""
        rounds = self.ground.rounds
        key = (states.digest(state), tuple(clients), phase, number)
        if rounds is None or key not in rounds:
            reply = self.inner.train_round(state, clients, phase=phase, number=number)
            rounds = {} if rounds is None else rounds
            rounds[key] = reply
        return rounds[key]

    def ask(
        self,
        client: int,
        task: Callable[[ClientSide], ReplyT],
        *,
        global_state: State,
        number: int = 0,
    ) -> tuple[ReplyT, Cost]:
        from secede.errors import SilentError

        if self.ground.silent and client == self.leaver:
            raise SilentError("client 'site-0' does not answer")
        reply, cost = self.inner.ask(client, task, global_state=global_state, number=number)
        if isinstance(reply, LocalResult) and self.ground.leaver_sends is not None:
            reply = replace(reply, state=self.ground.leaver_sends(reply.state))
        return reply, cost


def broken(update: Update, start: State) -> State:
    """Send what is no update."""
    return states.scaled(update.state, float("nan"))


def later(**parts: float) -> datetime:
    return NOW + timedelta(**parts)


def left_out(home: Home, number: int = 1) -> set[tuple[str, str]]:
    """Return whom the journal names, and why."""
    return {
        (client.client, client.why)
        for transition in course(home, number).transitions
        for client in (getattr(transition.details, "exchange", None) or Exchange()).left_out
    }


def model(home: Home) -> dict[str, Any]:
    return states.load(home.model_path(serving(home)))[0]


def rows(home: Home, kind: str) -> list[Any]:
    with Ledger(home.ledger, read_only=True) as ledger:
        return [row for row in ledger.rows() if row.kind == kind]


def slow(*values: Any) -> Any:
    """Return a case that only the slow tests take."""
    return pytest.param(*values, marks=pytest.mark.slow)
