"""What all federations of an audit share: samples, who is dealt which, and what is asked.

The leaver's part of the data and held-out samples of its distribution are one *pool*, transformed
once. Each federation's leaver gets a random part of it, as large as the leaver's own. The retained
clients have the same samples in all federations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from secede.data import Dataset, Samples
from secede.errors import ConfigError
from secede.experiments.config import Config
from secede.experiments.setup import MINIMUM_NONMEMBERS, Deal, deal, probe_on
from secede.scenarios.scenario import Probe, Scenario
from secede.seeding import derive, generator
from secede.verification import halves

MINIMUM_POOL = 200  # samples; the tenth that is most exposed must have members and others
WATCHED = 2_000  # of the retained clients' training samples, as many of each client


@dataclass(frozen=True)
class Watched:
    """Some of the retained clients' training samples, and whose each is."""

    samples: Samples
    clients: Tensor  # the client's number, by sample


@dataclass(frozen=True, kw_only=True)
class Material:
    """The samples of an audit; those that models are asked about are on the config's device."""

    config: Config
    seed: int
    dataset: Dataset  # without what the server holds back
    scenario: Scenario
    pool: Samples
    dealt: int  # samples of the pool that each federation's leaver gets
    retained: dict[int, Samples]  # by client
    watched: Watched
    test: Samples
    probe: Probe
    unlabelled: Tensor | None

    def member(self, number: int) -> Tensor:
        """Return which samples of the pool federation `number` deals to its leaver."""
        draw = generator(self.seed, "audit", "deal", number)
        mask = torch.zeros(len(self.pool), dtype=torch.bool)
        mask[torch.randperm(len(self.pool), generator=draw)[: self.dealt]] = True
        return mask

    def federation_seed(self, number: int, *, again: bool = False) -> int:
        """Return the seed of everything else in federation `number`, or that of its null."""
        seed = derive(self.seed, "audit", "federation", number)
        return derive(seed, "again") if again else seed

    def clients(self, member: Tensor) -> list[Samples]:
        """Return all clients' samples, where the leaver has those samples of the pool."""
        own = self.pool.take(member.to(self.pool.y.device))
        count, leaver = self.config.clients.count, self.config.clients.leaver
        return [own if client == leaver else self.retained[client] for client in range(count)]


def gather(config: Config, dataset: Dataset, seed: int) -> Material:
    """Deal a config's samples once for all federations of an audit."""
    dealt = deal(config, dataset, seed)
    leaver, train = config.clients.leaver, dealt.dataset.train
    pool, test = _pool_and_test(dealt, leaver, seed)
    retained = {
        client: train.take(part) for client, part in enumerate(dealt.parts) if client != leaver
    }
    watched, on = _watched(retained, seed), config.device
    return Material(
        config=config,
        seed=seed,
        dataset=dealt.dataset,
        scenario=dealt.scenario,
        pool=dealt.scenario.transform(pool, generator(seed, "audit", "pool")).to(on),
        dealt=len(dealt.parts[leaver]),
        retained=retained,
        watched=replace(watched, samples=watched.samples.to(on)),
        test=test.to(on),
        probe=probe_on(dealt.scenario, test, on),
        unlabelled=dealt.unlabelled,
    )


def _pool_and_test(dealt: Deal, leaver: int, seed: int) -> tuple[Samples, Samples]:
    """Return the leaver's samples with held-out ones like them, and the rest of the test set.

    There are at most as many held-out samples as the leaver has, and at most half of the test set.
    """
    own, test = dealt.dataset.train.take(dealt.parts[leaver]), dealt.dataset.test
    held_out, rest = halves(test.y, seed=derive(seed, "audit", "held out"))
    candidates = test.take(torch.from_numpy(held_out))
    draw = generator(seed, "audit", "held out")
    alike = dealt.scenario.held_out(candidates.y, own.y, draw)
    chosen = torch.arange(len(candidates)) if alike is None else alike
    chosen = chosen[torch.randperm(len(chosen), generator=draw)[: len(own)]]
    if len(chosen) < MINIMUM_NONMEMBERS:
        raise ConfigError(
            f"{len(chosen)} held-out samples are like the leaver's, expected at least "
            f"{MINIMUM_NONMEMBERS} among the half of the test set that an audit may use: choose "
            "other classes (scenario.classes) or raise `limit`"
        )
    more = candidates.take(chosen)
    pool = Samples(torch.cat([own.x, more.x]), torch.cat([own.y, more.y]))
    if len(pool) < MINIMUM_POOL:
        raise ConfigError(
            f"the leaver has {len(own)} samples and {len(more)} held-out ones are like them, "
            f"expected {MINIMUM_POOL} or more together: give the leaver more, or raise `limit`"
        )
    return pool, test.take(torch.from_numpy(rest))


def _watched(retained: dict[int, Samples], seed: int) -> Watched:
    each, parts, clients = max(1, WATCHED // len(retained)), list[Samples](), list[Tensor]()
    for client, samples in retained.items():
        draw = generator(seed, "audit", "watched", client)
        parts.append(samples.take(torch.randperm(len(samples), generator=draw)[:each]))
        clients.append(torch.full_like(parts[-1].y, client))
    joined = Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
    return Watched(joined, torch.cat(clients))
