"""The same attacks through the whole workflow: refused or rolled back, then the next rung.

Print the table (some minutes): python -m benchmarks.threats.workflow_attacks
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from benchmarks.threats import attacks
from benchmarks.threats.lab import (
    AFTERWARDS,
    CLIENTS,
    IMAGES,
    LEAVER,
    PLANTED,
    ROUNDS,
    ROUNDS_OF_NEXT_RUNG,
    SEEDS,
    SMUGGLED,
    SMUGGLED_INSIDE,
    Lab,
    network,
)
from harness.erasure import small
from secede import state as states
from secede.data import catalog, partition
from secede.erasure.planning.options import EraseOptions
from secede.erasure.workflow.erase import Outcome
from secede.experiments.config import parse
from secede.scenarios.backdoor import Backdoor
from secede.seeding import generator
from secede.simulation.backend import SimulatedBackend
from secede.simulation.new_federation import create_federation
from secede.state import State

CONFIG = f"""
data = "mnist-10k"
model = "benchmarks.threats.workflow_attacks:build"
device = "cpu"
executor = "cpu"
clients = {{ count = {CLIENTS}, leaver = {LEAVER}, partition = "sizes",
            sizes = {[IMAGES] * CLIENTS} }}
scenario = {{ name = "backdoor", share = {PLANTED.share}, target = {PLANTED.target} }}
training = {{ rounds = {ROUNDS}, learning_rate = 0.05, batch_size = 32 }}
""".replace("\n            sizes", " sizes")
OPTIONS = EraseOptions(max_rounds=AFTERWARDS, max_server_rounds=ROUNDS_OF_NEXT_RUNG)


def build(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the lab's network."""
    return network()


class HomeLab(Lab):
    """The lab's federation in a home folder, and its erasure by the real workflow."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.seed, self._folder, self.planted, self.build = seed, folder, PLANTED, network
        self.home = create_federation(
            folder / "home",
            parse(CONFIG, name="hostile"),
            name=small.NAME,
            seed=seed,
            now=small.NOW,
        )
        small.receive(self.home)
        ground = SimulatedBackend(self.home)
        dataset = catalog.load("mnist-10k")
        sizes = [IMAGES] * CLIENTS
        parts = partition.by_sizes(len(dataset.train), sizes, generator(seed, "partition"))
        self.honest_samples = dataset.train.take(parts[LEAVER])
        self.test = dataset.test.take(torch.arange(0, len(dataset.test), 2))
        self.engine = ground._simulator
        self._courses = {}
        self.global_state = states.load(self.home.model_path(small.serving(self.home)))[0]
        self.last = self.engine.own[LEAVER]
        self.reference = states.reference(
            self.global_state, self.last.state, weight=self.last.weight
        )
        self._erasures, self._rounds = 0, small.Rounds()

    def carried_through(
        self, returned: State | None, options: EraseOptions = OPTIONS
    ) -> tuple[Outcome, State]:
        """Erase with a leaver that returns something else; return what is served then."""
        self._erasures += 1
        home = small.copy(self.home, self._folder / f"home-{self._erasures}")
        leaver = None if returned is None else lambda _: returned
        ground = small.Hostile(home, leaver=leaver, rounds=self._rounds)
        outcome = small.erase(home, 1, ground=ground, how=options)
        return outcome, states.load(home.model_path(small.serving(home)))[0]


def row(
    lab: HomeLab,
    threat: str,
    returned: State | None,
    backdoor: Backdoor | None = None,
    options: EraseOptions = OPTIONS,
) -> attacks.Row:
    """Measure one attack: test accuracy, or a backdoor's success, without and with the workflow."""
    outcome, served = lab.carried_through(returned, options)
    before = lab.global_state if returned is None else returned
    if backdoor is None:
        measure, without, after = "test accuracy", lab.trusting(before), lab.accuracy(served)
    else:
        name = "planted" if backdoor is PLANTED else "new"
        measure, after = f"{name} backdoor's success", lab.success(served, backdoor)
        without = lab.success(lab.post_train(before), backdoor)
    told = [f"{f.rung}: {f.outcome}" for f in outcome.failures]
    told.append(f"{outcome.rung or 'rolled back'}: {outcome.method}")
    return attacks.Row(threat, measure, without, after, "; ".join(told))


def table(lab: HomeLab) -> Iterable[attacks.Row]:
    """Return all rows."""
    for threat, returned in attacks.breaking(lab).items():
        yield row(lab, threat, returned)
    mixture = states.mean([lab.global_state, lab.reference], [1, 1])
    noisy = lab.noisy(lab.global_state, 0.05 * lab.unit)
    yield row(lab, "lazy state: the global model", lab.global_state, PLANTED)
    yield row(lab, "lazy state: the reference", lab.reference, PLANTED)
    yield row(lab, "lazy state: half of each", mixture, PLANTED)
    distrust = EraseOptions(untrusted_leaver=True, max_server_rounds=ROUNDS_OF_NEXT_RUNG)
    yield row(lab, "lazy state with noise", noisy, PLANTED)
    yield row(lab, "lazy state with noise, `--untrusted-leaver`", noisy, PLANTED, distrust)
    smuggled = lab.backdoored()
    yield row(lab, "backdoored state", smuggled, SMUGGLED)
    yield row(lab, "backdoored state, `--untrusted-leaver`", smuggled, SMUGGLED, distrust)
    inside = lab.backdoored(SMUGGLED_INSIDE)
    threat = "backdoored state, trigger five pixels from the edge"
    yield row(lab, threat, inside, SMUGGLED_INSIDE)
    yield row(lab, "the same, boosted to the guard's limit", lab.boosted(), SMUGGLED_INSIDE)
    yield row(lab, f"{threat}, `--untrusted-leaver`", inside, SMUGGLED_INSIDE, distrust)
    enough = EraseOptions(
        max_server_rounds=ROUNDS_OF_NEXT_RUNG
    )  # rounds as by default: three may be too few
    yield row(lab, "nothing: an honest leaver", None, options=enough)


def markdown() -> Iterator[str]:
    """Yield the table's lines, least and most over the seeds, as they are measured."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        labs = []
        for seed in SEEDS:
            (Path(folder) / str(seed)).mkdir()
            labs.append(HomeLab(Path(folder) / str(seed), seed))
        yield "| threat | measure | without | with | what happened |\n|---|---|---|---|---|"
        for rows in zip(*(table(lab) for lab in labs), strict=True):
            without, defended = [r.without for r in rows], [r.defended for r in rows]
            by = "; or ".join(dict.fromkeys(r.by for r in rows))
            cells = (
                rows[0].threat,
                rows[0].measure,
                attacks.between(without),
                attacks.between(defended),
                by,
            )
            yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Print them."""
    for line in markdown():
        print(line, flush=True)


if __name__ == "__main__":
    main()
