"""What is asked of each model of an audit: margins on three sets of samples, and a few scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from secede.audit.ensembles.margins import SampleSet
from secede.experiments.ensembles.material import Material
from secede.experiments.measure import Evaluator
from secede.verification import Evidence

HalfFloats = NDArray[np.float16]
WORST_CLIENT = "worst_client_accuracy"


@dataclass(frozen=True)
class Answers:
    """What one model answers: margins by set of samples, scores by name."""

    margins: Mapping[SampleSet, HalfFloats]
    scores: Mapping[str, float]


class Questions:
    """Asks models of one federation; `member` says which samples of the pool are the leaver's."""

    def __init__(self, material: Material, member: Tensor) -> None:
        self._material, self._member = material, member
        self._evaluator = Evaluator(material.seed)

    def ask(self, model: nn.Module) -> Answers:
        """Return the answers of a model, which does not change."""
        material = self._material
        sets = [material.pool, material.watched.samples, material.test, material.probe.samples]
        pool, watched, test, probe = self._evaluator.evaluate(model, sets)
        margins: dict[SampleSet, HalfFloats] = {
            "pool": margin(pool),
            "retained": margin(watched),
            "test": margin(test),
        }
        own = Evidence(pool.logits[self._member], pool.labels[self._member])
        scores = {"clean_accuracy": test.accuracy().value}
        for name, mask in material.probe.measures.items():
            scores[name] = probe.accuracy(mask).value
        scores |= {
            "leaver_accuracy": own.accuracy().value,
            "leaver_loss": own.loss().value,
            "retained_accuracy": watched.accuracy().value,
            WORST_CLIENT: min(self._by_client(watched)),
        }
        return Answers(margins, scores)

    def _by_client(self, watched: Evidence) -> list[float]:
        clients = self._material.watched.clients
        return [watched.accuracy(clients == client).value for client in clients.unique()]


def margin(evidence: Evidence) -> HalfFloats:
    """Return the logit of the probability that a model gives each sample's label.

    That is the label's output less the log of the sum of the others' exponentials. What is beyond
    the range of a half float is cut to it.
    """
    outputs = evidence.logits.double()
    label = evidence.labels[:, None]
    others = outputs.scatter(1, label, float("-inf")).logsumexp(dim=1)
    values = outputs.gather(1, label)[:, 0] - others
    limit = float(np.finfo(np.float16).max)
    halves: HalfFloats = values.clamp(-limit, limit).to(torch.float16).numpy()
    return halves
