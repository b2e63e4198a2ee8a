"""Scores of a state in every round, and the outputs recorded for membership attacks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secede.data import Samples
from secede.experiments.setup import Federation
from secede.seeding import derive, generator, seeded
from secede.state import State
from secede.verification import (
    Evidence,
    Mean,
    Score,
    ShokriAttack,
    evaluate,
    evaluate_all,
    halves,
    yeom,
)

_PARTS = ("leaver", "nonmembers", "members", "test")
WATCHED = 2_000  # retained clients' samples whose accuracy is measured in every round
SHADOW_MEMBERS = 10_000  # training samples whose outputs train Shokri's attack


@dataclass(frozen=True)
class Measured:
    """Scores on held-out samples, with their hits, and on clients' own samples."""

    shares: dict[str, Score]
    hits: dict[str, Tensor]
    own: dict[str, Score | Mean]

    def to_record(self, retrained: Measured | None) -> dict[str, dict[str, float]]:
        """Return the scores as records hold them, compared sample by sample with `retrained`.

        `gained` and `lost` count the samples that only this state, or only the retrained one, has
        right: what a paired interval for the difference needs.
        """
        rows = {name: score.to_dict() for name, score in {**self.shares, **self.own}.items()}
        if retrained is not None:
            for name, hits in self.hits.items():
                others = retrained.hits[name]
                compared = self.shares[name].against(retrained.shares[name])
                gained, lost = int((hits & ~others).sum()), int((others & ~hits).sum())
                rows[name] = {**compared.to_dict(), "gained": gained, "lost": lost}
        return rows


@dataclass(frozen=True)
class AttackInputs:
    """The outputs of a model that membership attacks work on, and its mean training loss."""

    leaver: Evidence
    nonmembers: Evidence  # test samples transformed like the leaver's; judge the attacks
    members: Evidence  # drawn from the retained clients; train Shokri's attack
    test: Evidence  # untransformed test samples; train Shokri's attack
    mean_training_loss: float  # over the clients that the model was last trained on
    nonmember_indices: Tensor | None = None  # in `test`; None: all of it, in order

    def to_tensors(self) -> dict[str, Tensor]:
        """Return named tensors for an evidence file."""
        tensors = {"mean_training_loss": torch.tensor(self.mean_training_loss, dtype=torch.float64)}
        for name in _PARTS:
            evidence: Evidence = getattr(self, name)
            tensors[f"{name}.logits"], tensors[f"{name}.labels"] = evidence.logits, evidence.labels
        if self.nonmember_indices is not None:
            tensors["nonmembers.indices"] = self.nonmember_indices
        return tensors

    @classmethod
    def from_tensors(cls, tensors: State) -> AttackInputs:
        """Read what `to_tensors` returned."""
        leaver, nonmembers, members, test = (
            Evidence(tensors[f"{name}.logits"], tensors[f"{name}.labels"]) for name in _PARTS
        )
        return cls(
            leaver,
            nonmembers,
            members,
            test,
            float(tensors["mean_training_loss"]),
            tensors.get("nonmembers.indices"),
        )

    def nonmembers_among(self, test_indices: Tensor) -> Evidence:
        """Return the outputs for those non-members whose index in `test` is given."""
        own = self.nonmember_indices
        chosen = test_indices if own is None else torch.isin(own, test_indices).nonzero().flatten()
        return Evidence(self.nonmembers.logits[chosen], self.nonmembers.labels[chosen])


@dataclass(frozen=True)
class Examined:
    """A model's outputs for the samples that every round evaluates."""

    model: nn.Module  # the engine's for evaluation: the next examination overwrites it
    test: Evidence
    probe: Evidence
    leaver: Evidence
    retained: Evidence  # some of the retained clients' samples


class Evaluator:
    """Evaluates models of one architecture on samples, also one that draws random numbers."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._is_random: bool | None = None

    def evaluate(self, model: nn.Module, sets: Sequence[Samples]) -> list[Evidence]:
        """Return the model's outputs for each set."""
        if self._is_random is None:
            self._is_random = _draws_random_numbers(
                model, sets[0].take(torch.arange(1)), self._seed
            )
        with self.draws("evaluation"):
            return evaluate_all(model, sets)

    def draws(self, purpose: str) -> AbstractContextManager[None]:
        """Return random numbers for a model that draws some, once it was evaluated.

        Others would be those of a round that trains at the same time.
        """
        return seeded(self._seed, purpose) if self._is_random else nullcontext()


