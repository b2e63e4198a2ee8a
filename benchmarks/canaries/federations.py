"""Small federations to plant canaries in: embedded images, a table, and sequences of tokens.

Five clients with 1,500 samples each. The table and the tokens are drawn here, from a teacher of
their own, so that nothing is downloaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor, nn

from secede import models
from secede.canaries import Canaries, CanaryOptions, plant
from secede.data import catalog, partition
from secede.data.samples import Samples
from secede.federation.engine import LocalTraining, aggregate
from secede.federation.simulator import Simulator
from secede.seeding import generator
from secede.state import State
from secede.verification.accuracy import evaluate

CLIENTS, SAMPLES, ROUNDS, TESTED = 5, 1500, 10, 2000
LABELS = 5  # of tables and texts
HIDDEN, UNRELATED, NOISE = 6, 0.1, 0.3  # of tables: what columns share, and what they do not
WORDS, LENGTH, TOPIC = 200, 20, 0.3  # of texts: the last is the share of words on its topic
TRAINING = LocalTraining(learning_rate=0.02, batch_size=32)


@dataclass(frozen=True)
class Data:
    """Samples to deal to clients, test samples, and a network for them."""

    train: Samples
    test: Samples
    classes: int
    build: Callable[[], nn.Module]


class BagOfWords(nn.Module):
    """A text's class by the mean of its words' vectors and a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.hidden, self.out = nn.Linear(32, 128), nn.Linear(128, LABELS)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of rows of word numbers."""
        mean: Tensor = self.words(ids).mean(dim=1)
        logits: Tensor = self.out(torch.relu(self.hidden(mean)))
        return logits


class Convolution(nn.Module):
    """A text's class by what three neighbouring words say at most."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.near, self.out = nn.Conv1d(32, 128, 3, padding=1), nn.Linear(128, LABELS)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of rows of word numbers."""
        found = torch.relu(self.near(self.words(ids).transpose(1, 2)))
        logits: Tensor = self.out(found.amax(dim=2))
        return logits


@cache
def images(network: str) -> Data:
    """Return the embedded images."""
    found = catalog.load("mnist-10k")
    return Data(
        found.train,
        found.test,
        len(found.classes),
        lambda: models.build(network, shape=found.shape, classes=len(found.classes)),
    )


@cache
def table(columns: int, related: bool) -> Data:
    """Return rows of numbers whose class a random perceptron gives, with noise.

    Related columns are mixtures of a few hidden ones, as in most tables. Made-up rows break such
    relations; where there are none, they look like any other row.
    """
    draw, count = torch.Generator().manual_seed(1), CLIENTS * SAMPLES + TESTED
    hidden = torch.randn(count, HIDDEN if related else columns, generator=draw)
    x = hidden
    if related:
        mixed = hidden @ torch.randn(HIDDEN, columns, generator=draw) / HIDDEN**0.5
        x = mixed + UNRELATED * torch.randn(count, columns, generator=draw)
    first, second = (
        torch.randn(*size, generator=draw) for size in ((hidden.shape[1], 16), (16, LABELS))
    )
    scores = torch.tanh(hidden @ first) @ second
    noise = NOISE * scores.std() * torch.randn(scores.shape, generator=draw)
    build = partial(models.build, "mlp", shape=(columns,), classes=LABELS)
    return _split(x, (scores + noise).argmax(dim=1), build)


@cache
def tokens(build: Callable[[], nn.Module]) -> Data:
    """Return texts in which some words are of the class's own topic, the others anybody's."""
    draw, count = torch.Generator().manual_seed(2), CLIENTS * SAMPLES + TESTED
    y = torch.randint(LABELS, (count,), generator=draw)
    size = WORDS // 2 // LABELS
    own = WORDS // 2 + size * y[:, None] + torch.randint(size, (count, LENGTH), generator=draw)
    others = torch.randint(WORDS, (count, LENGTH), generator=draw)
    chosen = torch.rand(count, LENGTH, generator=draw) < TOPIC
    return _split(torch.where(chosen, own, others), y, build)


def _split(x: Tensor, y: Tensor, build: Callable[[], nn.Module]) -> Data:
    train, test = Samples(x[:-TESTED], y[:-TESTED]), Samples(x[-TESTED:], y[-TESTED:])
    return Data(train, test, LABELS, build)


DATA: dict[str, Callable[[], Data]] = {
    "images, mlp": lambda: images("mlp"),
    "images, small-cnn": lambda: images("small-cnn"),
    "table of 40 related columns, mlp": lambda: table(40, True),
    "table of 12 unrelated columns, mlp": lambda: table(12, False),
    "texts, convolution": lambda: tokens(Convolution),
    "texts, bag of words": lambda: tokens(BagOfWords),
}


class Planted:
    """A federation all of whose clients plant canaries; without options, none."""

    def __init__(self, data: Data, seed: int, options: CanaryOptions | None) -> None:
        self.data, self.canaries = data, list[Canaries]()
        sizes, draw = [SAMPLES] * CLIENTS, generator(seed, "partition")
        parts = partition.by_sizes(len(data.train), sizes, draw)
        clients = [data.train.take(part) for part in parts]
        for number, samples in enumerate(clients) if options else ():
            salt = hashlib.sha256(f"{seed}/{number}".encode()).digest()
            planted = plant(samples, salt, options, classes=data.classes)
            assert planted.canaries is not None
            clients[number] = planted.samples
            self.canaries.append(planted.canaries)
        self.engine = Simulator(clients, data.build, training=TRAINING, seed=seed, executor="loop")

    def trained(self, clients: Sequence[int] = range(CLIENTS), rounds: int = ROUNDS) -> State:
        """Return the state after rounds of these clients."""
        state: State = self.engine.initial_state("initial")
        for number in range(1, rounds + 1):
            reply = self.engine.train_round(state, clients, phase="training", number=number)
            state = aggregate(reply.updates)
        return state

    def accuracy(self, state: State) -> float:
        """Return the share of test samples that a state has right."""
        return evaluate(self.engine.model(state), self.data.test).accuracy().value
