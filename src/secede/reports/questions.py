"""The three questions about an erased model, each answered from one run's records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from secede.reports import names
from secede.reports.answers import (
    FORGOTTEN_POINTS,
    LOSS_FACTOR,
    USEFUL_POINTS,
    Answer,
    Reply,
    after,
    place,
    sentence,
    worst,
)
from secede.reports.costs import Comparison, compare_at_round
from secede.reports.formats import full, mean, plural, signed_points
from secede.reports.records import Run, Score
from secede.reports.statistics import Estimate, difference, of_losses, of_shares, over_seeds

FORGOTTEN = "Is the leaver forgotten, as by retraining?"
USEFUL = "Is the model still useful?"
CHEAPER = "Is it cheaper than fair retraining?"

_ALLOWED = FORGOTTEN_POINTS / 100
_FACTOR = math.log(LOSS_FACTOR)


def forgotten(run: Run, round: int) -> Answer:
    """Compare the erased model with the retrained one on the leaver's own mark."""
    if run.config.scenario == "clean":
        reply, numbers = _unmarked(run, round)
    else:
        reply, numbers = _marked(run, round)
    if reply is not Reply.YES and any(s.local_step.ended_by == "epochs" for s in run.seeds):
        numbers += (
            "; the climb ran out of epochs, and more of them (unlearning.epochs) or smaller "
            "batches (unlearning.batch_size) let it go further"
        )
    return Answer(FORGOTTEN, reply, sentence(numbers))


def useful(run: Run, round: int) -> Answer:
    """Compare clean accuracy with the retrained model's after its last round."""
    last = run.last_round(names.RETRAIN)
    erased = run.scores(names.ERASED, round, names.CLEAN_ACCURACY)
    retrained = run.scores(names.RETRAIN, last, names.CLEAN_ACCURACY)
    gap = difference(erased, retrained)
    numbers = (
        f"clean accuracy is {mean(of_shares(erased), 'share')} {after(round)} and "
        f"{mean(of_shares(retrained), 'share')} after {plural(last, 'round')} of retraining: "
        f"{signed_points(gap)}, where a loss of {USEFUL_POINTS:g} is allowed"
    )
    reply = place(gap, -USEFUL_POINTS / 100, math.inf)
    return Answer(USEFUL, reply, sentence(numbers))


def cheaper(run: Run, round: int) -> Answer:
    """Compare uploads with what the fair retraining needs for the same clean accuracy."""
    comparison = compare_at_round(run, round)
    level = mean(over_seeds(comparison.levels), "share")
    numbers = (
        f"to {level} clean accuracy, erasing took {_spent(comparison, 'erased')}; "
        f"{_retraining(comparison, run.last_round(names.RETRAIN))}"
    )
    if any(cost is not None and cost.rounds == 0 for cost in comparison.retrained):
        numbers += "; an untrained model has that accuracy already, so this says nothing"
        return Answer(CHEAPER, Reply.UNDETERMINED, sentence(numbers))
    ratio = comparison.ratio("upload_mb").at_least
    if ratio is None:
        return Answer(CHEAPER, Reply.UNDETERMINED, sentence(numbers))
    low, high = ratio.interval or (ratio.mean, ratio.mean)
    reply = Reply.YES if low > 1 else Reply.NO if high <= 1 else Reply.UNDETERMINED
    bound = "at least " if comparison.retrained_never else ""
    numbers += f": {bound}{full(ratio, 'times')} as much"
    if reply is Reply.NO:
        numbers += ", so erasing is not the cheaper way here"
    return Answer(CHEAPER, reply, sentence(numbers))


