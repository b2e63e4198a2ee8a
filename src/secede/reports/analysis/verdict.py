"""The verdict on one run: forgotten? useful? cheaper? Three answers with their margins.

An answer is yes or no only where the whole 95 % interval lies on one side of the margin. The
headline is evidence from these probes and seeds, and never says more than that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from secede.reports import names
from secede.reports.analysis.costs import Comparison, compare_at_round
from secede.reports.analysis.estimates import (
    Estimate,
    difference,
    format_estimate,
    format_mean,
    format_points,
    gap_to_retraining,
    log_ratio,
    mean_loss,
    mean_over_seeds,
    mean_share,
)
from secede.reports.records.runs import Cost, Run, Score
from secede.text import plural

JUDGED_ROUND = 2  # post-training round at which the erased model is judged
FORGOTTEN_POINTS = 3.0  # the probe's score may differ from the retrained model's by this much
USEFUL_POINTS = 2.0  # clean accuracy may fall this far below the retrained model's
LOSS_FACTOR = 1.25  # clean leaver: loss on its samples, as a multiple of the retrained model's
ONE_SEED = "One seed only: intervals cover the sampling of the test set, not of training."


class Reply(StrEnum):
    """The reply to a question."""

    YES = "yes"
    NO = "no"
    UNDETERMINED = "undetermined"


@dataclass(frozen=True)
class Answer:
    """A question, its reply, and a sentence with the numbers behind it."""

    question: str
    reply: Reply
    sentence: str


FORGOTTEN = "Is the leaver forgotten, as by retraining?"
USEFUL = "Is the model still useful?"
CHEAPER = "Is it cheaper than fair retraining?"

_ALLOWED = FORGOTTEN_POINTS / 100
_LEARNT = 0.05  # least gain in usefulness by training, for there to be anything to erase
_LATER = {
    Reply.NO: "the leaver is no longer forgotten",
    Reply.UNDETERMINED: "whether the leaver is forgotten is undetermined",
}
_FACTOR = math.log(LOSS_FACTOR)
_FORGOTTEN_WORDS = {
    Reply.YES: (
        "Within the stated limits, the erased model shows as little of the leaver as retraining "
        "leaves"
    ),
    Reply.NO: "The erased model does not treat the leaver's data as one retrained without it does",
    Reply.UNDETERMINED: "Whether the leaver is forgotten is undetermined",
}
_USEFUL_WORDS = {
    Reply.YES: "it is as useful",
    Reply.NO: "it is less useful",
    Reply.UNDETERMINED: "whether it is as useful is undetermined",
}
_CHEAPER_WORDS = {
    Reply.YES: "erasing was cheaper than retraining",
    Reply.NO: "erasing was not cheaper than retraining",
    Reply.UNDETERMINED: "whether erasing was cheaper is undetermined",
}


@dataclass(frozen=True)
class Verdict:
    """The three answers for one run, judged after `round` rounds of post-training."""

    round: int
    seeds: int
    forgotten: Answer
    useful: Answer
    cheaper: Answer

    @property
    def answers(self) -> tuple[Answer, Answer, Answer]:
        """The answers in the order of the questions."""
        return self.forgotten, self.useful, self.cheaper

    @property
    def headline(self) -> str:
        """The three answers as one sentence."""
        first, second, third = (answer.reply for answer in self.answers)
        return f"{_FORGOTTEN_WORDS[first]}; {_USEFUL_WORDS[second]}; {_CHEAPER_WORDS[third]}."

    @property
    def text(self) -> str:
        """The verdict as lines for the terminal."""
        lines = [f"{a.question} {a.reply.capitalize()}. {a.sentence}" for a in self.answers]
        return "\n".join([self.headline, *lines, *([self.note] if self.note else [])])

    @property
    def note(self) -> str:
        """A warning if there is one seed only; empty otherwise."""
        return ONE_SEED if self.seeds == 1 else ""


def judged_round(run: Run) -> int:
    """Return the post-training round that is judged: the second, or the last before it."""
    return min(JUDGED_ROUND, run.last_round(run.erased))


def judge(run: Run) -> Verdict:
    """Answer the three questions for one run."""
    round = judged_round(run)
    return Verdict(
        round=round,
        seeds=len(run.seeds),
        forgotten=judge_forgotten(run, round),
        useful=judge_useful(run, round),
        cheaper=judge_cheaper(run, round),
    )


def joint_headline(verdicts: Sequence[Verdict], methods: Sequence[str]) -> str:
    """Return one sentence that counts the answers over several runs and names their methods."""
    if len(verdicts) == 1:
        return verdicts[0].headline
    yes = [sum(v.answers[index].reply is Reply.YES for v in verdicts) for index in range(3)]
    judged = " or ".join(names.method_words(method) for method in dict.fromkeys(methods))
    return (
        f"Of {len(verdicts)} runs, erased by {judged}, the leaver is forgotten as by retraining "
        f"in {yes[0]}, "
        f"the model is as useful in {yes[1]}, and erasing was cheaper in {yes[2]}."
    )


def reply_within(estimate: Estimate, low: float, high: float) -> Reply:
    """Return yes if an interval lies within [low, high], no if outside, else undetermined."""
    if estimate.interval is None:
        return Reply.UNDETERMINED
    bottom, top = estimate.interval
    if low <= bottom and top <= high:
        return Reply.YES
    return Reply.NO if bottom > high or top < low else Reply.UNDETERMINED


def join_replies(replies: set[Reply]) -> Reply:
    """Return yes if all replies are yes, no if any is no, else undetermined."""
    for reply in (Reply.NO, Reply.UNDETERMINED):
        if reply in replies:
            return reply
    return Reply.YES


def as_sentence(numbers: str) -> str:
    """Return the numbers as a sentence: capitalised, with a full stop."""
    return numbers[0].upper() + numbers[1:] + "."


def describe_round(round: int) -> str:
    """Return a round of post-training in words."""
    return f"after {plural(round, 'round')} of post-training" if round else "before post-training"


def judge_forgotten(run: Run, round: int) -> Answer:
    """Answer whether the erased model shows no more of the leaver than the retrained one."""
    if run.config.scenario == "clean":
        reply, numbers = _unmarked(run, round)
    else:
        reply, numbers = _marked(run, round)
    if no_learning := _hardly_learnt(run):
        reply = Reply.UNDETERMINED
        numbers += (
            f"; but {no_learning}. More rounds (training.rounds) or smaller batches "
            "(training.batch_size) may help"
        )
    last = run.last_round(run.erased)
    if (
        reply is Reply.YES
        and (later := compare_with_retrained(run, run.erased, last)) is not Reply.YES
    ):
        numbers += f"; after {plural(last, 'round')} {_LATER[later]}"
    if reply is not Reply.YES and _climb_ran_out(run):
        section = f"settings.{names.PROJECTED_ASCENT}"
        numbers += (
            f"; the climb ended after all its epochs: more epochs ({section}.epochs) or smaller "
            f"batches ({section}.batch_size) let it go further"
        )
    return Answer(FORGOTTEN, reply, as_sentence(numbers))


def _hardly_learnt(run: Run) -> str | None:
    """Return a sentence if training hardly improved the model: then nothing can be lost either."""
    first, last = (
        mean_share(run.scores(names.FEDAVG, round, run.config.utility))
        for round in (0, run.last_round(names.FEDAVG))
    )
    if last.mean - first.mean >= _LEARNT:
        return None
    return (
        f"training hardly improved the model: {names.SCORES[run.config.utility]} was "
        f"{format_mean(first, 'share')} untrained and {format_mean(last, 'share')} before erasing"
    )


def judge_useful(run: Run, round: int) -> Answer:
    """Answer whether the erased model is as accurate as the fully retrained one."""
    last, score = run.last_round(names.RETRAIN), run.config.utility
    gap = gap_to_retraining(run, run.erased, round, score)
    numbers = (
        f"{names.SCORES[score]} is {_percent(run.scores(run.erased, round, score))} "
        f"{describe_round(round)} and {_percent(run.last_scores(names.RETRAIN, score))} "
        f"after {plural(last, 'round')} of retraining: "
        f"{format_points(gap)}, where a loss of {USEFUL_POINTS:g} is allowed"
    )
    reply = reply_within(gap, -USEFUL_POINTS / 100, math.inf)
    if no_learning := _hardly_learnt(run):
        reply = Reply.UNDETERMINED
        numbers += f"; but {no_learning}"
    return Answer(USEFUL, reply, as_sentence(numbers))


def _percent(scores: Sequence[Score]) -> str:
    return format_mean(mean_share(scores), "share")


def judge_cheaper(run: Run, round: int) -> Answer:
    """Answer whether erasing uploads less than retraining an equally useful model."""
    comparison = compare_at_round(run, run.erased, round)
    level = format_mean(mean_over_seeds(comparison.levels), "share")
    numbers = (
        f"to {level} {names.SCORES[run.config.utility]}, erasing took "
        f"{_spent(comparison, comparison.method)}; "
        f"{_retraining(comparison, run.last_round(names.RETRAIN))}"
    )
    if any(cost is not None and cost.rounds == 0 for cost in comparison.retrained):
        numbers += "; an untrained model has that accuracy already, so costs cannot be compared"
        return Answer(CHEAPER, Reply.UNDETERMINED, as_sentence(numbers))
    ratio = comparison.ratio("upload_mb").at_least
    if ratio is None:
        return Answer(CHEAPER, Reply.UNDETERMINED, as_sentence(numbers))
    low, high = ratio.interval or (ratio.mean, ratio.mean)
    reply = Reply.YES if low > 1 else Reply.NO if high <= 1 else Reply.UNDETERMINED
    if reply is Reply.NO and comparison.retrained_never:  # a lower bound says nothing of above
        reply = Reply.UNDETERMINED
    bound = "at least " if comparison.retrained_never else ""
    numbers += f": {bound}{format_estimate(ratio, 'times')} as much"
    if reply is Reply.NO:
        numbers += ", so erasing is not the cheaper way here"
    return Answer(CHEAPER, reply, as_sentence(numbers))


def compare_with_retrained(run: Run, arm: str, round: int) -> Reply:
    """Return whether an arm lies within the margin in which the leaver counts as forgotten."""
    if run.config.scenario == "clean":
        losses = run.scores(arm, round, names.LEAVER_LOSS)
        ratio = log_ratio(losses, run.last_scores(names.RETRAIN, names.LEAVER_LOSS))
        return _same(gap_to_retraining(run, arm, round, names.LEAVER_ACCURACY), ratio)
    probe = run.config.main_probe
    return reply_within(gap_to_retraining(run, arm, round, probe), *allowed_difference(probe))


def allowed_difference(probe: str) -> tuple[float, float]:
    """Return how far a score may lie below and above the retrained model's."""
    # A backdoor that works less often than after retraining is no trace of the leaver.
    return -math.inf if probe == names.ATTACK_SUCCESS else -_ALLOWED, _ALLOWED


