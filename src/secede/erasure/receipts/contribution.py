"""A client's contribution to the serving model: its rounds of training and of post-training.

It is read from journal, plans and registry alone. Training may have gone on between erasures and
after them; what a retraining has replaced does not count. The weight is the client's share of the
last mean that made the serving model; it is 0 where there was none, as after an erasure without a
round, or where others trained on alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from secede.erasure.documents.plan import Plan
from secede.erasure.documents.receipt import Scope
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.model_registry import Model, ModelRegistry
from secede.erasure.storage.progress import Progress
from secede.erasure.storage.transition_details import PROMOTED, RoundDetails


def client_scope(
    home: Home, journal: Journal, registry: ModelRegistry, trained: Scope, client: str
) -> Scope:
    """Return the scope of `client`: `trained`, and the post-training that it joined in between.

    `trained` covers all of its training, with its weight in the mean that ended it.
    """
    erasures = {
        progress.verification.model: progress
        for entry in journal.entries()
        if entry.state == PROMOTED
        for progress in [Progress.of(journal, entry)]
    }
    weights = {c.name: c.scope.weight for c in home.federation.clients}
    scope = trained
    for model in _ancestry(registry, home.federation.run):
        if model.digest not in erasures:  # training began so, or went on after an erasure
            scope = scope.model_copy(update={"weight": trained.weight})
            continue
        progress = erasures[model.digest]
        plan = home.load_plan(progress.plan)
        if client in plan.retained:  # else it joined later, or is the one who left
            scope = _add_erasure(scope, progress, plan, model.round, client, weights)
    return scope


def _ancestry(registry: ModelRegistry, run: str) -> list[Model]:
    """Return the serving model and those that it comes from, the oldest first."""
    models, ancestry = {model.digest: model for model in registry.models()}, list[Model]()
    model = registry.serving(run)
    while model is not None:
        ancestry.append(model)
        model = models.get(model.parent or "")
    return ancestry[::-1]


def _add_erasure(
    scope: Scope,
    progress: Progress,
    plan: Plan,
    last_round: int,
    client: str,
    weights: Mapping[str, float],
) -> Scope:
    """Add the rounds of one erasure, whose model stands at round `last_round` of the run."""
    rounds = [
        (transition.number, transition.details.round)
        for transition in progress.this_rung
        if isinstance(transition.details, RoundDetails) and transition.details.round
    ]
    joined = list[int]()
    present: tuple[str, ...] = ()
    for transition_number, round_number in rounds:
        present = progress.present(plan.retained, transition_number + 1)
        if client in present:
            joined.append(last_round - len(rounds) + round_number)
    weight = scope.weight if scope.last_round > last_round else 0.0  # it trained on since
    if joined and joined[-1] == last_round >= scope.last_round:
        shares = weights if plan.mean == "mean" else dict.fromkeys(present, 1.0)
        weight = shares[client] / (sum(shares[name] for name in present) or 1.0)
    count = scope.rounds + len(joined)
    return Scope(
        first_round=scope.first_round,
        last_round=max(scope.last_round, *joined, scope.first_round + count - 1),
        rounds=count,
        weight=weight,
        commitment=scope.commitment,
    )
