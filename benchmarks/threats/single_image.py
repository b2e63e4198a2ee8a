"""A dishonest server reads one image by few questions: a unit lets it alone through.

    python -m benchmarks.threats.single_image [--images 100] [--targets 20]

The client hides its updates, and its owner consents to nothing. A hidden round from far away has
made known all models that are nearer. The server knows a direction in which the image lies farther
out than all others of the client, and its label: more than a server knows. A loss then tells how
far the image lies along a principal direction of the server's own images; a count, on which side of
a value. The image is put together from that, and is recognisable as `reconstruction` has it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.table import table
from benchmarks.threats.reconstruction import ALIKE, Lab, Row, alike
from secede.errors import SecedeError
from secede.state import State
from secede.unlearning import client_tasks

REQUEST, MONTH = 24, 96  # questions for a request, and in all requests that the server makes up
FAR = 1e5  # of each weight: no unit fires there
REPEATS = 3  # of a count whose answer is noisy
SPLIT = 3.2  # an interval's variance falls by about so much when it is halved
_GATE = 40.0  # weights of the unit that lets one image through
_LOUD = 27.0  # so that a loss stays below 10, and its second digit is a tenth

Ask = Callable[..., Any]


class Target:
    """An image of the client's, and what the server knows to single it out."""

    def __init__(self, lab: Lab, number: int) -> None:
        self.lab, self.label = lab, int(lab.samples.y[number])
        images, self.public = (s.x.flatten(1).double() for s in (lab.samples, lab.public))
        self.mean, self.image = self.public.mean(dim=0), images[number]
        self.parts = torch.linalg.svd(self.public - self.mean, full_matrices=False).Vh
        self.places = (self.public - self.mean) @ self.parts.T
        away = torch.linalg.pinv(images - images.mean(dim=0))[:, number]
        self.away = away / away.norm()
        far = (images @ self.away).sort(descending=True).values
        self.threshold = float(far[:2].mean())

    def model(self, towards: Tensor, offset: float) -> State:
        """Return a model in which only this image's `towards @ image + offset` counts, if above 0.

        A unit that is that large for it, and 0 for all others, speaks for a class.
        """
        state = {name: torch.zeros_like(value) for name, value in self.lab.update.items()}
        for place, (direction, bias) in enumerate(((0 * towards, 0.0), (towards, offset))):
            state["1.weight"][place] = (_GATE * self.away + direction).float()
            state["1.bias"][place] = bias - _GATE * self.threshold
        state["3.weight"][0, :2] = torch.tensor([-_LOUD, _LOUD])
        return state

    def recognised(self, places: Tensor) -> bool:
        """Return whether the image can be recognised in what is known of its places."""
        guess = (self.mean + places @ self.parts[: len(places)])[None]
        own, others = (float(alike(rows, guess).max()) for rows in (self.image[None], self.public))
        return own > max(ALIKE, others)


def by_losses(target: Target, ask: Ask, count: int) -> bool:
    """Return whether an image is recognised by so many losses, each along another direction."""
    places, other = list[float](), (target.label + 1) % 10
    for part, column in zip(target.parts[:count], target.places.T, strict=False):
        low, size = float(column.min()), float(column.max() - column.min())
        loud = target.model(part / size, -(low + float(part @ target.mean)) / size)
        loud["5.weight"][other, 0] = _LOUD
        try:
            loss = float(ask(loud, client_tasks.MEASURE).state["loss"])
        except SecedeError:
            return False
        most = _LOUD**2 / len(target.lab.samples.y)
        places.append(low + size * (loss - 2.3) / most)
    return target.recognised(torch.tensor(places, dtype=torch.float64))


def by_counts(target: Target, ask: Ask, count: int, repeats: int = 1) -> bool:
    """Return whether an image is recognised by so many counts, each halving where it can lie."""
    ends = torch.stack((target.places.amin(dim=0), target.places.amax(dim=0)))
    variances, known = target.places.var(dim=0), target.places
    inside = torch.ones_like(known, dtype=torch.bool)
    for _ in range(count // repeats):
        part = int(variances.argmax())
        middle = float(known[inside[:, part], part].median())
        above = any(_is_above(target, ask, part, middle, n) for n in range(repeats))
        ends[0 if above else 1, part] = middle
        inside[:, part] &= (known[:, part] > middle) == above
        variances[part] /= SPLIT if int(inside[:, part].sum()) > 1 else 1e9
    chosen = inside.any(dim=0)
    means = torch.stack([known[inside[:, n], n].mean() for n in range(known.shape[1])])
    return target.recognised(means.where(chosen, 0.0))


def _is_above(target: Target, ask: Ask, part: int, middle: float, number: int) -> bool:
    """Return whether a count says that the image lies beyond a place along a direction."""
    direction = target.parts[part]
    model = target.model(direction, -middle - float(direction @ target.mean))
    model["5.weight"][target.label, 0] = 1.0 + 1e-6 * number
    model["5.bias"][(target.label + 1) % 10] = 1e-6
    with suppress(SecedeError):
        return int(ask(model, client_tasks.COUNT).state["right"][target.label]) > 0
    return False


def recognised(
    lab: Lab, read: Callable[[Target, Ask], bool], ask: Ask | None, targets: Sequence[int]
) -> str:
    """Return how many images are recognised, each with a month's answers."""
    found = 0
    for number in targets:
        lab.wait_a_month()
        found += read(Target(lab, number), ask or partial(_asked, lab))
    return f"{found} of {len(targets)} images"


def _asked(lab: Lab, *question: Any) -> Any:
    """Ask for a request that the server makes up where the last one has no answers left."""
    try:
        return lab.ask(*question)
    except SecedeError as error:
        if "for this request" not in str(error):
            raise
    lab.request = lab.new_request()
    return lab.ask(*question)


def rows(lab: Lab, targets: int) -> Iterator[Row]:
    """Yield the rows: without limits, and with."""
    tries: tuple[tuple[str, Callable[[Target, Ask], bool], str], ...] = (
        (f"{REQUEST} losses", partial(by_losses, count=REQUEST), "tells no loss"),
        (f"{MONTH} losses", partial(by_losses, count=MONTH), "the same"),
        (f"{REQUEST} counts", partial(by_counts, count=REQUEST), "rounds each by a coin"),
        (f"{MONTH} counts", partial(by_counts, count=MONTH), "answers so many in a month"),
        (
            f"{MONTH} counts, each question {REPEATS} times",
            partial(by_counts, count=MONTH, repeats=REPEATS),
            "the same",
        ),
    )
    for what, read, said in tries:
        told = [recognised(lab, read, ask, range(targets)) for ask in (lab.without_limits, None)]
        yield what, *told, said


def markdown(images: int = 100, targets: int = 20) -> Iterator[str]:
    """Yield the table's lines."""
    columns = ("one image by", "without limits", "with", "the client")
    with tempfile.TemporaryDirectory() as folder:
        yield from table(columns, [*rows(prepared(Path(folder), images), targets)]).splitlines()


def prepared(folder: Path, images: int) -> Lab:
    """Return a client that knows any model: it trained one from far away."""
    lab = Lab(folder, "mlp", images)
    lab.train({name: value - FAR for name, value in lab.update.items()})
    return lab


def main() -> None:
    """Print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--targets", type=int, default=20, help="how many of them are tried")
    arguments = parser.parse_args()
    for line in markdown(arguments.images, arguments.targets):
        print(line)


if __name__ == "__main__":
    main()
