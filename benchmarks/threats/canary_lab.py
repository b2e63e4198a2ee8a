"""A small federation whose leaver planted canaries: five clients with 1,500 embedded images each.

Half of the leaver's images have a backdoor, the others are mirrored: what is left of both is
measured beside the canaries. Training is ten rounds, post-training three.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from secede import models
from secede import state as states
from secede.audit import Reading
from secede.canaries import CanaryOptions, plant, read
from secede.canaries.made_up import field
from secede.data import catalog, partition
from secede.data.samples import Samples
from secede.erasure.defences import unused_weights
from secede.erasure.defences.unused_weights import find_layers
from secede.federation.engine import LocalTraining, aggregate
from secede.federation.simulator import Simulator
from secede.federation.training import train
from secede.scenarios.backdoor import Backdoor
from secede.scenarios.flipped import Flipped
from secede.seeding import derive, generator
from secede.state import State
from secede.unlearning.method import POST_TRAINING, Server
from secede.unlearning.registry import create
from secede.verification.accuracy import evaluate

CLIENTS, IMAGES, ROUNDS, AFTERWARDS, CLASSES = 5, 1500, 10, 3, 10
SHAPE = (1, 28, 28)
LEAVER, RETAINED = 0, tuple(range(1, CLIENTS))
TRAINING = LocalTraining(learning_rate=0.02, batch_size=32)
PLANTED = Backdoor(share=0.9, target=9)  # of one half of the leaver's images
MADE_UP = CanaryOptions()
OWN = CanaryOptions()  # of a family that the client made up itself: `cut_up`
MISLABELLED = CanaryOptions(kind="mislabelled", count=40, copies=3, max_share=0.08)

Change = Callable[[State, int], State]  # what a server makes of a round's mean
Labels = Callable[[Tensor], Tensor]  # of the logits of fields: what they are trained to be


@dataclass(frozen=True)
class Measured:
    """What a model shows: of the canaries, and of the leaver's images."""

    reading: Reading
    backdoor: float  # share of test images that the trigger turns into its target
    loss: float  # on the leaver's mirrored images
    accuracy: float  # on clean test images


