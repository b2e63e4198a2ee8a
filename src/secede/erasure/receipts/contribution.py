"""What a client has put in by now: its training rounds, and the rounds after earlier erasures.

Read from journal, plans and registry alone; training may have gone on between erasures and after
them, and what a training from scratch has replaced counts no more. Shares are of the last mean that
made the serving model; where there was none, as after an erasure without a round, or where others
trained on alone, it is zero.
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


def scope(
    home: Home, journal: Journal, registry: ModelRegistry, trained: Scope, client: str
) -> Scope:
    """Return the scope of `client`: `trained`, and the post-training that it joined in between.

    `trained` is all of its training, and its share of the mean that ended it.
    """
    promoted = {
        progress.verification.model: progress
        for entry in journal.entries()
        if entry.state == PROMOTED
        for progress in [Progress.of(journal, entry)]
    }
    weights = {c.name: c.scope.weight for c in home.federation.clients}
    found = trained
    for model in _ancestry(registry, home.federation.run):
        if model.digest not in promoted:  # training: it began so, or went on after an erasure
            found = found.model_copy(update={"weight": trained.weight})
            continue
        progress = promoted[model.digest]
        plan = home.load_plan(progress.plan)
        if client in plan.retained:  # else it joined later, or is the one who left
            found = _with(found, progress, plan, model.round, client, weights)
    return found


def _ancestry(registry: ModelRegistry, run: str) -> list[Model]:
    """Return the models that the serving one comes from, and itself, the oldest first."""
    known, found = {model.digest: model for model in registry.models()}, list[Model]()
    model = registry.serving(run)
    while model is not None:
        found.append(model)
        model = known.get(model.parent or "")
    return found[::-1]


def _with(
    before: Scope,
    progress: Progress,
    plan: Plan,
    last: int,
    client: str,
    weights: Mapping[str, float],
) -> Scope:
    """Add the rounds of one erasure, whose model stands at round `last` of the run."""
    taken = [
        (transition.number, transition.details.round)
        for transition in progress.this_rung
        if isinstance(transition.details, RoundDetails) and transition.details.round
    ]
    joined = list[int]()
    present: tuple[str, ...] = ()
    for transition_number, round_number in taken:
        present = progress.present(plan.retained, transition_number + 1)
        if client in present:
            joined.append(last - len(taken) + round_number)
    weight = before.weight if before.last_round > last else 0.0  # it trained on since
    if joined and joined[-1] == last >= before.last_round:
        shares = weights if plan.mean == "mean" else dict.fromkeys(present, 1.0)
        weight = shares[client] / (sum(shares[name] for name in present) or 1.0)
    rounds = before.rounds + len(joined)
    return Scope(
        first_round=before.first_round,
        last_round=max(before.last_round, *joined, before.first_round + rounds - 1),
        rounds=rounds,
        weight=weight,
        commitment=before.commitment,
    )