def _marked(run: Run, round: int) -> tuple[Reply, str]:
    probe = run.config.main_probe
    erased = run.scores(names.ERASED, round, probe)
    retrained = run.scores(names.RETRAIN, run.last_round(names.RETRAIN), probe)
    before = run.scores(names.FEDAVG, run.last_round(names.FEDAVG), probe)
    gap = difference(erased, retrained)
    numbers = (
        f"{names.SCORES[probe]} is {mean(of_shares(erased), 'share')} {after(round)}, "
        f"{mean(of_shares(retrained), 'share')} retrained and "
        f"{mean(of_shares(before), 'share')} before erasing: "
        f"{signed_points(gap)} from retraining, where {FORGOTTEN_POINTS:g} are allowed"
    )
    # A backdoor that works more rarely than after retraining is no trace of the leaver.
    low = -math.inf if probe == names.ATTACK_SUCCESS else -_ALLOWED
    if place(difference(before, retrained), low, _ALLOWED) is not Reply.NO:
        return Reply.UNDETERMINED, f"{numbers}; but even before erasing it hardly shows the leaver"
    if gap.mean < low:
        numbers += "; it went further than retraining does"
    reply = place(gap, low, _ALLOWED)
    if reply is Reply.YES and _fine_tuning_does_too(run, round, retrained, low):
        numbers += (
            "; fine-tuning alone does as well, so this run does not show the climb was needed"
        )
    return reply, numbers


def _fine_tuning_does_too(run: Run, round: int, retrained: Sequence[Score], low: float) -> bool:
    if names.FINE_TUNE not in run.arms:
        return False
    tuned = run.scores(names.FINE_TUNE, round, run.config.main_probe)
    return place(difference(tuned, retrained), low, _ALLOWED) is Reply.YES


def _unmarked(run: Run, round: int) -> tuple[Reply, str]:
    moments = (
        (names.ERASED, round),
        (names.RETRAIN, run.last_round(names.RETRAIN)),
        (names.FEDAVG, run.last_round(names.FEDAVG)),
    )
    erased, retrained, before = (run.scores(*moment, names.LEAVER_ACCURACY) for moment in moments)
    loss, aim, start = (run.scores(*moment, names.LEAVER_LOSS) for moment in moments)
    gap, ratio = difference(erased, retrained), _log_ratio(loss, aim)
    numbers = (
        f"loss on the leaver's own samples is {full(of_losses(loss), 'loss')} {after(round)}, "
        f"{mean(of_losses(aim), 'loss')} retrained and {mean(of_losses(start), 'loss')} before "
        f"erasing (within a factor of {LOSS_FACTOR:g} of retraining is allowed); accuracy on "
        f"them is {signed_points(gap)} from retraining, where {FORGOTTEN_POINTS:g} are allowed"
    )
    unseen = _same(difference(before, retrained), _log_ratio(start, aim))
    if unseen is Reply.YES:
        return Reply.UNDETERMINED, f"{numbers}; but even before erasing they hardly differ"
    if ratio.mean > _FACTOR or gap.mean < -_ALLOWED:
        numbers += "; it went further than retraining does"
    return _same(gap, ratio), numbers


def _same(gap: Estimate, ratio: Estimate) -> Reply:
    return worst({place(gap, -_ALLOWED, _ALLOWED), place(ratio, -_FACTOR, _FACTOR)})


def _log_ratio(losses: Sequence[Score], others: Sequence[Score]) -> Estimate:
    pairs = [(one.value, other.value) for one, other in zip(losses, others, strict=True)]
    return over_seeds([math.log(a / b) if a > 0 and b > 0 else math.nan for a, b in pairs])


def _retraining(comparison: Comparison, rounds: int) -> str:
    never, seeds = comparison.retrained_never, len(comparison.retrained)
    if never == seeds:
        return f"fair retraining did not get there in its {plural(rounds, 'round')}"
    spent = f"fair retraining {_spent(comparison, 'retrained')}"
    return f"{spent} (never in {never} of {plural(seeds, 'seed')})" if never else spent


def _spent(comparison: Comparison, who: str) -> str:
    costs = comparison.erased if who == "erased" else comparison.retrained
    rounds = comparison.spent(costs, "rounds")
    uploads = comparison.spent(costs, "upload_mb")
    if rounds is None or uploads is None:
        return "an unknown amount"
    noun = "round" if rounds.mean == 1 else "rounds"
    return f"{mean(rounds, 'rounds')} {noun} and {mean(uploads, 'MB')} of uploads"
