"""A small real federation to attack: six clients with 800 embedded MNIST images each.

The first planted a backdoor while it trained, and leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from secede import state as states
from secede.data import catalog, partition
from secede.data.samples import Dataset, Samples
from secede.erasure.defences import unused_weights
from secede.erasure.defences.gate import Counts, find_loss, tally, total
from secede.erasure.defences.guard import Guard
from secede.erasure.defences.unused_weights import find_layers
from secede.erasure.documents.plan import GuardLimits, Margins
from secede.errors import GuardError, StateError
from secede.federation.engine import LocalTraining, Mean, Update, aggregate
from secede.federation.simulator import Simulator
from secede.federation.training import train
from secede.scenarios.backdoor import Backdoor
from secede.seeding import generator
from secede.state import State
from secede.unlearning.method import POST_TRAINING, Server
from secede.unlearning.registry import create
from secede.verification.accuracy import evaluate

CLIENTS, IMAGES, ROUNDS, AFTERWARDS = 6, 800, 20, 3
USUAL = 5  # rounds that the gate has to pass in by default; three are not enough on every processor
ROUNDS_OF_NEXT_RUNG, CLASSES = 10, 10
SEEDS = (0, 1, 2)  # of the table; the tests take the first
LEAVER, RETAINED = 0, tuple(range(1, CLIENTS))
PLANTED = Backdoor(share=0.5, target=9)  # by the leaver, while it trained
SMUGGLED = Backdoor(share=0.5, target=3, distance=25)  # by the leaver, in what it returns
# The same where the others' images have ink now and then: who knows the defence puts it there.
PLANTED_INSIDE = Backdoor(share=0.5, target=9, distance=5)
SMUGGLED_INSIDE = Backdoor(share=0.5, target=3, distance=5)

Build = Callable[[], nn.Module]
Tamper = Callable[[Update, State], State]  # what a malicious client sends, given its start


def network() -> nn.Module:
    """Return a perceptron in which two layers have the same shape, so that they can be swapped."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


@dataclass(frozen=True)
class Outcome:
    """How an erasure ended: the state that is served, and who stopped it, if anybody."""

    served: State
    stopped_by: str = ""


