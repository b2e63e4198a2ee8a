"""The three questions about an erased model, each answered from one run's records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from secede.reports import names
from secede.reports.analysis.answers import (
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
from secede.reports.analysis.costs import Comparison, compare_at_round
from secede.reports.analysis.statistics import (
    Estimate,
    difference,
    log_ratio,
    of_losses,
    of_shares,
    over_seeds,
)
from secede.reports.formats import full, mean, signed_points
from secede.reports.records.runs import Cost, Run
from secede.text import plural

FORGOTTEN = "Is the leaver forgotten, as by retraining?"
USEFUL = "Is the model still useful?"
CHEAPER = "Is it cheaper than fair retraining?"

_ALLOWED = FORGOTTEN_POINTS / 100
_LEARNT = 0.05  # that training must have brought, for there to be anything to erase
_LATER = {
    Reply.NO: "the leaver is no longer forgotten",
    Reply.UNDETERMINED: "it is no longer sure that the leaver is forgotten",
}
_FACTOR = math.log(LOSS_FACTOR)


def forgotten(run: Run, round: int) -> Answer:
    """Compare the erased model with the retrained one on the leaver's own mark."""
    if run.config.scenario == "clean":
        reply, numbers = _unmarked(run, round)
    else:
        reply, numbers = _marked(run, round)
    if unlearnt := _hardly_learnt(run):
        reply = Reply.UNDETERMINED
        numbers += (
            f"; but {unlearnt}. More rounds (training.rounds) or smaller batches "
            "(training.batch_size) may help"
        )
    last = run.last_round(run.erased)
    if reply is Reply.YES and (later := as_retrained(run, run.erased, last)) is not Reply.YES:
        numbers += f"; after {plural(last, 'round')} {_LATER[later]}"
    if reply is not Reply.YES and _climb_ran_out(run):
        section = f"settings.{names.PROJECTED_ASCENT}"
        numbers += (
            f"; the climb ran out of epochs, and more of them ({section}.epochs) or smaller "
            f"batches ({section}.batch_size) let it go further"
        )
    return Answer(FORGOTTEN, reply, sentence(numbers))


def _hardly_learnt(run: Run) -> str | None:
    """Say so if training brought next to nothing: then nothing can be lost either."""
    first, last = (_usefulness(run, round) for round in (0, run.last_round(names.FEDAVG)))
    if last.mean - first.mean >= _LEARNT:
        return None
    return (
        f"the federation hardly learnt anything: {names.SCORES[run.config.utility]} was "
        f"{mean(first, 'share')} untrained and {mean(last, 'share')} before erasing"
    )


def _usefulness(run: Run, round: int) -> Estimate:
    return of_shares(run.scores(names.FEDAVG, round, run.config.utility))


def useful(run: Run, round: int) -> Answer:
    """Compare clean accuracy, or that on the other classes, with the retrained model's last."""
    last, score = run.last_round(names.RETRAIN), run.config.utility
    erased = run.scores(run.erased, round, score)
    retrained = run.scores(names.RETRAIN, last, score)
    gap = difference(erased, retrained)
    numbers = (
        f"{names.SCORES[score]} is {mean(of_shares(erased), 'share')} {after(round)} and "
        f"{mean(of_shares(retrained), 'share')} after {plural(last, 'round')} of retraining: "
        f"{signed_points(gap)}, where a loss of {USEFUL_POINTS:g} is allowed"
    )
    reply = place(gap, -USEFUL_POINTS / 100, math.inf)
    if unlearnt := _hardly_learnt(run):
        reply = Reply.UNDETERMINED
        numbers += f"; but {unlearnt}"
    return Answer(USEFUL, reply, sentence(numbers))


