"""What is measured of a state in every round, and what is kept so that attacks can be re-run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secede.data.samples import Samples
from secede.experiments.setup import Federation
from secede.seeding import derive, generator, seeded
from secede.state import State
from secede.verification.accuracy import Evidence, evaluate, evaluate_all
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


@dataclass(frozen=True)
class Examined:
    """A model's answers to what every round asks."""

    model: nn.Module  # the engine's for evaluation: the next examination overwrites it
    test: Evidence
    probe: Evidence
    leaver: Evidence


class Examiner:
    """Examines the states of one federation, one at a time; asks no sample of a state twice."""

    def __init__(self, federation: Federation, seed: int) -> None:
        self._federation, self._seed = federation, seed
        self._retained = [federation.engine.clients[i] for i in federation.retained]
        count = sum(len(samples) for samples in self._retained)
        order = torch.randperm(count, generator=generator(seed, "shadow members"))
        self._members = order[:SHADOW_MEMBERS]
        self._draws: bool | None = None

    def examine(self, state: State) -> Examined:
        """Ask the state's model about the test set, the probe and the leaver's own, in one pass."""
        federation = self._federation
        model = federation.engine.model(state)
        leaver = federation.engine.clients[federation.leaver]
        sets = [federation.test, federation.probe.samples, leaver]
        return Examined(model, *self._evaluate(model, sets))

    def measure(self, examined: Examined) -> Measured:
        """Return clean accuracy, the probe's measures, and accuracy and loss at the leaver."""
        clean, probe, leaver = examined.test, examined.probe, examined.leaver
        shares = {"clean_accuracy": clean.accuracy()}
        hits = {"clean_accuracy": clean.predictions == clean.labels}
        for name, mask in self._federation.probe.measures.items():
            shares[name] = probe.accuracy(mask)
            hits[name] = (probe.predictions == probe.labels)[mask.cpu()]
        return Measured(
            shares, hits, {"leaver_accuracy": leaver.accuracy(), "leaver_loss": leaver.loss()}
        )

    def answers(self, examined: Examined, trained: Sequence[int]) -> Answers:
        """Ask also about non-members and members; `trained` are the clients it learnt from."""
        federation = self._federation
        sets = [federation.nonmembers, *self._retained]
        nonmembers, *retained = self._evaluate(examined.model, sets)
        by_client = dict(zip(federation.retained, retained, strict=True))
        by_client[federation.leaver] = examined.leaver
        losses = [by_client[client].losses.double() for client in trained]
        return Answers(
            leaver=examined.leaver,
            nonmembers=nonmembers,
            members=Evidence(
                torch.cat([evidence.logits for evidence in retained])[self._members],
                torch.cat([evidence.labels for evidence in retained])[self._members],
            ),
            test=examined.test,
            mean_training_loss=float(torch.cat(losses).mean()),
        )

    def _evaluate(self, model: nn.Module, sets: Sequence[Samples]) -> list[Evidence]:
        if self._draws is None:
            self._draws = _draws(model, sets[0].take(torch.arange(1)), self._seed)
        if not self._draws:
            return evaluate_all(model, sets)
        # Such a model would take random numbers from a round that trains at the same time.
        with seeded(self._seed, "evaluation"):
            return evaluate_all(model, sets)


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


def _draws(model: nn.Module, samples: Samples, seed: int) -> bool:
    """Say whether the model draws random numbers even in evaluation: a dropout left on."""
    with seeded(seed, "evaluation"):
        before = _generators(samples)
        evaluate(model, samples)
        return not torch.equal(before, _generators(samples))


def _generators(samples: Samples) -> Tensor:
    found = [torch.get_rng_state()]
    if samples.x.is_cuda:
        found.append(torch.cuda.get_rng_state(samples.x.device))
    return torch.cat(found)
