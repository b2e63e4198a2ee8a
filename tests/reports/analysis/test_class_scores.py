"""Leavers with classes of their own: which scores decide, and what they are called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from secede.errors import RecordError
from secede.reports.analysis.answers import Reply
from secede.reports.analysis.forgotten import judge_forgotten
from secede.reports.analysis.verdict import judge_cheaper, judge_useful
from secede.reports.figures.catalogue import make_plots
from secede.reports.records.load import read_run
from secede.reports.records.runs import Run
from secede.reports.tables.scores import cost_table, score_table

Make = Callable[..., Run]
BOTH = pytest.mark.parametrize(
    ("scenario", "measure"),
    [("exclusive", "exclusive_accuracy"), ("class", "class_accuracy")],
)


def erased(make_run: Make, value: float, *, retrained: float = 0.0) -> Run:
    curves = {
        "fedavg": [0.86] * 5,
        "retrain": [retrained] * 5,
        "projected-ascent": [0.0, 0.0, value],
    }
    return make_run(
        scenario="exclusive", rounds=4, post_rounds=2, fixed={"exclusive_accuracy": curves}
    )


def test_the_classes_must_be_known_no_more_than_after_retraining(make_run: Make) -> None:
    answer = judge_forgotten(erased(make_run, 0.14), 2)
    assert answer.reply is Reply.NO
    assert answer.sentence.startswith("Accuracy on the leaver's classes is 14.0")
    assert judge_forgotten(erased(make_run, 0.01), 2).reply is Reply.YES


def test_nor_less_where_the_others_kept_some(make_run: Make) -> None:
    assert judge_forgotten(erased(make_run, 0.78, retrained=0.8), 2).reply is Reply.YES
    answer = judge_forgotten(erased(make_run, 0.3, retrained=0.8), 2)
    assert answer.reply is Reply.NO
    assert "it went further than retraining does" in answer.sentence


def test_a_model_is_as_useful_as_it_is_on_the_other_classes(make_run: Make) -> None:
    # Clean accuracy would call the model that forgot nothing the better one.
    others = {"retrain": [0.1, 0.5, 0.9, 0.96, 0.98], "projected-ascent": [0.2, 0.9, 0.9]}
    clean = {"retrain": [0.1, 0.4, 0.7, 0.77, 0.78], "projected-ascent": [0.2, 0.9, 0.9]}
    run = make_run(
        scenario="class",
        rounds=4,
        post_rounds=2,
        fixed={"others_accuracy": others, "clean_accuracy": clean},
    )
    answer = judge_useful(run, 2)
    assert answer.reply is Reply.NO
    assert answer.sentence.startswith("Accuracy on the other classes is 90.0")
    # Retraining gets to 90 % in its second round, with 8 uploads against 9.
    cost = judge_cheaper(run, 2)
    assert cost.reply is Reply.NO
    assert "accuracy on the other classes, erasing took 2 rounds" in cost.sentence
    assert "accuracy on the other classes" in cost_table(run).rows[0].group


@BOTH
def test_tables_and_figures_show_both_measures(make_run: Make, scenario: str, measure: str) -> None:
    run = make_run(scenario=scenario, seeds=(0,))
    keys = [column.key for column in score_table(run).columns]
    assert keys[:4] == ["clean_accuracy", measure, "others_accuracy", "leaver_loss"]
    labels = {plot.slug: [panel.value_label for panel in plot.panels] for plot in make_plots([run])}
    assert labels[f"{scenario}-efficacy"][-1] == "accuracy on the other classes"
    for figure in ("clean-accuracy", "communication-n5", "rounds-n5"):
        assert labels[f"{scenario}-{figure}"][0] == "accuracy on the other classes"


@BOTH
def test_a_run_without_the_other_classes_is_refused(
    write_run: Callable[..., Path], scenario: str, measure: str
) -> None:
    folder = write_run(scenario=scenario, seeds=(0,))
    path = folder / "seed-0" / "curves.jsonl"
    for name in ("others_accuracy", measure):
        whole = path.read_text()
        path.write_text(whole.replace(name, "another"))
        with pytest.raises(RecordError, match=f"lacks the score '{name}'"):
            read_run(folder)
        path.write_text(whole)
