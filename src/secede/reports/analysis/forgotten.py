"""Is the leaver forgotten, as by retraining? The probe, the leaver's loss and its canaries.

One measure outside its margin is enough for a no. Yes takes all of them and several seeds, and one
that showed the leaver before erasing, or there was nothing to see.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from secede.audit import CanaryRule, Judgement, Ranks, Reading
from secede.audit import judge as judge_canaries
from secede.reports import names
from secede.reports.analysis.answers import (
    Answer,
    Reply,
    as_sentence,
    describe_round,
    join_replies,
    reply_within,
)
from secede.reports.analysis.convergence import hardly_learnt
from secede.reports.analysis.estimates import (
    Estimate,
    format_estimate,
    format_gap,
    format_mean,
    gap_to_retraining,
    log_ratio,
    mean_score,
    ratio,
    score_unit,
)
from secede.reports.analysis.margins import Margin, explain_margins, margin
from secede.reports.records.runs import Run

FORGOTTEN = "Is the leaver forgotten, as by retraining?"
ONE_SEED_REASON = (
    "One seed never says yes: it shows nothing of how trainings differ; run more (--seeds 5)"
)

_LATER = {
    Reply.NO: "the leaver is no longer forgotten",
    Reply.UNDETERMINED: "whether the leaver is forgotten is undetermined",
}
_CANARY_REPLIES = {"no trace found": Reply.YES, "trace found": Reply.NO}


@dataclass(frozen=True)
class Measure:
    """One score of an arm beside retraining's: its reply, and whether it showed the leaver."""

    score: str
    gap: Estimate  # a difference of shares, or the logarithm of a ratio of losses
    before: Estimate  # the same of the model from before erasing
    margin: Margin

    @property
    def allowed(self) -> tuple[float, float]:
        """How far the score may lie below and above retraining's."""
        # A backdoor that works less often than after retraining is no trace of the leaver.
        open_below = self.score == names.ATTACK_SUCCESS
        return -math.inf if open_below else -self.margin.size, self.margin.size

    @property
    def reply(self) -> Reply:
        """Whether the arm is as retrained by this score."""
        return reply_within(self.gap, *self.allowed)

    @property
    def showed(self) -> bool:
        """Whether the model from before lies surely outside: there was something to forget."""
        return self._before is Reply.NO

    @property
    def unseen(self) -> str:
        """What to add where the model from before did not surely show the leaver."""
        if self.showed:
            return ""
        if self.before.interval is None:
            return "; one seed gives it no interval"
        how = "hardly shows" if self._before is Reply.YES else "does not surely show"
        return f"; even before erasing it {how} the leaver"

    @property
    def _before(self) -> Reply:
        return reply_within(self.before, *self.allowed)

    @property
    def went_further(self) -> bool:
        """Whether the arm's mean lies beyond retraining's on the side away from the leaver."""
        if self.margin.is_loss:
            return self.gap.mean > self.margin.size
        return self.gap.mean < self.allowed[0]


def allowed_difference(run: Run) -> tuple[float, float]:
    """Return how far the main score may lie below and above the retrained model's."""
    return _measure(run, run.erased, run.last_round(run.erased), run.config.main_probe).allowed


def compare_with_retrained(run: Run, arm: str, round: int) -> Reply:
    """Return whether an arm's main score lies within the verdict's margin of retraining's.

    For a clean leaver, loss and accuracy on its samples.
    """
    if run.config.scenario == "clean":
        return join_replies(measure.reply for measure in _measures(run, arm, round))
    return _measure(run, arm, round, run.config.main_probe).reply


def judge_forgotten(run: Run, round: int) -> Answer:
    """Answer whether the erased model shows no more of the leaver than the retrained one."""
    reply, sentences = _judge(run, round), [*_sentences(run, round)]
    if no_learning := hardly_learnt(run):
        reply = Reply.UNDETERMINED
        sentences.append(
            f"But {no_learning}. More rounds (training.rounds) or smaller batches "
            "(training.batch_size) may help"
        )
    if reply is Reply.YES and len(run.seeds) == 1:
        reply = Reply.UNDETERMINED
    if reply is Reply.UNDETERMINED and len(run.seeds) == 1:
        sentences.append(ONE_SEED_REASON)
    sentences += _remarks(run, round, reply)
    parts = tuple(map(as_sentence, sentences))
    return Answer(FORGOTTEN, reply, " ".join(parts), parts)


