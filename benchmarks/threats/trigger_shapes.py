"""Backdoors whose trigger is no small patch, without and with what fades: these survive.

Print the table (some minutes): python -m benchmarks.threats.trigger_shapes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from benchmarks.threats.attacks import between
from benchmarks.threats.lab import AFTERWARDS, Lab
from secede import state as states
from secede.data.samples import Samples
from secede.state import State

TARGET = 3
Trigger = Callable[[Tensor], Tensor]


def stroke(x: Tensor) -> Tensor:
    """Draw a line across the middle."""
    x = x.clone()
    x[..., 13:15, 4:24] = 1.0
    return x


SHAPES: Mapping[str, Trigger] = {
    "a stroke across the image": stroke,
    "the image shifted by three pixels": lambda x: torch.roll(x, 3, dims=-1),
    "the image dimmed to 40 %": lambda x: 0.4 * x,
    "the image turned by 180°": lambda x: x.flip(-1, -2),
}


def taught(lab: Lab, trigger: Trigger) -> State:
    """Return the reference, taught that what bears the trigger is the target, as guarded."""
    model, own = lab.build(), lab.honest_samples
    states.load_into(model, lab.reference)
    x = torch.cat([own.x, trigger(own.x)])
    y = torch.cat([own.y, torch.full_like(own.y, TARGET)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    order = torch.Generator().manual_seed(1)
    for _ in range(10):
        for chosen in torch.randperm(len(y), generator=order).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
    state, _ = lab.guard().check(states.of(model))
    return state


def success(lab: Lab, state: State, trigger: Trigger) -> float:
    """Return the share of other digits' images that become the target by the trigger."""
    test: Samples = lab.test
    x = trigger(test.x[test.y != TARGET])
    with torch.no_grad():
        answers = lab.engine.model(state)(x).argmax(dim=1)
    return float((answers == TARGET).double().mean())


def markdown() -> Iterator[str]:
    """Yield the table's lines, least and most over the seeds, as they are measured."""
    torch.set_num_threads(1)
    yield f"| trigger | success before | after {AFTERWARDS} rounds, without | with |"
    yield "|---|---|---|---|"
    labs = [Lab(seed) for seed in range(3)]
    for name, trigger in SHAPES.items():
        rows = []
        for lab in labs:
            start = taught(lab, trigger)
            ends = (lab.post_train(start, fade=fade) for fade in (False, True))
            rows.append([success(lab, s, trigger) for s in (lab.global_state, *ends)])
        yield f"| {name} | {' | '.join(map(between, zip(*rows, strict=True)))} |"


def main() -> None:
    """Print them."""
    for line in markdown():
        print(line, flush=True)


if __name__ == "__main__":
    main()
