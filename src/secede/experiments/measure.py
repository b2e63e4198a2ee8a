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
WATCHED = 2_000  # of the retained clients' samples, whose accuracy is measured in every round
SHADOW_MEMBERS = 10_000  # training samples whose answers teach Shokri's attack


@dataclass(frozen=True)
class Measured:
    """Shares of held-out samples, which of them were hits, and scores on clients' own samples."""

    shares: dict[str, Score]
    hits: dict[str, Tensor]
    own: dict[str, Score | Mean]

    def record(self, retrained: Measured | None) -> dict[str, dict[str, float]]:
        """Return the scores as records hold them, compared sample by sample with `retrained`.

        `gained` and `lost` count the samples that are hits here and not there, and the other way
        round: what a paired interval for the difference needs.
        """
        rows = {name: score.to_dict() for name, score in {**self.shares, **self.own}.items()}
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
    nonmembers: Evidence  # test samples made like the leaver's: what attacks are judged on
    members: Evidence  # drawn from the retained clients; teaches the shadow's attack
    test: Evidence  # the same test samples as they are; teaches the shadow's attack
    mean_training_loss: float  # over the clients that the model was last trained on
    nonmember_places: Tensor | None = None  # in `test`; None: they are all of it, in order

    def tensors(self) -> dict[str, Tensor]:
        """Return the answers as named tensors, as an evidence file holds them."""
        found = {"mean_training_loss": torch.tensor(self.mean_training_loss, dtype=torch.float64)}
        for name in _PARTS:
            evidence: Evidence = getattr(self, name)
            found[f"{name}.logits"], found[f"{name}.labels"] = evidence.logits, evidence.labels
        if self.nonmember_places is not None:
            found["nonmembers.places"] = self.nonmember_places
        return found

    @classmethod
    def of_tensors(cls, tensors: State) -> Answers:
        """Return the answers that `tensors` wrote."""
        leaver, nonmembers, members, test = (
            Evidence(tensors[f"{name}.logits"], tensors[f"{name}.labels"]) for name in _PARTS
        )
        return cls(
            leaver,
            nonmembers,
            members,
            test,
            float(tensors["mean_training_loss"]),
            tensors.get("nonmembers.places"),
        )

    def judged(self, judge: Tensor) -> Evidence:
        """Return the answers to those non-members that are in `judge`, places in `test`."""
        places = self.nonmember_places
        chosen = judge if places is None else torch.isin(places, judge).nonzero().flatten()
        return Evidence(self.nonmembers.logits[chosen], self.nonmembers.labels[chosen])


@dataclass(frozen=True)
class Examined:
    """A model's answers to what every round asks."""

    model: nn.Module  # the engine's for evaluation: the next examination overwrites it
    test: Evidence
    probe: Evidence
    leaver: Evidence
    retained: Evidence  # some of the retained clients' samples


class Examiner:
    """Examines the states of one federation, one at a time; asks no sample of a state twice."""

    def __init__(self, federation: Federation, seed: int) -> None:
        self._federation, self._seed = federation, seed
        self._retained = [federation.engine.clients[i] for i in federation.retained]
        count = sum(len(samples) for samples in self._retained)
        order = torch.randperm(count, generator=generator(seed, "shadow members"))
        self._members = order[:SHADOW_MEMBERS]
        self._watched = _drawn(self._retained, order[:WATCHED])
        self._draws: bool | None = None

    def examine(self, state: State) -> Examined:
        """Ask the model about test set, probe, the leaver's own and some retained, in one pass."""
        federation = self._federation
        model = federation.engine.model(state)
        leaver = federation.engine.clients[federation.leaver]
        sets = [federation.test, federation.probe.samples, leaver, self._watched]
        return Examined(model, *self._evaluate(model, sets))

    def measure(self, examined: Examined) -> Measured:
        """Return clean accuracy, the probe's measures, and accuracy and loss at the leaver."""
        clean, probe, leaver = examined.test, examined.probe, examined.leaver
        shares = {"clean_accuracy": clean.accuracy()}
        hits = {"clean_accuracy": clean.predictions == clean.labels}
        for name, mask in self._federation.probe.measures.items():
            shares[name] = probe.accuracy(mask)
            hits[name] = (probe.predictions == probe.labels)[mask.cpu()]
        own: dict[str, Score | Mean] = {
            "leaver_accuracy": leaver.accuracy(),
            "leaver_loss": leaver.loss(),
            "retained_accuracy": examined.retained.accuracy(),
        }
        return Measured(shares, hits, own)

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
            nonmember_places=federation.nonmember_places,
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
        outside = target.judged(judge)
        by_loss = yeom(target.leaver.losses, outside.losses, target.mean_training_loss)
        by_posteriors = attack.score(
            target.leaver.logits, target.leaver.labels, outside.logits, outside.labels
        )
        found[name] = {"yeom": by_loss.to_dict(), "shokri": by_posteriors.to_dict()}
    return found


def _drawn(clients: Sequence[Samples], places: Tensor) -> Samples:
    """Return the samples at `places`, counted through all clients."""
    taken, start = list[Samples](), 0
    for samples in clients:
        here = places[(places >= start) & (places < start + len(samples))] - start
        taken.append(samples.take(here))
        start += len(samples)
    return Samples(torch.cat([s.x for s in taken]), torch.cat([s.y for s in taken]))


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