def _climb_ran_out(run: Run) -> bool:
    steps = [seed.local_step for seed in run.seeds if run.erased == names.PROJECTED_ASCENT]
    return any(step is not None and step.ended_by == "epochs" for step in steps)


def _marked(run: Run, round: int) -> tuple[Reply, str]:
    probe = run.config.main_probe
    erased = run.scores(run.erased, round, probe)
    retrained, before = (run.last_scores(arm, probe) for arm in (names.RETRAIN, names.FEDAVG))
    gap = difference(erased, retrained)
    numbers = (
        f"{names.SCORES[probe]} is {_percent(erased)} {describe_round(round)}, "
        f"{_percent(retrained)} retrained and {_percent(before)} before erasing: "
        f"{format_points(gap)} from retraining, where {FORGOTTEN_POINTS:g} are allowed"
    )
    low, high = allowed_difference(probe)
    if reply_within(difference(before, retrained), low, high) is not Reply.NO:
        return Reply.UNDETERMINED, f"{numbers}; but even before erasing it hardly shows the leaver"
    if gap.mean < low:
        numbers += "; it went further than retraining does"
    reply = reply_within(gap, low, high)
    if reply is Reply.YES and _fine_tuning_does_too(run, round):
        more = "the climb" if run.erased == names.PROJECTED_ASCENT else "more than that"
        numbers += f"; fine-tuning alone does as well, so this run does not show {more} was needed"
    return reply, numbers


