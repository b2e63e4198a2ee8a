"""The verdict on one run: forgotten? useful? cheaper? Three answers with their margins.

An answer is yes or no only where the whole 95 % interval lies on one side of the margin. The
headline is evidence from these probes and seeds, and never says more than that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from secede.experiments.config import JUDGED_ROUND as JUDGED_ROUND
from secede.reports import names
from secede.reports.analysis.answers import (
    Answer,
    Reply,
    as_sentence,
    describe_round,
    reply_within,
)
from secede.reports.analysis.convergence import hardly_learnt, not_converged
from secede.reports.analysis.costs import Comparison, compare_at_round
from secede.reports.analysis.estimates import (
    format_estimate,
    format_gap,
    format_mean,
    gap_to_retraining,
    mean_over_seeds,
    mean_share,
)
from secede.reports.analysis.forgotten import judge_forgotten
from secede.reports.analysis.told_apart import judge_told_apart
from secede.reports.records.runs import Cost, Run
from secede.text import plural

USEFUL_POINTS = 2.0  # clean accuracy may fall this far below the retrained model's
ONE_SEED = "One seed only: intervals cover the sampling of the test set, not of training."


USEFUL = "Is the model still useful?"
CHEAPER = "Is it cheaper than fair retraining?"

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
    told_apart: Answer | None = None  # from retraining; a fact beside the answers
    not_converged: str = ""  # a warning; empty where training had ended

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
        asked = (*self.answers, *([self.told_apart] if self.told_apart else []))
        lines = [f"{a.question} {a.reply.capitalize()}. {a.sentence}" for a in asked]
        return "\n".join([self.headline, *lines, *filter(None, (self.not_converged, self.note))])

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
        told_apart=judge_told_apart(run, round),
        not_converged=not_converged(run),
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


def judge_useful(run: Run, round: int) -> Answer:
    """Answer whether the erased model is as accurate as the fully retrained one."""
    last, score = run.last_round(names.RETRAIN), run.config.utility
    gap = gap_to_retraining(run, run.erased, round, score)
    erased = mean_share(run.scores(run.erased, round, score))
    retrained = mean_share(run.last_scores(names.RETRAIN, score))
    numbers = (
        f"{names.SCORES[score]} is {format_mean(erased, 'share')} {describe_round(round)} and "
        f"{format_mean(retrained, 'share')} after {plural(last, 'round')} of retraining: "
        f"{format_gap(erased, retrained, gap)}, where a loss of {USEFUL_POINTS:g} is allowed"
    )
    reply = reply_within(gap, -USEFUL_POINTS / 100, math.inf)
    if no_learning := hardly_learnt(run):
        reply = Reply.UNDETERMINED
        numbers += f"; but {no_learning}"
    return Answer(USEFUL, reply, as_sentence(numbers))


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
