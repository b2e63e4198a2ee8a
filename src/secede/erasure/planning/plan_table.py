"""The plan of an erasure as a table for people."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from secede.erasure.documents import Plan, Step
from secede.text import format_bytes, list_first

MEANS = {"mean": "their weighted mean", "trimmed": "a trimmed mean", "median": "the median"}
MEAN_LIMITS: dict[str, tuple[str, ...]] = {
    "mean": (
        "one malicious retained client can drag the mean anywhere, unless the gate sees it",
        "each weighs by the samples that the federation pinned for it, by those that it claims "
        "where none are pinned",
    ),
    "trimmed": (
        "it leaves out a fifth of the clients at each end, at least one: more break it, and with "
        "two left it leaves out nobody",
        "clients count alike, whatever samples they have",
        "where clients' data differ it is biased towards what most have",
    ),
    "median": (
        "it holds while fewer than half of the retained clients are malicious",
        "clients count alike, whatever samples they have",
        "where clients' data differ it is biased towards what most have",
    ),
}
_SECURE_AGGREGATION = (
    "Secure aggregation hides single updates: none is checked by itself, a robust mean is not "
    "possible, only the mean tells which weights are unused, and the guard knows neither the "
    "leaver's last update nor the others' mean."
)
_NAMES = 8  # of retained clients that the table lists


def plan_table(plan: Plan) -> Table:
    """Return a plan as a table: one row for each rung, and notes below."""
    table = Table(
        title=f"Plan: erase {plan.client} from {plan.federation}, model {plan.model[:12]}",
        title_justify="left",
        caption="\n".join(_notes(plan)),
        caption_justify="left",
        box=box.SIMPLE,
    )
    for name in ("", "rung", "method", "needs", "rounds", "up", "down"):
        table.add_column(name, overflow="fold", no_wrap=name in ("rung", "method", "rounds"))
    for number, step in enumerate(plan.ladder, start=1):
        cells = (
            str(number),
            step.rung,
            step.method,
            ", ".join(step.needs) or "nothing",
            _rounds(step),
            format_bytes(step.upload_bytes),
            format_bytes(step.download_bytes),
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def plan_text(plan: Plan, width: int = 100) -> str:
    """Return the same table as plain lines, for a log."""
    console = Console(width=width, color_system=None, force_terminal=False, file=io.StringIO())
    with console.capture() as captured:
        console.print(plan_table(plan))
    lines = (line.rstrip() for line in captured.get().splitlines())
    return "\n".join(line for line in lines if line)


def _rounds(step: Step) -> str:
    if step.min_rounds == step.max_rounds:
        return str(step.max_rounds)
    return f"{step.min_rounds} to {step.max_rounds}"


def _notes(plan: Plan) -> Iterator[str]:
    """Yield what the table's rows do not say, one sentence or two at a time."""
    margins, is_local = plan.margins, plan.ladder[0].rung == "local-step"
    names = list_first(plan.retained, _NAMES)
    leaver = "; the leaver on a local step only." if is_local else "."
    yield f"Who takes part: {names} ({len(plan.retained)}){leaver}"
    yield (
        f"Gate: a loss of at most {100 * margins.overall:g} points over all samples, "
        f"{100 * margins.per_class:g} of a class with {margins.min_samples} or more, unless all "
        "samples together surely rise."
    )
    yield f"Updates are joined by {MEANS[plan.mean]} ({'; '.join(MEAN_LIMITS[plan.mean])})."
    yield (
        f"Quorum: {100 * plan.quorum:g} % of the retained clients' samples. A client that does not "
        f"reply within {plan.client_timeout:g} s, or sends an invalid update, is excluded from the "
        "rung and listed in the receipt."
    )
    yield (
        f"The next rung is taken if {'the leaver is silent, its state is refused or ' * is_local}"
        "the gate fails; after the last one the old model stays."
    )
    if plan.ladder[-1].rung == "retraining":
        yield (
            "After retraining no class is judged. If it loses more over all samples, a person "
            "decides: --accept-loss REASON puts it into service."
        )
        if plan.mean == "mean" and plan.single_updates and len(plan.retained) >= 3:
            yield (
                "If retraining diverges, all is begun again once with updates joined by the median."
            )
    if not plan.single_updates:
        yield _SECURE_AGGREGATION
    if is_local:
        yield from _leaver_notes(plan)
    for step in plan.ladder:
        if step.settings:
            settings = ", ".join(f"{name} = {value}" for name, value in step.settings.items())
            yield f"Set for {step.method}: {settings}."
    for omitted in plan.omitted:
        yield f"Not possible: {omitted.rung}: {omitted.reason}."


def _leaver_notes(plan: Plan) -> Iterator[str]:
    """Yield what holds for a leaver that takes a local step."""
    again = f", again until {plan.wait_until}" if plan.wait_until else ""
    yield f"The leaver has {plan.leaver_timeout:g} s to reply{again}."
    if min_rounds := plan.ladder[0].min_rounds:
        yield (
            f"At least {min_rounds} of the rounds after a local step, even where none would be "
            "needed: the state that the leaver returned does not go into service."
        )
    else:
        yield "Where no round is needed, the state that the leaver returned goes into service."
    yield _unused_weights_note(plan)
    if plan.measure_at_leaver:
        yield (
            "After the last round the leaver receives the new model and reports its accuracy on "
            "its own samples."
        )
        yield _canary_note(plan)
    else:
        yield "The leaver does not get the new model; nothing is measured on its samples."


def _canary_note(plan: Plan) -> str:
    """Say what decides whether the leaver is forgotten."""
    rule = plan.canary_rule
    if rule is None:
        return "It planted no canaries: whether a trace of it is left will stay undetermined."
    return (
        f"It also reads its canaries in the models before and after. A trace is found at "
        f"p < {rule.level:g}; then the rung's remaining rounds are taken, as many again if that "
        f"helped, and then the next rung. At most {rule.looks} looks."
    )


def _unused_weights_note(plan: Plan) -> str:
    if plan.keep_unused_weights:
        return (
            "Weights that the retained clients' training does not use are kept as the leaver "
            "returns them, and with them any backdoor that this training does not undo."
        )
    if plan.ladder[0].max_rounds < 2:
        return "No unused weights are removed: that takes a second round."
    return (
        "In the first of them, weights that the retained clients' training does not use are "
        "removed from all layers but the last, and with them a small trigger's backdoor."
    )
