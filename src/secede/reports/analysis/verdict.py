"""The verdict on one run: its three answers and a headline in plain words.

It is evidence from these probes and seeds, and never says more than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from secede.reports import names
from secede.reports.analysis import questions
from secede.reports.analysis.questions import JUDGED_ROUND, Answer, Reply
from secede.reports.records.runs import Run

ONE_SEED = "One seed only: intervals cover the sampling of the test set, not the luck of training."
_FORGOTTEN = {
    Reply.YES: (
        "Within the stated limits, the erased model shows as little of the leaver as retraining "
        "leaves"
    ),
    Reply.NO: "The erased model does not treat the leaver's data as one retrained without it does",
    Reply.UNDETERMINED: "Whether the leaver is forgotten is undetermined",
}
_USEFUL = {
    Reply.YES: "it is as useful",
    Reply.NO: "it is less useful",
    Reply.UNDETERMINED: "whether it is as useful is undetermined",
}
_CHEAPER = {
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
        return f"{_FORGOTTEN[first]}; {_USEFUL[second]}; {_CHEAPER[third]}."

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
        forgotten=questions.judge_forgotten(run, round),
        useful=questions.judge_useful(run, round),
        cheaper=questions.judge_cheaper(run, round),
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