def _fine_tuning_does_too(run: Run, round: int) -> bool:
    if names.FINE_TUNE not in run.config.methods or run.erased == names.FINE_TUNE:
        return False
    return compare_with_retrained(run, names.FINE_TUNE, round) is Reply.YES


def _unmarked(run: Run, round: int) -> tuple[Reply, str]:
    loss = run.scores(run.erased, round, names.LEAVER_LOSS)
    aim, start = (run.last_scores(arm, names.LEAVER_LOSS) for arm in (names.RETRAIN, names.FEDAVG))
    gap = gap_to_retraining(run, run.erased, round, names.LEAVER_ACCURACY)
    ratio = log_ratio(loss, aim)
    numbers = (
        f"loss on the leaver's own samples is {format_estimate(mean_loss(loss), 'loss')} "
        f"{describe_round(round)}, {format_mean(mean_loss(aim), 'loss')} retrained and "
        f"{format_mean(mean_loss(start), 'loss')} before erasing (within a factor of "
        f"{LOSS_FACTOR:g} of retraining is allowed); accuracy on "
        f"them is {format_points(gap)} from retraining, where {FORGOTTEN_POINTS:g} are allowed"
    )
    if compare_with_retrained(run, names.FEDAVG, run.last_round(names.FEDAVG)) is Reply.YES:
        return Reply.UNDETERMINED, f"{numbers}; but even before erasing they hardly differ"
    if ratio.mean > _FACTOR or gap.mean < -_ALLOWED:
        numbers += "; it went further than retraining does"
    return _same(gap, ratio), numbers


def _same(gap: Estimate, ratio: Estimate) -> Reply:
    return join_replies(
        {reply_within(gap, -_ALLOWED, _ALLOWED), reply_within(ratio, -_FACTOR, _FACTOR)}
    )


def _retraining(comparison: Comparison, rounds: int) -> str:
    never, seeds = comparison.retrained_never, len(comparison.retrained)
    if never == seeds:
        return f"fair retraining did not reach it in its {plural(rounds, 'round')}"
    spent = f"fair retraining {_spent(comparison, comparison.retrained)}"
    return f"{spent} (never in {never} of {plural(seeds, 'seed')})" if never else spent


def _spent(comparison: Comparison, costs: Sequence[Cost | None]) -> str:
    rounds = comparison.spent(costs, "rounds")
    uploads = comparison.spent(costs, "upload_mb")
    if rounds is None or uploads is None:
        return "an unknown amount"
    noun = "round" if rounds.mean == 1 else "rounds"
    return f"{format_mean(rounds, 'rounds')} {noun} and {format_mean(uploads, 'MB')} of uploads"