class CanaryLab:
    """A trained federation, its erasures, and what its models still know."""

    def __init__(
        self, seed: int, options: CanaryOptions = MADE_UP, network: str = "small-cnn"
    ) -> None:
        self.seed, self.options, self.network = seed, options, network
        dataset = catalog.load("mnist-10k")
        self.test = dataset.test
        parts = partition.by_sizes(
            len(dataset.train), [IMAGES] * CLIENTS, generator(seed, "partition")
        )
        clients = [dataset.train.take(part) for part in parts]
        self.own = self._prepared(clients[LEAVER])
        self.salt = hashlib.sha256(f"{seed}/canaries".encode()).digest()
        make = self.cut_up if options is OWN else None
        planted = plant(self.own, self.salt, options, classes=CLASSES, make_canary=make)
        assert planted.canaries is not None
        self.canaries, clients[LEAVER] = planted.canaries, planted.samples
        self.engine = Simulator(clients, self.build, training=TRAINING, seed=seed, executor="cpu")
        self.global_state = self._trained(range(CLIENTS), "initial", "training")
        self.last = self.engine.own[LEAVER]
        self.engine.remembers = False

    def build(self) -> nn.Module:
        """Return a fresh network."""
        return models.build(self.network, shape=SHAPE, classes=CLASSES)

    def _prepared(self, samples: Samples) -> Samples:
        middle = len(samples) // 2
        left = samples.take(torch.arange(middle))
        right = samples.take(torch.arange(middle, len(samples)))
        left = PLANTED.transform(left, generator(self.seed, "backdoor"))
        right = Flipped(share=1.0).transform(right, generator(self.seed, "flipped"))
        return Samples(torch.cat([left.x, right.x]), torch.cat([left.y, right.y]))

    def cut_up(self, rng: np.random.Generator) -> Tensor:
        """Return one of the leaver's images, cut into sixteen squares in a random order."""
        image = self.own.x[int(rng.integers(len(self.own)))]
        squares = image.unfold(1, 7, 7).unfold(2, 7, 7).reshape(16, 7, 7)
        squares = squares[torch.from_numpy(rng.permutation(16))]
        return squares.view(4, 4, 7, 7).permute(0, 2, 1, 3).reshape(1, 28, 28)

    def _trained(self, clients: range | tuple[int, ...], start: str, phase: str) -> State:
        state: State = self.engine.initial_state(start)
        for number in range(1, ROUNDS + 1):
            state = aggregate(
                self.engine.train_round(state, clients, phase=phase, number=number).updates
            )
        return state

    @cached_property
    def retrained(self) -> State:
        """The model that was trained without the leaver."""
        return self._trained(RETAINED, "retraining", "retraining")

    def post_train(
        self,
        state: State,
        *,
        fade: bool = False,
        change: Change = lambda state, number: state,
        rounds: int = AFTERWARDS,
    ) -> State:
        """Let the retained clients train; the server `change`s what comes out of each round.

        With `fade`, what they do not use is taken out in the first round, as after a local step.
        """
        for number in range(1, rounds + 1):
            reply = self.engine.train_round(state, RETAINED, phase=POST_TRAINING, number=number)
            after: State = aggregate(reply.updates)
            if fade and number == 1:
                after = self.without_unused(state, after, [u.state for u in reply.updates])
            state = change(after, number)
        return state

    def without_unused(self, start: State, state: State, updates: list[State]) -> State:
        """Return `state` without what a round from `start` does not use."""
        weights = find_layers(self.build(), CLASSES).weights
        return unused_weights.remove_unused_weights(
            state, start, updates, trainable=state.keys(), weights=weights
        ).state

    def local(self, method: str) -> State:
        """Return what a local step returns."""
        server = Server(
            engine=self.engine,
            global_state=self.global_state,
            leaver=LEAVER,
            retained=RETAINED,
            fresh_state=lambda: self.engine.initial_state("retraining"),
            fresh_model=lambda: self.engine.fresh_model("template"),
        )
        return create(method, {})[1].start(server).state

    # What those do who know what canaries look like

    def fields(self, count: int, *name: str | int) -> Tensor:
        """Return random fields as made-up canaries are, with the noise of a copy."""
        draw = np.random.default_rng(derive(self.seed, "fields", *name))
        ones = torch.stack([torch.from_numpy(field(SHAPE, draw)) for _ in range(count)])
        noise = torch.from_numpy(draw.random(ones.shape)).float() - 0.5
        return (ones.float() + noise * MADE_UP.noise * 12**0.5).clamp(0, 1)

    def taught(self, state: State, samples: Samples, epochs: int = 1) -> State:
        """Return `state` after passes over `samples`."""
        model = self.build()
        states.load_into(model, state)
        draw = generator(self.seed, "orders")
        orders = [torch.randperm(len(samples), generator=draw) for _ in range(epochs)]
        train(model, samples, TRAINING, orders=orders)
        return states.of(model)

    # What is measured

    def read(self, model: nn.Module) -> Reading:
        """Return the leaver's reading of its canaries."""
        return read(model, self.canaries).reading()

    def measured(
        self, state: State, wrapped: Callable[[nn.Module], nn.Module] = lambda model: model
    ) -> Measured:
        """Return what a model shows; `wrapped` for one that answers otherwise than its weights."""
        model = wrapped(self.engine.model(state))
        probe = PLANTED.probe(self.test)
        success = evaluate(model, probe.samples).accuracy(probe.measures["attack_success"])
        mirrored = self.own.take(torch.arange(len(self.own) // 2, len(self.own)))
        return Measured(
            self.read(model),
            success.value,
            float(evaluate(model, mirrored).losses.mean()),
            evaluate(model, self.test).accuracy().value,
        )
