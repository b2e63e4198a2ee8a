"""What is measured of a state in every round, and what is kept so that attacks can be re-run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secede.data.samples import Samples
from secede.experiments.setup import Federation
from secede.seeding import derive, generator
from secede.state import State
from secede.verification.accuracy import Evidence, evaluate
from secede.verification.membership import ShokriAttack, halves, yeom
from secede.verification.score import Mean, Score

_PARTS = ("leaver", "nonmembers", "members", "test")
SHADOW_MEMBERS = 10_000  # training samples whose answers teach Shokri's attack


@dataclass(frozen=True)
class Measured:
    """Shares of held-out samples, which of them were hits, and scores on the leaver's own."""

    shares: dict[str, Score]
    hits: dict[str, Tensor]
    leaver: dict[str, Score | Mean]

    def record(self, retrained: Measured | None) -> dict[str, dict[str, float]]:
        """Return the scores as records hold them, compared sample by sample with `retrained`.

        `gained` and `lost` count the samples that are hits here and not there, and the other way
        round: what a paired interval for the difference needs.
        """
        rows = {name: score.to_dict() for name, score in {**self.shares, **self.leaver}.items()}
        if retrained is not None:
            for name, here in self.hits.items():
                there = retrained.hits[name]
                compared = self.shares[name].against(retrained.shares[name])
                gained, lost = int((here & ~there).sum()), int((there & ~here).sum())
                rows[name] = {**compared.to_dict(), "gained": gained, "lost": lost}
        return rows


def measure(federation: Federation, state: State) -> Measured:
    """Return clean accuracy, the probe's measures, and accuracy and loss at the leaver."""
    model = federation.engine.model(state)
    clean = evaluate(model, federation.test)
    probe = evaluate(model, federation.probe.samples)
    leaver = evaluate(model, federation.engine.clients[federation.leaver])
    shares = {"clean_accuracy": clean.accuracy()}
    hits = {"clean_accuracy": clean.predictions == clean.labels}
    for name, mask in federation.probe.measures.items():
        shares[name] = probe.accuracy(mask)
        hits[name] = (probe.predictions == probe.labels)[mask.cpu()]
    return Measured(
        shares, hits, {"leaver_accuracy": leaver.accuracy(), "leaver_loss": leaver.loss()}
    )


@dataclass(frozen=True)
class Answers:
    """A model's answers that membership attacks work on, and its mean training loss."""

    leaver: Evidence
    nonmembers: Evidence  # test samples, transformed like the leaver's: what attacks are judged on
    members: Evidence  # drawn from the retained clients; teaches the shadow's attack
    test: Evidence  # the same test samples as they are; teaches the shadow's attack
    mean_training_loss: float  # over the clients that the model was last trained on

    def tensors(self) -> dict[str, Tensor]:
        """Return the answers as named tensors, as an evidence file holds them."""
        found = {"mean_training_loss": torch.tensor(self.mean_training_loss, dtype=torch.float64)}
        for name in _PARTS:
            evidence: Evidence = getattr(self, name)
            found[f"{name}.logits"], found[f"{name}.labels"] = evidence.logits, evidence.labels
        return found

    @classmethod
    def of_tensors(cls, tensors: State) -> Answers:
        """Return the answers that `tensors` wrote."""
        leaver, nonmembers, members, test = (
            Evidence(tensors[f"{name}.logits"], tensors[f"{name}.labels"]) for name in _PARTS
        )
        return cls(leaver, nonmembers, members, test, float(tensors["mean_training_loss"]))


def answers(federation: Federation, state: State, trained: Sequence[int], seed: int) -> Answers:
    """Ask the model about members and non-members; `trained` are the clients it learnt from."""
    engine = federation.engine
    model = engine.model(state)
    return Answers(
        leaver=evaluate(model, engine.clients[federation.leaver]),
        nonmembers=evaluate(model, federation.nonmembers),
        members=evaluate(model, _draw([engine.clients[i] for i in federation.retained], seed)),
        test=evaluate(model, federation.test),
        mean_training_loss=_mean_loss(model, [engine.clients[client] for client in trained]),
    )


def membership(shadow: Answers, targets: dict[str, Answers], seed: int) -> dict[str, object]:
    """Attack every target twice, as the paper does: Yeom by loss, Shokri by posteriors.

    Shokri's attack learns from the shadow's training samples, the leaver's left out, and test
    samples: nothing that taught it is among what it is judged on.
    """
    labels = shadow.test.labels
    teach, judge = (torch.from_numpy(part) for part in halves(labels, seed=derive(seed, "halves")))
    attack = ShokriAttack.fit(
        shadow.members.logits,
        shadow.members.labels,
        shadow.test.logits[teach],
        labels[teach],
        seed=derive(seed, "shokri"),
    )
    found: dict[str, object] = {}
    for name, target in targets.items():
        by_loss = yeom(
            target.leaver.losses, target.nonmembers.losses[judge], target.mean_training_loss
        )
        by_posteriors = attack.score(
            target.leaver.logits,
            target.leaver.labels,
            target.nonmembers.logits[judge],
            target.nonmembers.labels[judge],
        )
        found[name] = {"yeom": by_loss.to_dict(), "shokri": by_posteriors.to_dict()}
    return found


def _draw(clients: Sequence[Samples], seed: int) -> Samples:
    pool = Samples(torch.cat([c.x for c in clients]), torch.cat([c.y for c in clients]))
    order = torch.randperm(len(pool), generator=generator(seed, "shadow members"))
    return pool.take(order[:SHADOW_MEMBERS].to(pool.y.device))


def _mean_loss(model: nn.Module, clients: Sequence[Samples]) -> float:
    losses = [evaluate(model, samples).losses.double() for samples in clients]
    return float(torch.cat(losses).mean())