class Lab:
    """A trained federation, its erasure, and what can be measured on it."""

    def __init__(
        self,
        seed: int = 0,
        planted: Backdoor = PLANTED,
        build: Build = network,
        engine: type[Simulator] = Simulator,
    ) -> None:
        self.seed, self.planted, self.build = seed, planted, build
        self._courses: dict[tuple[object, ...], list[State]] = {}
        dataset: Dataset = catalog.load("mnist-10k")
        self.test = dataset.test.take(torch.arange(0, len(dataset.test), 2))
        sizes = [IMAGES] * CLIENTS
        parts = partition.by_sizes(len(dataset.train), sizes, generator(seed, "partition"))
        clients = [dataset.train.take(part) for part in parts]
        self.honest_samples = clients[LEAVER]
        clients[LEAVER] = planted.transform(clients[LEAVER], generator(seed, "scenario"))
        self.engine = engine(
            clients,
            build,
            training=LocalTraining(learning_rate=0.05, batch_size=32),
            seed=seed,
            executor="cpu",
        )
        state: State = self.engine.initial_state("initial")
        for number in range(1, ROUNDS + 1):
            everyone = range(CLIENTS)
            reply = self.engine.train_round(state, everyone, phase="training", number=number)
            state = aggregate(reply.updates)
        self.global_state = state
        self.last = self.engine.own[LEAVER]
        self.reference = states.reference(state, self.last.state, weight=self.last.weight)

    # What the defences see and do

    def guard(self, *, radius: float | None = None, hidden: bool = False) -> Guard:
        """Return the guard; `hidden` for secure aggregation, which hides single updates."""
        return Guard(
            global_state=self.global_state,
            fresh_model=lambda number: self.engine.fresh_model("guard", number),
            last=None if hidden else self.last,
            radius=radius,
            ball=GuardLimits().radius,
        )

    @cached_property
    def before(self) -> Counts:
        """What the retained clients count with the model that is to be erased."""
        return self.counts(self.global_state)

    def counts(self, state: State) -> Counts:
        """Let the retained clients count their right answers, and compare."""
        return total([*tally(self.engine, RETAINED, state, self.global_state).counts.values()])

    def gate(self, state: State) -> str | None:
        """Return why the gate refuses a state; None: it passes."""
        return find_loss(Margins(), self.before, self.counts(state))

    def post_train(
        self,
        state: State,
        rounds: int = AFTERWARDS,
        *,
        mean: Mean = aggregate,
        tamper: Tamper | None = None,
        malicious: int = 1,
        fade: bool = False,
        local: bool = True,
        hidden: bool = False,
    ) -> State:
        """Let the retained clients train; the last ones send what `tamper` makes of it.

        With `fade`, what they do not use is taken out in the first round, as in a real erasure
        after a `local` step; `hidden` for secure aggregation.
        """
        # The same state trains to the same states, so that what was trained once is continued.
        key = (states.digest(state), mean, tamper, malicious, fade, local, hidden)
        course = self._courses.setdefault(key, [state])
        for number in range(len(course), rounds + 1):
            before = course[-1]
            reply = self.engine.train_round(before, RETAINED, phase=POST_TRAINING, number=number)
            updates = list(reply.updates)
            if tamper is not None:
                for place in range(-malicious, 0):
                    evil = updates[place]
                    updates[place] = Update(evil.client, tamper(evil, before), evil.samples)
            after: State = mean(updates)
            if fade and number == 1:
                single = mean is aggregate and not hidden
                after = self.faded(before, after, updates, single=single, local=local)
            course.append(after)
        return course[rounds]

    def faded(
        self, before: State, after: State, updates: list[Update], *, single: bool, local: bool
    ) -> State:
        """Return `after` without what a round from `before` does not use."""
        shown = [update.state for update in updates] if single else [after]
        weights = find_layers(self.build(), CLASSES).weights if local else {}
        return unused_weights.remove_unused_weights(
            after, before, shown, trainable=after.keys(), weights=weights, single=not local
        ).state

    def erase(
        self, returned: State, *, radius: float | None = None, rounds: int = AFTERWARDS
    ) -> Outcome:
        """Carry an erasure through with guard, post-training and gate; roll back if one says so."""
        try:
            start, _ = self.guard(radius=radius).check(returned)
        except GuardError:
            return Outcome(self.global_state, "guard")
        after = self.post_train(start, rounds, fade=True)
        if self.gate(after):
            return Outcome(self.global_state, "gate")
        return Outcome(after)

    # What leavers return

    @cached_property
    def honest(self) -> State:
        """What an honest leaver returns: second choice."""
        return self.local("second-choice")

    def local(self, method: str, **settings: object) -> State:
        """Return the state that a local step returns."""
        return create(method, settings)[1].start(self.server).state

    @property
    def server(self) -> Server:
        """What a method is given at the server."""
        return Server(
            engine=self.engine,
            global_state=self.global_state,
            leaver=LEAVER,
            retained=RETAINED,
            fresh_state=lambda: self.engine.initial_state("retraining"),
            fresh_model=lambda: self.engine.fresh_model("template"),
        )

    @cached_property
    def unit(self) -> float:
        """The guard's unit of distance."""
        return self.guard()._unit

    def noisy(self, state: State, distance: float) -> State:
        """Return `state` moved by `distance` in a direction drawn at random."""
        draw = generator(self.seed, "noise")
        noise = {n: torch.randn(v.shape, generator=draw) for n, v in state.items()}
        return states.shifted(state, noise, distance / states.norm(noise))

    def backdoored(self, backdoor: Backdoor = SMUGGLED) -> State:
        """Return the reference, taught a new backdoor with the leaver's own images.

        It begins at the reference because that is where post-training has the least to change.
        """
        return self.taught(self.reference, self.honest_samples, epochs=10, backdoor=backdoor)

    def prepared(self, backdoor: Backdoor = SMUGGLED_INSIDE) -> State:
        """Return a backdoored state of a leaver that knows what fades, and fades it beforehand.

        After each pass it takes out what training on four parts of its own images does not use.
        """
        weights = find_layers(self.build(), CLASSES).weights
        state: State = self.reference
        for _ in range(10):
            state = self.taught(state, self.honest_samples, epochs=1, backdoor=backdoor)
            updates = [
                self.trained(state, self.honest_samples.take(part))
                for part in torch.arange(len(self.honest_samples)).chunk(4)
            ]
            state = unused_weights.remove_unused_weights(
                state, state, updates, trainable=weights, weights=weights
            ).state
            state = states.project(state, self.reference, 0.9 * self.unit)
        return self.taught(state, self.honest_samples, epochs=1, backdoor=backdoor)

    def boosted(self, backdoor: Backdoor = SMUGGLED_INSIDE) -> State:
        """Return a backdoored state as far from the reference as the guard lets it be."""
        way = states.difference(self.backdoored(backdoor), self.reference)
        return states.shifted(self.reference, way, 0.99 * self.unit / states.norm(way))

    def trained(self, state: State, samples: Samples) -> State:
        """Return `state` after one pass over `samples`."""
        model = self.build()
        states.load_into(model, state)
        order = torch.randperm(len(samples), generator=generator(self.seed, "own"))
        train(model, samples, LocalTraining(learning_rate=0.05, batch_size=32), orders=[order])
        return states.of(model)

    def taught(
        self, state: State, samples: Samples, epochs: int, backdoor: Backdoor = SMUGGLED
    ) -> State:
        """Return `state` trained on `samples`, half of them with the new trigger."""
        model = self.build()
        states.load_into(model, state)
        how = LocalTraining(learning_rate=0.02, batch_size=32)
        poisoned = backdoor.transform(samples, generator(self.seed, "smuggled"))
        draw = generator(self.seed, "orders")
        orders = [torch.randperm(len(samples), generator=draw) for _ in range(epochs)]
        train(model, poisoned, how, orders=orders)
        return states.of(model)

    # What is measured

    def accuracy(self, state: State) -> float:
        """Return the share of clean test images that a state gets right."""
        return evaluate(self.engine.model(state), self.test).accuracy().value

    def success(self, state: State, backdoor: Backdoor | None = None) -> float:
        """Return the share of test images that a trigger turns into its target."""
        probe = (backdoor or self.planted).probe(self.test)
        evidence = evaluate(self.engine.model(state), probe.samples)
        return evidence.accuracy(probe.measures["attack_success"]).value

    def losses(self, state: State, samples: Samples) -> Tensor:
        """Return the loss on each sample."""
        return evaluate(self.engine.model(state), samples).losses

    def gap(self, a: State, b: State, inputs: Samples) -> Tensor:
        """Return how far apart two models' answers to each input are, from 0 to 2."""
        one, other = (evaluate(self.engine.model(s), inputs).logits.softmax(dim=1) for s in (a, b))
        return (one - other).abs().sum(dim=1)

    def confidence(self, state: State, inputs: Samples) -> Tensor:
        """Return the largest probability for each input."""
        return evaluate(self.engine.model(state), inputs).logits.softmax(dim=1).amax(dim=1)

    @cached_property
    def planted_inside(self) -> Lab:
        """The same federation, whose leaver put its trigger where others' images have ink."""
        return Lab(self.seed, PLANTED_INSIDE)

    @cached_property
    def erased(self) -> State:
        """The model after an honest erasure."""
        return self.post_train(self.honest, fade=True)

    @cached_property
    def next_rung(self) -> State:
        """The model after a rung that takes nothing from the leaver: weight negation."""
        return self.post_train(
            self.local("weight-negation"), ROUNDS_OF_NEXT_RUNG, fade=True, local=False
        )

    def trusting(self, returned: State) -> float:
        """Return the test accuracy without guard and gate."""
        return self.ends(lambda: self.post_train(returned))

    def ends(self, train: Callable[[], State]) -> float:
        """Return the test accuracy of what was trained; 0 where the federation diverges."""
        try:
            return self.accuracy(train())
        except StateError:
            return 0.0
