"""The retained clients count with a model and with the one from before, and the gate decides.

Each count is held against the samples that the federation pinned for its client, and against what
the same client counted of the other model: only clients that told of the same samples both times
are in either sum. The others are left out and named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from secede.erasure.canonical_json import digest
from secede.erasure.defences import gate
from secede.erasure.defences.gate import Counts, Failed, Gate
from secede.erasure.defences.reply_checks import MALFORMED, SAMPLES
from secede.erasure.documents.plan import Margins
from secede.erasure.workflow.participants import Roll
from secede.federation.cost import Cost
from secede.state import State


def gate_of(margins: Margins) -> Gate:
    """Return the gate with a plan's margins."""
    return Gate(
        margin=margins.overall,
        class_margin=margins.of_class,
        minimum=margins.minimum,
        level=margins.level,
    )


def counted(
    roll: Roll, state: State, model: str, known: Mapping[str, Any] | None
) -> tuple[dict[str, Any], Cost]:
    """Return a round's counts, what the gate says, and what the counting took.

    `model` is the state's digest, `known` what was counted with the model from before; it is
    counted again if others count now.
    """
    plan, found = roll.plan, dict[str, Any]()
    after, cost = count(roll, state, model)
    who = digest(sorted(after))
    same = known is not None and known["who"] == who
    if (
        known is None
        or not same
        or Counts.of(known).samples != gate.total([*after.values()]).samples
    ):
        before, spent = count(roll, roll.desk.model(plan.model), plan.model)
        cost += spent
        for name in after.keys() & before.keys():
            if after[name].samples != before[name].samples:
                roll.leave_out(name, SAMPLES)
        roll.require()
        both = sorted(after.keys() & before.keys() & {*roll.present})
        after = {name: after[name] for name in both}
        sums = gate.total([before[name] for name in both])
        known = found["before"] = {**sums.as_dict(), "who": digest(both)}
    now, was = gate.total([*after.values()]), Counts.of(known)
    decided = gate_of(plan.margins).decide(was, now)
    objection = None if isinstance(decided, Failed) else _veto(roll, state, was)
    failed = decided if isinstance(decided, Failed) else objection
    found |= {
        "counts": now.as_dict(),
        "passed": failed is None,
        "gate": "passed" if failed is None else failed.reason,
        "vetoed": objection is not None,
    }
    return found, cost


def count(roll: Roll, state: State, model: str) -> tuple[dict[str, Counts], Cost]:
    """Let those present count with a model; leave out who is silent or tells what cannot be."""
    desk = roll.desk
    numbers = desk.numbers(roll.present)
    roll.note_sent(model, roll.present)
    tally = desk.ground.tally(numbers, state)
    roll.trying += tally.cost
    for client, why in tally.left_out.items():
        roll.leave_out(roll.names[client], why)
    sound = dict[str, Counts]()
    for client, counts in tally.counts.items():
        name = roll.names[client]
        if len(counts.samples) != desk.ground.classes:
            roll.leave_out(name, MALFORMED)
        elif roll.pins[name] not in (None, sum(counts.samples)):
            roll.leave_out(name, SAMPLES)
        else:
            sound[name] = counts
    roll.require()
    return sound, tally.cost


def _veto(roll: Roll, state: State, retained: Counts) -> Failed | None:
    """Ask the server's own samples, where it has some."""
    ground, plan = roll.desk.ground, roll.plan
    after = ground.held_out(state)
    before = None if after is None else ground.held_out(roll.desk.model(plan.model))
    if before is None or after is None:
        return None
    return gate_of(plan.margins).veto(before, after, retained)
