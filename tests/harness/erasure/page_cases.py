"""Receipts for the page, as erasures give them: each verdict, and one that is crowded."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.erasure import papers
from secede.erasure.documents.canary_reading import (
    ABSENT,
    NO_CANARIES,
    CanaryCommitment,
    CanaryPart,
    CanaryRule,
    Look,
)
from secede.erasure.documents.data_commitment import commit_to_samples
from secede.erasure.documents.receipt import (
    DESTROYED_KINDS,
    Attempt,
    Destroyed,
    LeftOut,
    Reference,
    Score,
    Verification,
)
from secede.erasure.receipts.verify import Verified, sign_receipt, verify_receipt
from secede.erasure.types import Forgotten, Rung
from secede.erasure.workflow import measurement

PLANTED = CanaryCommitment(
    commitment=commit_to_samples([bytes([n]) for n in range(32)], bytes(32)),
    kind="made-up",
    copies=4,
    share=0.08,
)
SCOPE = papers.SCOPE.model_copy(update={"canaries": PLANTED})
KNOWN, FADED, GONE = (
    (19, 6, 3, 2, 1, 1, 0, 0, 0, 0),
    (9, 6, 4, 3, 3, 2, 2, 1, 1, 1),
    (3, 4, 3, 2, 4, 3, 3, 4, 3, 3),
)
NAMED = papers.FEDERATION.model_copy(
    update={
        "controller": "Heart Study Consortium, c/o University Hospital North",
        "contact": "data-protection@heart-study.example",
    }
)
LIMITS = (
    measurement.NOTHING,
    measurement.ONE_MORE_ROUND.format(rounds="3 were"),
    measurement.FINGERPRINTS,
    measurement.REMOVED.format(share=0.021, count=6274),
    measurement.STALE,
    measurement.SHOWN,
)
METHOD = papers.METHOD.model_copy(
    update={
        "name": "second-choice",
        "rounds": 3,
        "parameters": {"strength": 1.0, "epochs": 5, "learning_rate": 0.01, "hold": None},
        "settings": {"margins.overall": 0.05, "margins.per_class": 0.1},
    }
)
DESTROYED = tuple(
    Destroyed(what=what, at="2026-11-15T12:08:00Z", digest=papers.BEFORE)
    for what in DESTROYED_KINDS.values()
)


def score(measure: str, value: float, before: float, *, about: str, count: int) -> Score:
    def interval(fraction: float) -> dict[str, object]:
        low, high = max(0.0, fraction - 0.011), min(1.0, fraction + 0.009)
        return {"value": fraction, "low": low, "high": high, "count": count}

    reference = Reference.model_validate({"model": "before", **interval(before)})
    fields = {"about": about, "measure": measure, "reference": reference}
    return Score.model_validate({**fields, **interval(value)})


SCORES = (
    score(measurement.AT_OTHERS, 0.9744, 0.9803, about="usefulness", count=6000),
    score(measurement.AT_LEAVER, 0.9647, 0.9726, about="leaver", count=1500),
    score("right answers on held-out samples", 0.9653, 0.9698, about="usefulness", count=4000),
    score("attack success on held-out samples", 0.004, 0.924, about="leaver", count=3600),
)


def look(ranks: tuple[int, ...], wins: int, round: int, model: str, rung: Rung) -> Look:
    method = "second-choice" if rung == "local-step" else "weight-negation"
    after = papers.reading(model, ranks, wins, planted=PLANTED)
    return Look(rung=rung, method=method, round=round, after=after)


def canaries(*looks: Look, absent: str | None = None) -> CanaryPart:
    before = None if absent else papers.reading(papers.BEFORE, KNOWN, 29, planted=PLANTED)
    return CanaryPart(rule=CanaryRule(looks=7), before=before, looks=looks, absent=absent)


LAST = look(GONE, 15, 3, papers.AFTER, "local-step")
LOOKS = (
    look(FADED, 24, 1, "1a" * 32, "local-step"),
    look((7, 6, 4, 4, 3, 2, 2, 2, 1, 1), 22, 5, "2a" * 32, "local-step"),
)


def case(forgotten: Forgotten, part: CanaryPart, **changes: object) -> Verified:
    """Return a verified receipt with this verdict and these readings."""
    verification = Verification.model_validate(
        {"scores": SCORES, "canaries": part, "forgotten": forgotten, "useful": "yes"}
        | {key: changes.pop(key) for key in ("scores", "useful") if key in changes}
    )
    given = {
        "verification": verification,
        "scope": SCOPE,
        "federation": NAMED,
        "method": METHOD,
        "destroyed": DESTROYED,
        "further_limits": LIMITS,
        **changes,
    }
    data = sign_receipt(papers.statement(**given), papers.private("server"))  # type: ignore[arg-type]
    return verify_receipt(data, papers.publics("server", papers.LEAVER))


def no_trace() -> Verified:
    """The usual receipt: one look, and nothing found."""
    return case("no-trace-found", canaries(LAST))


def no_trace_at_last() -> Verified:
    """Two looks that found a trace, then the next rung."""
    method = METHOD.model_copy(
        update={
            "rung": "server-side",
            "name": "weight-negation",
            "tried_before": (
                Attempt(rung="local-step", method="second-choice", outcome="trace-found"),
            ),
            "left_out": (LeftOut(client="clinic-west", why="silent"),),
        }
    )
    last = look(GONE, 15, 2, papers.AFTER, "server-side")
    return case("no-trace-found", canaries(*LOOKS, last), method=method)


def trace() -> Verified:
    """A ladder that ended with a trace, too late."""
    last = look(FADED, 24, 5, papers.AFTER, "local-step")
    late = "2026-12-07T13:00:00Z"
    return case("trace-found", canaries(LOOKS[0], last), completed=late, useful="no", remaining=())


def not_planted() -> Verified:
    """A client that planted no canaries."""
    scope = SCOPE.model_copy(update={"canaries": None})
    return case("undetermined", CanaryPart(absent=NO_CANARIES), scope=scope, useful="undetermined")


def not_there() -> Verified:
    """A client that planted canaries and was not there to read them."""
    return case("undetermined", canaries(absent=ABSENT))


def no_power() -> Verified:
    """Canaries that the model from before does not show either."""
    before = papers.reading(papers.BEFORE, GONE, 16, planted=PLANTED)
    part = CanaryPart(rule=CanaryRule(looks=7), before=before, looks=(LAST,))
    return case("undetermined", part)


def retrained() -> Verified:
    """A model trained from scratch."""
    method = METHOD.model_copy(
        update={"rung": "retraining", "name": "retrain", "parameters": {}, "rounds": 10}
    )
    part = canaries(LAST.model_copy(update={"rung": "retraining", "method": "retrain"}))
    return case("by-construction", part, method=method, further_limits=(measurement.ITSELF,))


def crowded(limits: int = 11) -> Verified:
    """Return a receipt with as much of everything as it may have, and long words."""
    reference = papers.VERIFICATION.scores[0].reference
    wide = Score(
        about="leaver",
        measure="wide " * 30 + "W" * 100,
        value=0.5,
        low=0.1,
        high=1.0,
        count=10**12,
        reference=reference,
    )
    attempt = Attempt(rung="server-side", method="m" * 64, outcome="o" * 64)
    parameters = {f"{'p' * 50}{index}": "v" * 300 for index in range(100)}
    method = papers.METHOD.model_copy(
        update={"parameters": parameters, "tried_before": (attempt,) * 16, "name": "n" * 64}
    )
    said = tuple(f"{index} {'limit ' * 49}"[:300] for index in range(limits))
    what = "the state of " * 20
    return case(
        "no-trace-found",
        canaries(*(LOOKS * 3), LAST),
        scores=(wide,) * 64,
        useful="no",
        method=method,
        destroyed=tuple(
            papers.DESTROYED[0].model_copy(update={"what": f"{n % 8} {what}"}) for n in range(16)
        ),
        remaining=tuple(item.model_copy(update={"what": what}) for item in papers.REMAINING * 8),
        further_limits=said,
    )


CASES: Mapping[str, Callable[[], Verified]] = {
    "no-trace": no_trace,
    "no-trace-at-last": no_trace_at_last,
    "trace": trace,
    "not-planted": not_planted,
    "not-there": not_there,
    "no-power": no_power,
    "retrained": retrained,
    "crowded": crowded,
}
