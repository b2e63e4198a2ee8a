"""A leaver that lies about what its canaries say, through whole erasures.

Five clients of 1,600 embedded images and `mlp`, ten rounds of training, one seed: what is counted
are the rungs and their rounds. Print the table: python -m benchmarks.threats.canary_lies
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from secede.erasure import (
    CanaryReading,
    EraseOptions,
    Home,
    Plan,
    SignedReading,
    load_private_key,
    new_request,
    receive,
    sign_reading,
    sign_request,
)
from secede.erasure import erase as run_erasure
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.progress import Progress
from secede.erasure.storage.transition_details import CanariesDetails, RoundDetails
from secede.experiments.config import parse
from secede.federation.engine import Cost
from secede.simulation.backend import SimulatedBackend
from secede.simulation.new_federation import create_federation
from secede.state import State

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
LEAVER = "site-0"
CONFIG = """
model = "mlp"
device = "cpu"
clients.count = 5
scenario = { name = "backdoor", share = 0.5 }
training = { rounds = 10, batch_size = 32, learning_rate = 0.02 }
canaries.count = 10
"""
Say = Callable[[CanaryReading, bool], Mapping[str, Any]]  # of a reading, and whether it is before


def remembered(reading: CanaryReading) -> dict[str, Any]:
    """Return counts of a model that ranks all drawn candidates first."""
    zeros = (0,) * (len(reading.ranks[0]) - 1)
    return {"ranks": ((reading.count, *zeros),), "wins": reading.count}


def by_chance(reading: CanaryReading) -> dict[str, Any]:
    """Return counts of a model that knows nothing."""
    size = len(reading.ranks[0])
    counts = [reading.count // size + (rank < reading.count % size) for rank in range(size)]
    return {"ranks": (tuple(counts),), "wins": reading.count // 2}


def honest(reading: CanaryReading, before: bool) -> Mapping[str, Any]:
    """Change nothing."""
    return {}


CASES: Sequence[tuple[str, Say, Mapping[str, Any]]] = (
    ("says what it reads", honest, {}),
    ("says that everything is remembered, always", lambda said, before: remembered(said), {}),
    (
        "says that nothing is remembered afterwards",
        lambda said, before: {} if before else by_chance(said),
        {},
    ),
    ("says that nothing was remembered before either", lambda said, before: by_chance(said), {}),
    ("says what it reads; `--retrain`", honest, {"from_rung": "retraining"}),
)


class Liar(SimulatedBackend):
    """A leaver that changes what it reads, and signs it."""

    say: Say

    def read_canaries(
        self, client: str, state: State, plan: Plan, model: str
    ) -> tuple[SignedReading, Cost]:
        """Return a signed reading with other counts."""
        signed, cost = super().read_canaries(client, state, plan, model)
        said = self.say(signed.reading, model == plan.model)
        key = load_private_key(self._home.path / "sites" / f"{client}.key")
        return sign_reading(signed.reading.model_copy(update=dict(said)), key), cost


@dataclass(frozen=True)
class Ended:
    """How an erasure ended."""

    rung: str
    verdict: str
    rounds: int
    looks: int


def erased(home: Home, say: Say, **options: Any) -> Ended:
    """Erase the leaver from a home, and return how that ended."""
    (model,) = home.path.glob("models/*.safetensors")
    request = new_request(
        federation="north",
        client=LEAVER,
        trigger="objection",
        model=model.stem,
        server=home.server_id,
        now=NOW,
    )
    key = load_private_key(home.path / "sites" / f"{LEAVER}.key")
    number = receive(home, sign_request(request, key), NOW).id
    backend = Liar(home)
    backend.say = say
    outcome = run_erasure(
        home,
        backend,
        number,
        key=home.server_key(),
        clock=lambda: NOW,
        options=EraseOptions(**options),
    )
    with Journal(home.journal, read_only=True) as journal:
        progress = Progress.read(journal, journal.entry(number))
    details = [transition.details for transition in progress.transitions]
    readings = [each for each in details if isinstance(each, CanariesDetails)]
    return Ended(
        rung=outcome.rung or outcome.state,
        verdict=readings[-1].verdict if readings else "by construction",
        rounds=sum(isinstance(each, RoundDetails) for each in details),
        looks=len(readings),
    )


def markdown() -> Iterator[str]:
    """Yield the table's lines, as they are measured."""
    logging.getLogger("secede").setLevel(logging.ERROR)
    yield "| the leaver | rung that served | last look | looks | rounds of the others |"
    yield "|---|---|---|---|---|"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "founded")
        founded = create_federation(path, parse(CONFIG, name="lies"), name="north", now=NOW)
        for number, (title, say, options) in enumerate(CASES):
            home = Home(Path(folder, str(number)))
            shutil.copytree(founded.path, home.path)
            ended = erased(home, say, **options)
            row = (title, ended.rung, ended.verdict, ended.looks, ended.rounds)
            yield f"| {' | '.join(map(str, row))} |"


def main() -> None:
    """Print them."""
    for line in markdown():
        print(line, flush=True)


if __name__ == "__main__":
    main()
