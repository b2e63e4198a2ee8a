"""A finished run as values: curves of every arm, methods' reports, membership attacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from secede.audit import Ranks, Reading
from secede.reports import names


@dataclass(frozen=True)
class Score:
    """A measured value and the number of samples behind it.

    Where it was compared with the retrained model sample by sample, `gained` counts the samples
    that only this model has right, and `lost` those that only the retrained one has.
    """

    value: float
    count: int
    gained: int | None = None
    lost: int | None = None


@dataclass(frozen=True)
class Cost:
    """The cost of an arm up to and including one round."""

    rounds: int
    upload_bytes: int
    download_bytes: int
    gradient_samples: int
    seconds: float


@dataclass(frozen=True)
class CanaryCounts:
    """How the leaver's canaries rank in a model: a histogram for each number of candidates.

    `wins` counts the canaries whose drawn candidate the model likes better than its opponent.
    """

    ranks: tuple[tuple[int, ...], ...]
    wins: int

    def reading(self) -> Reading:
        """Return the counts as the test takes them."""
        ranks = Ranks(self.ranks)
        return Reading(ranks=ranks, wins=self.wins, count=ranks.count)


@dataclass(frozen=True)
class Point:
    """One arm after one round."""

    arm: str
    round: int
    scores: Mapping[str, Score]
    cost: Cost
    digest: str
    canaries: CanaryCounts | None = None  # None: the leaver planted none


@dataclass(frozen=True)
class LocalStep:
    """How projected ascent's local step went and what ended it."""

    steps: int
    ended_by: str
    distance_to_own: float
    distance_to_reference: float
    projections: int
    accuracy: float | None
    loss: float | None
    radius: float | None = None
    stop_distance: float | None = None


@dataclass(frozen=True)
class History:
    """The history that the server kept while it trained, for methods that need it."""

    bytes: int
    rounds: int
    privacy: str


@dataclass(frozen=True)
class Attack:
    """One membership attack on one model; advantage = member rate - (1 - nonmember accuracy)."""

    member_rate: Score
    nonmember_accuracy: Score
    advantage: float


@dataclass(frozen=True)
class SeedRecord:
    """One finished seed: every arm's curve from round 0 on, and what was measured in the end.

    `reports` holds what methods reported of their start; projected ascent's is `local_step` too.
    """

    seed: int
    curves: Mapping[str, tuple[Point, ...]]
    reports: Mapping[str, Mapping[str, object]]
    local_step: LocalStep | None
    history: History | None
    membership: Mapping[tuple[str, int], Mapping[str, Attack]]
    environment: Mapping[str, object]
    seconds: float


@dataclass(frozen=True)
class Config:
    """The settings that a report uses, and all settings as (key, value) text."""

    name: str
    title: str
    data: str
    model: str
    clients: int
    leaver: int
    scenario: str
    limit: int | None
    methods: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]
    retrains_again: bool = False  # whether the null was run: older records have none

    @property
    def trained(self) -> tuple[str, ...]:
        """FedAvg and retraining, and the second retraining where there is one."""
        again = (names.RETRAIN_AGAIN,) if self.retrains_again else ()
        return (names.FEDAVG, names.RETRAIN, *again)

    @property
    def arms(self) -> tuple[str, ...]:
        """The trained models, then the methods in their order."""
        return (*self.trained, *self.methods)

    @property
    def main_probe(self) -> str:
        """Name of the scenario's main score."""
        return names.MAIN_PROBE[self.scenario]

    @property
    def utility(self) -> str:
        """Name of the score that tells whether a model is still useful."""
        return names.UTILITY.get(self.scenario, names.CLEAN_ACCURACY)


@dataclass(frozen=True)
class Run:
    """One config with its finished seeds; `unfinished` names the other seed folders."""

    folder: Path
    config: Config
    digest: str
    seeds: tuple[SeedRecord, ...]
    unfinished: tuple[str, ...]
    failed: Mapping[str, str] = field(default_factory=dict)  # methods left out, with the reason

    @property
    def erased(self) -> str:
        """The method that is judged: the first."""
        return self.config.methods[0]

    def shown_as(self, arm: str) -> str:
        """Return the name under which an arm is drawn: `names.ERASED` for the judged method."""
        return names.ERASED if arm == self.erased else arm

    def label(self, arm: str) -> str:
        """Return an arm's name for readers of this run."""
        return names.label(self.shown_as(arm))

    def last_round(self, arm: str) -> int:
        """Return the last recorded round of an arm; every seed has the same."""
        return self.seeds[0].curves[arm][-1].round

    def points(self, arm: str, round: int) -> tuple[Point, ...]:
        """Return an arm after a round, one point per seed."""
        return tuple(seed.curves[arm][round] for seed in self.seeds)

    def scores(self, arm: str, round: int, score: str) -> tuple[Score, ...]:
        """Return one score of an arm after a round, one value per seed."""
        return tuple(point.scores[score] for point in self.points(arm, round))

    def last_scores(self, arm: str, score: str) -> tuple[Score, ...]:
        """Return one score of an arm after its last round, one value per seed."""
        return self.scores(arm, self.last_round(arm), score)

    @property
    def has_canaries(self) -> bool:
        """Whether the leaver planted canaries, in every seed."""
        return all(seed.curves[names.FEDAVG][-1].canaries is not None for seed in self.seeds)

    def readings(self, arm: str, round: int) -> tuple[Reading, ...]:
        """Return what canaries say of an arm after a round, one reading per seed that has some."""
        found = (point.canaries for point in self.points(arm, round))
        return tuple(counts.reading() for counts in found if counts is not None)

    def canary_p(self, arm: str, round: int) -> float:
        """Return the exact p of the ranks of all seeds together: their coins are apart."""
        return Ranks.joined([each.ranks for each in self.readings(arm, round)]).rank_p_value

    def attacks(self, arm: str, round: int, attack: str) -> tuple[Attack, ...]:
        """Return a membership attack per seed; empty if it was not made on that model."""
        by_seed = (seed.membership.get((arm, round), {}).get(attack) for seed in self.seeds)
        return tuple(result for result in by_seed if result is not None)


@dataclass(frozen=True)
class Records:
    """All runs of a report, and the run folders without a finished seed."""

    runs: tuple[Run, ...]
    unfinished: tuple[Path, ...]