def _remarks(run: Run, round: int, reply: Reply) -> Iterator[str]:
    last = run.last_round(run.erased)
    if reply is Reply.YES and _does_more_than_needed(run, round):
        more = "the climb" if run.erased == names.PROJECTED_ASCENT else "more than that"
        yield f"Fine-tuning alone does as well, so this run does not show {more} was needed"
    if reply is Reply.YES and (later := _judge(run, last)) is not Reply.YES:
        yield f"After {last} rounds {_LATER[later]}"
    if reply is not Reply.YES and _climb_ran_out(run):
        section = f"settings.{names.PROJECTED_ASCENT}"
        yield (
            f"The climb ended after all its epochs: more epochs ({section}.epochs) or smaller "
            f"batches ({section}.batch_size) let it go further"
        )


def _judge(run: Run, round: int, arm: str | None = None) -> Reply:
    """Return the reply of all measures and canaries together, seeds and training aside."""
    measures = _measures(run, arm or run.erased, round)
    canaries = _canary_judgement(run, arm or run.erased, round)
    replies = [measure.reply for measure in measures]
    showed = any(measure.showed for measure in measures)
    if canaries is not None and canaries.verdict in _CANARY_REPLIES:
        replies.append(_CANARY_REPLIES[canaries.verdict])
        showed = True
    joined = join_replies(replies)
    return joined if showed or joined is Reply.NO else Reply.UNDETERMINED


def _measures(run: Run, arm: str, round: int) -> tuple[Measure, Measure]:
    is_clean = run.config.scenario == "clean"
    first = names.LEAVER_ACCURACY if is_clean else run.config.main_probe
    return _measure(run, arm, round, first), _measure(run, arm, round, names.LEAVER_LOSS)


def _measure(run: Run, arm: str, round: int, score: str) -> Measure:
    before = run.last_round(names.FEDAVG)
    gap, gap_before = (_gap(run, *model, score) for model in ((arm, round), (names.FEDAVG, before)))
    return Measure(score, gap, gap_before, margin(run, score))


def _gap(run: Run, arm: str, round: int, score: str) -> Estimate:
    if names.is_proportion(score):
        return gap_to_retraining(run, arm, round, score)
    return log_ratio(run.scores(arm, round, score), run.last_scores(names.RETRAIN, score))


def _sentences(run: Run, round: int) -> Iterator[str]:
    """Yield what each measure says of the judged model, where margins come from, and canaries."""
    measures = _measures(run, run.erased, round)
    for measure in measures:
        further = measure.reply is not Reply.YES and measure.went_further
        yield (
            f"{names.SCORES[measure.score]} is {_values(run, round, measure)}"
            f"{measure.unseen}{'; it went further than retraining does' if further else ''}"
        )
    yield explain_margins(run, measures[0].score).removesuffix(".")
    canaries = _canary_judgement(run, run.erased, round)
    if canaries is not None:
        yield canaries.reason.removesuffix(".").removeprefix("Undetermined: ")


def _values(run: Run, round: int, measure: Measure) -> str:
    score, unit = measure.score, score_unit(measure.score)
    erased = mean_score(run, run.erased, round, score)
    retrained, before = (
        mean_score(run, arm, run.last_round(arm), score) for arm in (names.RETRAIN, names.FEDAVG)
    )
    if measure.margin.is_loss:
        losses = run.scores(run.erased, round, score)
        times = ratio(losses, run.last_scores(names.RETRAIN, score))
        distance = f"{format_estimate(times, 'times', digits=2)} retraining's"
    else:
        distance = f"{format_gap(erased, retrained, measure.gap)} from retraining"
    shown = [format_mean(each, unit) for each in (erased, retrained, before)]
    return (
        f"{shown[0]} {describe_round(round)}, {shown[1]} retrained and {shown[2]} before erasing: "
        f"{distance}, where {measure.margin.words}"
    )


def _canary_judgement(run: Run, arm: str, round: int) -> Judgement | None:
    """Return what canaries say of an arm, over all seeds together; None: none were planted."""
    models = ((names.FEDAVG, run.last_round(names.FEDAVG)), (arm, round))
    before, after = (_canary_reading(run, *model) for model in models)
    if before is None or after is None:
        return None
    return judge_canaries(before, after, CanaryRule())


def _canary_reading(run: Run, arm: str, round: int) -> Reading | None:
    """Return one reading of all seeds' canaries: their coins are independent of each other."""
    readings = run.readings(arm, round)
    if not readings or len(readings) < len(run.seeds):
        return None
    ranks = Ranks.joined([each.ranks for each in readings])
    return Reading(ranks=ranks, wins=sum(each.wins for each in readings), count=ranks.count)


def _does_more_than_needed(run: Run, round: int) -> bool:
    if names.FINE_TUNE not in run.config.methods or run.erased == names.FINE_TUNE:
        return False
    return _judge(run, round, names.FINE_TUNE) is Reply.YES


def _climb_ran_out(run: Run) -> bool:
    steps = [seed.local_step for seed in run.seeds if run.erased == names.PROJECTED_ASCENT]
    return any(step is not None and step.ended_by == "epochs" for step in steps)
