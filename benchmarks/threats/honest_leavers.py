"""What honest leavers return, in the guard's unit, and what the gate says of it.

The guard's and the gate's limits come from these numbers. Print them (some minutes):
python -m benchmarks.threats.honest_leavers
With --keep-unused-weights as if every leaver were trusted; --scenarios takes only some.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from secede.erasure.defences import unused_weights
from secede.erasure.defences.gate import Counts, find_loss, tally, total
from secede.erasure.defences.guard import Guard
from secede.erasure.defences.unused_weights import find_layers
from secede.erasure.documents.plan import Margins
from secede.erasure.storage.transition_details import GuardReport
from secede.errors import GuardError
from secede.experiments.config import parse
from secede.experiments.setup import Federation, federate, load_dataset
from secede.federation.engine import aggregate
from secede.state import State
from secede.unlearning.method import POST_TRAINING, Server
from secede.unlearning.registry import create

# network, clients, rounds of training, images
FEDERATIONS = (
    ("mlp", 5, 8, 2000),
    ("small-cnn", 5, 8, 2000),
    ("mlp", 3, 25, 1500),
    ("small-cnn", 10, 8, 4000),
)
SCENARIOS = ("clean", "backdoor", "flipped", "exclusive", "class")
METHODS: dict[str, tuple[str, dict[str, object]]] = {
    "second-choice": ("second-choice", {}),
    "projected-ascent": ("projected-ascent", {}),
    "projected-ascent, smaller batches": ("projected-ascent", {"batch_size": 32, "epochs": 15}),
}
SEEDS = (0, 1)
AFTERWARDS = 10  # rounds of post-training in which the gate may pass


@dataclass(frozen=True)
class Found:
    """One honest start: the guard's report without limits, and whether guard and gate let it by."""

    report: GuardReport
    guarded: bool
    rounds: int | None  # of post-training after which the gate first passed; None: never


def measure(
    network: str,
    clients: int,
    rounds: int,
    images: int,
    scenario: str,
    seed: int,
    *,
    fades: bool = True,
) -> Iterator[tuple[str, Found]]:
    """Train a federation, let its leaver unlearn by each method, and post-train."""
    config = parse(
        f'data = "mnist-10k"\nmodel = "{network}"\nlimit = {images}\nclients.count = {clients}\n'
        f'scenario.name = "{scenario}"\ndevice = "cpu"\nexecutor = "cpu"\n'
        f"training = {{ rounds = {rounds}, learning_rate = 0.02, batch_size = 32 }}\n",
        name="honest",
    )
    federation = federate(config, load_dataset(config), seed, search=None)
    engine = federation.engine
    state: State = engine.initial_state("initial")
    for number in range(1, rounds + 1):
        reply = engine.train_round(state, federation.everyone, phase="training", number=number)
        state = aggregate(reply.updates)
    server = _server(federation, state)
    last = engine.own[federation.leaver]  # before post-training, in which others move on
    before = _count(server, state)
    guard = Guard(
        global_state=state,
        fresh_model=lambda number: engine.fresh_model("guard", number),
        last=last,
    )
    for name, (method, settings) in METHODS.items():
        start = create(method, settings)[1].start(server).state
        _, report = replace(guard, max_distance=1e9, min_distance=0, min_line_distance=0).check(
            start
        )
        passed = _rounds(server, start, before, fades=fades)
        yield name, Found(report, _passes(guard, start), passed)


def _passes(guard: Guard, start: State) -> bool:
    try:
        guard.check(start)
    except GuardError:
        return False
    return True


def _rounds(server: Server, state: State, before: Counts, *, fades: bool) -> int | None:
    """Post-train as an erasure does until the gate passes; return after how many rounds it did."""
    weights = find_layers(server.fresh_model(), len(before.samples)).weights
    for number in range(1, AFTERWARDS + 1):
        start, engine, retained = state, server.engine, server.retained
        updates = engine.train_round(start, retained, phase=POST_TRAINING, number=number).updates
        state = aggregate(updates)
        if number == 1 and fades:
            shown = [update.state for update in updates]
            state = unused_weights.remove_unused_weights(
                state, start, shown, trainable=state.keys(), weights=weights
            ).state
        if find_loss(Margins(), before, _count(server, state)) is None:
            return number
    return None


def _server(federation: Federation, state: State) -> Server:
    engine = federation.engine
    return Server(
        engine=engine,
        global_state=state,
        leaver=federation.leaver,
        retained=federation.retained,
        fresh_state=lambda: engine.initial_state("retraining"),
        fresh_model=lambda: engine.fresh_model("template"),
    )


def _count(server: Server, state: State) -> Counts:
    counted = tally(server.engine, server.retained, state, server.global_state)
    return total([*counted.counts.values()])


def markdown(
    scenarios: Sequence[str] = SCENARIOS,
    *,
    federations: int = len(FEDERATIONS),
    seeds: Sequence[int] = SEEDS,
    fades: bool = True,
) -> Iterator[str]:
    """Yield the table's lines, least and most over all federations, by scenario and method."""
    torch.set_num_threads(1)
    found = defaultdict[tuple[str, str], list[Found]](list)
    for scenario in scenarios:
        for federation in FEDERATIONS[:federations]:
            for seed in seeds:
                for name, one in measure(*federation, scenario, seed, fades=fades):
                    found[scenario, name].append(one)
    yield (
        "| scenario | method | to the reference | to the global model | to the line "
        "| guard passes | gate passes by round 1 | 3 | 10 |\n|---|---|---|---|---|---|---|---|---|"
    )
    for (scenario, name), all_of in found.items():
        columns = [
            [one.report.distance / one.report.unit for one in all_of],
            [one.report.distance_to_global / one.report.unit for one in all_of],
            [(one.report.distance_to_line or 0) / one.report.unit for one in all_of],
        ]
        ranges = " | ".join(f"{min(values):.2g} to {max(values):.2g}" for values in columns)
        guarded = f"{sum(one.guarded for one in all_of)} of {len(all_of)}"
        gated = " | ".join(
            str(sum(one.rounds is not None and one.rounds <= limit for one in all_of))
            for limit in (1, 3, AFTERWARDS)
        )
        yield f"| {scenario} | {name} | {ranges} | {guarded} | {gated} |"
    passed = [one.report for all_of in found.values() for one in all_of if one.guarded]
    least = min((report.distance_to_line or 0) / report.unit for report in passed)
    yield f"\nleast distance to the line of the {len(passed)} that pass: {least:.2g}"


def main() -> None:
    """Print them; options choose a part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--keep-unused-weights", action="store_true", help="as if leavers were trusted"
    )
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=SCENARIOS)
    parser.add_argument("--federations", type=int, default=len(FEDERATIONS), help="the first ones")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    asked = parser.parse_args()
    chosen = markdown(
        asked.scenarios,
        federations=asked.federations,
        seeds=asked.seeds,
        fades=not asked.keep_unused_weights,
    )
    for line in chosen:
        print(line)


if __name__ == "__main__":
    main()
