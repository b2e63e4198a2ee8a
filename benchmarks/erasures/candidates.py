"""The erasures that are compared: each yields the model after every round, the exchange included.

A local step, or a round in which the leaver takes part, is the first of the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.erasures.cells import LEAVER, RETAINED
from benchmarks.erasures.models import Listening, Trained
from secede import state as states
from secede.erasure.defences.unused_weights import find_layers, remove_unused_weights
from secede.federation.engine import LocalTraining, Update, aggregate
from secede.federation.simulator import Simulator
from secede.state import State
from secede.unlearning.method import POST_TRAINING, Server
from secede.unlearning.registry import create
from secede.verification import evaluate

Rounds = Iterator[State]
Erasure = Callable[[Trained], Rounds]


def method(name: str, *, removal: bool, exchange: bool, **settings: object) -> Erasure:
    """Return a method of the registry; with `exchange` its start takes a round."""

    def erase(cell: Trained) -> Rounds:
        listening = Listening(cell.federation)
        engine = cell.federation.engine
        server = Server(
            engine=listening,
            global_state=cell.original,
            leaver=LEAVER,
            retained=RETAINED,
            fresh_state=lambda: engine.initial_state("fresh"),
            fresh_model=lambda: engine.fresh_model("template"),
            weight=engine.own[LEAVER].weight,
        )
        chosen = create(name, settings)[1]
        start = chosen.start(server)
        state, memory, number = start.state, start.memory, 0
        if exchange:
            yield state
        while True:
            number += 1
            after = chosen.recover(server, state, memory, number)
            kept = after.state
            if removal and number == 1:
                kept = without_unused(cell, state, kept, listening.heard)
            state, memory = kept, after.memory
            yield state

    return erase


def without_unused(cell: Trained, start: State, state: State, updates: Sequence[Update]) -> State:
    """Return `state` without what a round from `start` does not use."""
    engine = cell.federation.engine
    classes = 1 + int(cell.federation.test.y.max())
    weights = find_layers(engine.fresh_model("template"), classes).weights
    return remove_unused_weights(
        state, start, [u.state for u in updates], trainable=state.keys(), weights=weights
    ).state


def rounds(cell: Trained, state: State, *, removals: int = 0) -> Rounds:
    """Post-train; in the first `removals` rounds, remove unused weights."""
    number = 0
    while True:
        number += 1
        updates = retained_round(cell, state, POST_TRAINING, number)
        after: State = aggregate(updates)
        if number <= removals:
            after = without_unused(cell, state, after, updates)
        state = after
        yield state


def retained_round(cell: Trained, state: State, phase: str, number: int) -> tuple[Update, ...]:
    """Return the retained clients' updates of a round from `state`."""
    return cell.federation.engine.train_round(state, RETAINED, phase=phase, number=number).updates


@dataclass(frozen=True)
class Exchange:
    """One round in which everybody trained from `start`: means and the leaver's own change."""

    start: State
    updates: tuple[Update, ...]  # of the retained clients
    leaver: State  # its change
    leaver_samples: int

    @property
    def mean(self) -> State:
        """The retained clients' mean."""
        return aggregate(self.updates)


def exchange(cell: Trained, start: State, number: int = 1) -> Exchange:
    """Let everybody train a round from `start`."""
    engine = cell.federation.engine
    reply = engine.train_round(start, range(5), phase="exchange", number=number)
    own = reply.updates[LEAVER]
    return Exchange(start, reply.updates[1:], states.difference(own.state, start), own.samples)


def bounded(made: Exchange, times: float) -> float:
    """Return s = min(times, times · typical length / |Δ|)."""
    return min(times, times * typical_length(made) / states.norm(made.leaver))


def contributed(made: Exchange, times: float) -> float:
    """Return `times` the leaver's share: what it adds to a mean of all, taken back so often."""
    total = made.leaver_samples + sum(u.samples for u in made.updates)
    return times * made.leaver_samples / total


def along(made: Exchange, times: float, *, travelled: float) -> float:
    """Return s, so that as much is taken back as the leaver's share of the way travelled."""
    return contributed(made, times) * travelled / states.norm(made.leaver)


def take_back_way(cell: Trained, *, times: float, estimated: bool = False) -> Rounds:
    """Take back `times` the leaver's share of the way from the first state to the last."""
    fresh = cell.federation.engine.initial_state("fresh" if estimated else "training")
    way = states.distance(cell.original, fresh)
    if estimated:  # the first state is unknown, but was as long as any fresh one
        way = max(0.0, states.norm(cell.original) ** 2 - states.norm(fresh) ** 2) ** 0.5
    return take_back(cell, times=times, bound=partial(along, travelled=way))


def typical_length(made: Exchange) -> float:
    """Return the mean length of the retained clients' changes."""
    changes = [states.difference(u.state, made.start) for u in made.updates]
    return sum(map(states.norm, changes)) / len(changes)


