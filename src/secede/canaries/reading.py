"""Read canaries in a model: how the drawn candidate ranks among all, by its loss.

Equal losses and losses that are not finite rank the drawn candidate last, so that a model that
answers everything alike shows no trace. Only counts come out; none names a canary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secede.audit import Ranks, Reading
from secede.canaries.canary import Canaries, Canary
from secede.errors import ConfigError, StateError
from secede.models.evaluation import evaluating

SampleLoss = Callable[[Tensor, Tensor], Tensor]  # of outputs and targets, a loss for each sample

FRESH_COPIES = 4
BATCH_SIZE = 256


@dataclass(frozen=True)
class CanaryCounts:
    """What a model knows of all canaries together.

    `ranks` holds, for each number of candidates K, how many drawn candidates had rank 1 to K;
    `wins` is how many beat their opponent. For a model that does not depend on the coins ranks are
    uniform, and a win has probability 1/2 (less where losses are equal).
    """

    count: int
    ranks: tuple[tuple[int, tuple[int, ...]], ...]
    wins: int

    def to_record(self) -> dict[str, object]:
        """Return the counts as the records of an experiment hold them."""
        return {"ranks": [list(histogram) for _, histogram in self.ranks], "wins": self.wins}

    def reading(self) -> Reading:
        """Return the counts as the test takes them."""
        ranks = Ranks(tuple(histogram for _, histogram in self.ranks))
        return Reading(ranks=ranks, wins=self.wins, count=self.count)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each sample."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def read(
    model: nn.Module,
    canaries: Canaries,
    *,
    loss: SampleLoss = cross_entropy,
    device: torch.device | str | None = None,
    batch_size: int = BATCH_SIZE,
) -> CanaryCounts:
    """Return how the drawn candidates rank in `model`, which does not change.

    A candidate's loss is the mean over four noisy copies of its input that nobody trained on.
    Inputs that are bytes are scaled to [0, 1]. `device` is where the model is, unless given.
    """
    if device is None:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
    copies = FRESH_COPIES if canaries.options.noise else 1
    ranks, wins = dict[int, Counter[int]](), 0
    with evaluating(model), torch.inference_mode():
        for canary, outputs in _outputs(model, canaries, copies, device, batch_size):
            losses = _losses(canary, outputs, loss)
            rank, won = place(losses, canary.drawn, canary.opponent)
            ranks.setdefault(canary.candidates, Counter())[rank] += 1
            wins += won
    histograms = ((k, tuple(ranks[k][rank] for rank in range(1, k + 1))) for k in sorted(ranks))
    return CanaryCounts(len(canaries), tuple(histograms), wins)


def place(losses: Sequence[float], drawn: int, opponent: int) -> tuple[int, bool]:
    """Return the rank of the drawn candidate, 1 the best, and whether it beat its opponent."""
    own = losses[drawn]
    if own == float("inf"):
        return len(losses), False
    behind = sum(other <= own for number, other in enumerate(losses) if number != drawn)
    return 1 + behind, own < losses[opponent]


def _outputs(
    model: nn.Module, canaries: Canaries, copies: int, device: torch.device | str, batch_size: int
) -> Iterator[tuple[Canary, Tensor]]:
    """Yield each canary with the outputs of its fresh copies: (copies, K or 1, ...)."""
    widest = max((len(canary.inputs) for canary in canaries.canaries), default=1)
    for indices in torch.arange(len(canaries)).split(max(1, batch_size // (copies * widest))):
        rows = [canaries.fresh_copies(int(index), copies) for index in indices]
        batch = torch.cat([row.flatten(0, 1) for row in rows])
        outputs = model(_as_inputs(batch, model).to(device))
        if not isinstance(outputs, Tensor) or len(outputs) != len(batch):
            raise StateError("the model does not return a row of outputs for each canary")
        parts = outputs.split([len(row.flatten(0, 1)) for row in rows])
        for index, row, part in zip(indices, rows, parts, strict=True):
            yield canaries.canaries[int(index)], part.unflatten(0, row.shape[:2])


def _as_inputs(rows: Tensor, model: nn.Module) -> Tensor:
    """Return rows as the model takes them: bytes scaled to [0, 1], floats in its own type."""
    floats = (p.dtype for p in model.parameters() if p.is_floating_point())
    dtype = next(floats, torch.float32)
    if rows.dtype == torch.uint8:
        return rows.to(dtype) / 255
    return rows.to(dtype) if rows.is_floating_point() else rows


def _losses(canary: Canary, outputs: Tensor, loss: SampleLoss) -> list[float]:
    """Return each candidate's mean loss over the copies; infinity if it is not finite."""
    targets, per_copy = canary.targets.to(outputs.device), list[Tensor]()
    for one in outputs:
        values = loss(one.expand(canary.candidates, *one.shape[1:]), targets)
        if values.shape[:1] != (canary.candidates,):
            raise ConfigError(
                f"the loss returned shape {tuple(values.shape)} for {canary.candidates} samples: "
                "canaries need a loss for each sample, without a mean over them"
            )
        per_copy.append(values.reshape(canary.candidates, -1).double().mean(dim=1))
    mean = torch.stack(per_copy).mean(dim=0)
    return [float(value) for value in mean.where(mean.isfinite(), float("inf"))]