def cheaper(run: Run, round: int) -> Answer:
    """Compare uploads with what the fair retraining needs for a model that is as useful."""
    comparison = compare_at_round(run, run.erased, round)
    level = mean(over_seeds(comparison.levels), "share")
    numbers = (
        f"to {level} {names.SCORES[run.config.utility]}, erasing took "
        f"{_spent(comparison, comparison.method)}; "
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
    if reply is Reply.NO and comparison.retrained_never:  # a lower bound says nothing of above
        reply = Reply.UNDETERMINED
    bound = "at least " if comparison.retrained_never else ""
    numbers += f": {bound}{full(ratio, 'times')} as much"
    if reply is Reply.NO:
        numbers += ", so erasing is not the cheaper way here"
    return Answer(CHEAPER, reply, sentence(numbers))


def as_retrained(run: Run, arm: str, round: int) -> Reply:
    """Hold any arm to the margin within which the leaver counts as forgotten."""
    last = run.last_round(names.RETRAIN)
    if run.config.scenario == "clean":
        accuracy, loss = names.LEAVER_ACCURACY, names.LEAVER_LOSS
        return _same(
            difference(run.scores(arm, round, accuracy), run.scores(names.RETRAIN, last, accuracy)),
            log_ratio(run.scores(arm, round, loss), run.scores(names.RETRAIN, last, loss)),
        )
    probe = run.config.main_probe
    gap = difference(run.scores(arm, round, probe), run.scores(names.RETRAIN, last, probe))
    return place(gap, *allowed(probe))


def allowed(probe: str) -> tuple[float, float]:
    """Return how far a score may lie from the retrained model's, below and above."""
    # A backdoor that works more rarely than after retraining is no trace of the leaver.
    return -math.inf if probe == names.ATTACK_SUCCESS else -_ALLOWED, _ALLOWED


def _climb_ran_out(run: Run) -> bool:
    steps = [seed.local_step for seed in run.seeds if run.erased == names.PROJECTED_ASCENT]
    return any(step is not None and step.ended_by == "epochs" for step in steps)


def _marked(run: Run, round: int) -> tuple[Reply, str]:
    probe = run.config.main_probe
    erased = run.scores(run.erased, round, probe)
    retrained = run.scores(names.RETRAIN, run.last_round(names.RETRAIN), probe)
    before = run.scores(names.FEDAVG, run.last_round(names.FEDAVG), probe)
    gap = difference(erased, retrained)
    numbers = (
        f"{names.SCORES[probe]} is {mean(of_shares(erased), 'share')} {after(round)}, "
        f"{mean(of_shares(retrained), 'share')} retrained and "
        f"{mean(of_shares(before), 'share')} before erasing: "
        f"{signed_points(gap)} from retraining, where {FORGOTTEN_POINTS:g} are allowed"
    )
    low, high = allowed(probe)
    if place(difference(before, retrained), low, high) is not Reply.NO:
        return Reply.UNDETERMINED, f"{numbers}; but even before erasing it hardly shows the leaver"
    if gap.mean < low:
        numbers += "; it went further than retraining does"
    reply = place(gap, low, high)
    if reply is Reply.YES and _fine_tuning_does_too(run, round):
        more = "the climb" if run.erased == names.PROJECTED_ASCENT else "more than that"
        numbers += f"; fine-tuning alone does as well, so this run does not show {more} was needed"
    return reply, numbers


def _fine_tuning_does_too(run: Run, round: int) -> bool:
    if names.FINE_TUNE not in run.config.methods or run.erased == names.FINE_TUNE:
        return False
    return as_retrained(run, names.FINE_TUNE, round) is Reply.YES


def _unmarked(run: Run, round: int) -> tuple[Reply, str]:
    moments = (
        (run.erased, round),
        (names.RETRAIN, run.last_round(names.RETRAIN)),
        (names.FEDAVG, run.last_round(names.FEDAVG)),
    )
    erased, retrained, before = (run.scores(*moment, names.LEAVER_ACCURACY) for moment in moments)
    loss, aim, start = (run.scores(*moment, names.LEAVER_LOSS) for moment in moments)
    gap, ratio = difference(erased, retrained), log_ratio(loss, aim)
    numbers = (
        f"loss on the leaver's own samples is {full(of_losses(loss), 'loss')} {after(round)}, "
        f"{mean(of_losses(aim), 'loss')} retrained and {mean(of_losses(start), 'loss')} before "
        f"erasing (within a factor of {LOSS_FACTOR:g} of retraining is allowed); accuracy on "
        f"them is {signed_points(gap)} from retraining, where {FORGOTTEN_POINTS:g} are allowed"
    )
    unseen = _same(difference(before, retrained), log_ratio(start, aim))
    if unseen is Reply.YES:
        return Reply.UNDETERMINED, f"{numbers}; but even before erasing they hardly differ"
    if ratio.mean > _FACTOR or gap.mean < -_ALLOWED:
        numbers += "; it went further than retraining does"
    return _same(gap, ratio), numbers


def _same(gap: Estimate, ratio: Estimate) -> Reply:
    return worst({place(gap, -_ALLOWED, _ALLOWED), place(ratio, -_FACTOR, _FACTOR)})


def _retraining(comparison: Comparison, rounds: int) -> str:
    never, seeds = comparison.retrained_never, len(comparison.retrained)
    if never == seeds:
        return f"fair retraining did not get there in its {plural(rounds, 'round')}"
    spent = f"fair retraining {_spent(comparison, comparison.retrained)}"
    return f"{spent} (never in {never} of {plural(seeds, 'seed')})" if never else spent


def _spent(comparison: Comparison, costs: Sequence[Cost | None]) -> str:
    rounds = comparison.spent(costs, "rounds")
    uploads = comparison.spent(costs, "upload_mb")
    if rounds is None or uploads is None:
        return "an unknown amount"
    noun = "round" if rounds.mean == 1 else "rounds"
    return f"{mean(rounds, 'rounds')} {noun} and {mean(uploads, 'MB')} of uploads"