def take_back(
    cell: Trained,
    *,
    times: float = 2,
    exchanges: int = 1,
    removals: int = 1,
    bound: Callable[[Exchange, float], float] = bounded,
) -> Rounds:
    """The retained mean minus s times the leaver's change, then post-training."""
    state = cell.original
    for number in range(1, exchanges + 1):
        made = exchange(cell, state, number)
        state = states.shifted(made.mean, made.leaver, -bound(made, times))
        yield state
    yield from rounds(cell, state, removals=removals)


def searched(cell: Trained, *, points: float = 0.01, removals: int = 1) -> Rounds:
    """Take back as often as the retained clients' right answers stay within some points."""
    made = exchange(cell, cell.original)
    mean, scale = made.mean, 0.5
    least = right(cell, mean) - points
    while scale < 64 and right(cell, states.shifted(mean, made.leaver, -2 * scale)) >= least:
        scale *= 2
    state = states.shifted(mean, made.leaver, -scale)
    yield state
    yield from rounds(cell, state, removals=removals)


def right(cell: Trained, state: State) -> float:
    """Return the retained clients' share of right answers."""
    engine = cell.federation.engine
    model, clients = engine.model(state), [engine.clients[i] for i in RETAINED]
    found = [evaluate(model, samples) for samples in clients]
    hits = sum(int((each.predictions == each.labels).sum()) for each in found)
    return hits / sum(map(len, clients))


def shrink(cell: Trained, *, keep: float | str, removals: int = 1) -> Rounds:
    """Start from fresh weights, moved towards the retained clients' mean, and post-train."""
    engine = cell.federation.engine
    own = engine.own[LEAVER]
    part = 1 - own.weight if isinstance(keep, str) else keep
    others = states.reference(cell.original, own.state, weight=own.weight)
    fresh = engine.initial_state("fresh")
    start = states.shifted(fresh, states.difference(others, fresh), part)
    yield start
    yield from rounds(cell, start, removals=removals)


def from_global(cell: Trained, *, keep: float = 1.0, removals: int = 1) -> Rounds:
    """Move the global model towards fresh weights, and post-train; the leaver is not asked."""
    fresh = cell.federation.engine.initial_state("fresh")
    start = states.shifted(fresh, states.difference(cell.original, fresh), keep)
    return rounds(cell, start, removals=removals)


def retraining(cell: Trained, *, faster: float = 1.0) -> Rounds:
    """Retrain for as few rounds as the others have: exact, but not finished."""
    old = cell.federation.engine
    used = cell.federation.source.training
    training = LocalTraining(
        learning_rate=faster * used.learning_rate,
        momentum=used.momentum,
        batch_size=used.batch_size,
    )
    engine = Simulator(
        old.clients, lambda: old.fresh_model("template"), training=training,
        seed=cell.cell.seed, executor="cpu",
    )  # fmt: skip
    state: State = old.initial_state("fresh")
    for number in range(1, 100):
        state = aggregate(engine.train_round(state, RETAINED, phase="short", number=number).updates)
        yield state


ERASURES: Mapping[str, Erasure] = {
    "fine-tune": partial(from_global, removals=0),
    "removal alone": from_global,
    "second choice": method("second-choice", removal=False, exchange=True),
    "second choice, removal": method("second-choice", removal=True, exchange=True),
    "weight negation": method("weight-negation", removal=False, exchange=False),
    "weight negation, removal": method("weight-negation", removal=True, exchange=False),
    "negated update, removal": method("negated-update", removal=True, exchange=True),
    "take-back": method("take-back", removal=False, exchange=True),
    "take-back, removal": method("take-back", removal=True, exchange=True),
    "take-back 2, removal": method("take-back", removal=True, exchange=True, times=2.0),
    "negated update x20, removal": method(
        "negated-update", removal=True, exchange=True, scale=20.0
    ),
    "negated update x5, removal": method("negated-update", removal=True, exchange=True, scale=5.0),
    "negated update x40, removal": method(
        "negated-update", removal=True, exchange=True, scale=40.0
    ),
    "bounded take-back": take_back,
    "bounded take-back, twice": partial(take_back, exchanges=2),
    "bounded take-back, removal always": partial(take_back, removals=9),
    "searched": searched,
    "twice its way": partial(take_back_way, times=2.0),
    "its way": partial(take_back_way, times=1.0),
    "1.5 its way": partial(take_back_way, times=1.5),
    "twice its way, estimated": partial(take_back_way, times=2.0, estimated=True),
    "share times 10": partial(take_back, times=10, bound=contributed),
    "share times 7": partial(take_back, times=7, bound=contributed),
    "negated update x10, removal": method(
        "negated-update", removal=True, exchange=True, scale=10.0
    ),
    "share times 15": partial(take_back, times=15, bound=contributed),
    "share times 20": partial(take_back, times=20, bound=contributed),
    "removal always": partial(from_global, removals=9),
    "shrink 1/2": partial(from_global, keep=0.5, removals=0),
    "shrink 1/2, removal": partial(from_global, keep=0.5),
    "short retraining": retraining,
    "short retraining, 2x": partial(retraining, faster=2.0),
}