class Examiner:
    """Evaluates the states of one federation, one at a time and each sample once."""

    def __init__(self, federation: Federation, seed: int) -> None:
        self._federation, self._seed = federation, seed
        self._retained = [federation.engine.clients[i] for i in federation.retained]
        count = sum(len(samples) for samples in self._retained)
        order = torch.randperm(count, generator=generator(seed, "shadow members"))
        self._members = order[:SHADOW_MEMBERS]
        self._watched = _select(self._retained, order[:WATCHED])
        self._evaluator = Evaluator(seed)

    def examine(self, state: State) -> Examined:
        """Evaluate a state on the test set, the probe, the leaver's and some retained samples."""
        federation = self._federation
        model = federation.engine.model(state)
        leaver = federation.engine.clients[federation.leaver]
        sets = [federation.test, federation.probe.samples, leaver, self._watched]
        return Examined(model, *self._evaluator.evaluate(model, sets))

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

    def read_canaries(self, examined: Examined) -> dict[str, object] | None:
        """Return what the leaver's canaries say of the model; None if it planted none."""
        planted = self._federation.canaries.get(self._federation.leaver)
        if planted is None:
            return None
        with self._evaluator.draws("canaries"):
            return planted.to_record(examined.model)

    def attack_inputs(self, examined: Examined, trained: Sequence[int]) -> AttackInputs:
        """Evaluate non-members and members too; `trained` are the clients it was trained on."""
        federation = self._federation
        sets = [federation.nonmembers, *self._retained]
        nonmembers, *retained = self._evaluator.evaluate(examined.model, sets)
        by_client = dict(zip(federation.retained, retained, strict=True))
        by_client[federation.leaver] = examined.leaver
        losses = [by_client[client].losses.double() for client in trained]
        return AttackInputs(
            leaver=examined.leaver,
            nonmembers=nonmembers,
            members=Evidence(
                torch.cat([evidence.logits for evidence in retained])[self._members],
                torch.cat([evidence.labels for evidence in retained])[self._members],
            ),
            test=examined.test,
            mean_training_loss=float(torch.cat(losses).mean()),
            nonmember_indices=federation.nonmember_indices,
        )


def membership(
    shadow: AttackInputs, targets: dict[str, AttackInputs], seed: int
) -> dict[str, object]:
    """Attack every target twice, as the paper does: Yeom by loss, Shokri by posteriors.

    Shokri's attack learns from the shadow's training samples, the leaver's left out, and test
    samples, none of which it is judged on.
    """
    labels = shadow.test.labels
    train, judge = (torch.from_numpy(part) for part in halves(labels, seed=derive(seed, "halves")))
    attack = ShokriAttack.fit(
        shadow.members.logits,
        shadow.members.labels,
        shadow.test.logits[train],
        labels[train],
        seed=derive(seed, "shokri"),
    )
    results: dict[str, object] = {}
    for name, target in targets.items():
        nonmembers = target.nonmembers_among(judge)
        by_loss = yeom(target.leaver.losses, nonmembers.losses, target.mean_training_loss)
        by_posteriors = attack.score(
            target.leaver.logits, target.leaver.labels, nonmembers.logits, nonmembers.labels
        )
        results[name] = {"yeom": by_loss.to_dict(), "shokri": by_posteriors.to_dict()}
    return results


def _select(clients: Sequence[Samples], indices: Tensor) -> Samples:
    """Return the samples at `indices`, counted through all clients."""
    parts, start = list[Samples](), 0
    for samples in clients:
        own = indices[(indices >= start) & (indices < start + len(samples))] - start
        parts.append(samples.take(own))
        start += len(samples)
    return Samples(torch.cat([s.x for s in parts]), torch.cat([s.y for s in parts]))


def _draws_random_numbers(model: nn.Module, samples: Samples, seed: int) -> bool:
    """Return whether the model draws random numbers even in evaluation, as by a dropout left on."""
    with seeded(seed, "evaluation"):
        before = _random_state(samples)
        evaluate(model, samples)
        return not torch.equal(before, _random_state(samples))


def _random_state(samples: Samples) -> Tensor:
    states = [torch.get_rng_state()]
    if samples.x.is_cuda:
        states.append(torch.cuda.get_rng_state(samples.x.device))
    return torch.cat(states)
