"""`reports/audit/rows.py` and `reports/audit/judged.py`: scores beside null and control."""

from __future__ import annotations

import re

import pytest

from harness import audits
from secede.reports.audit.judged import Judged, judge
from secede.reports.audit.rows import SCALARS


@pytest.fixture(scope="module")
def judged() -> Judged:
    return judge("as erased", audits.made_up(shift=2.0), seed=0)


def test_every_row_has_the_value_of_the_kind_that_its_column_names(judged: Judged) -> None:
    membership, told, distances = judged.groups
    first = judged.scores.erased.membership[0]
    assert membership.rows[0].erased == f"{first.auc.estimate.value:.3f}"
    assert membership.rows[0].null == f"{judged.scores.again.membership[0].auc.estimate.value:.3f}"
    control = judged.scores.original.membership[0].auc.estimate.value
    assert membership.rows[0].original == f"{control:.3f}"
    assert told.rows[0].erased == f"{100 * judged.scores.erased.told[0].accuracy.value:.1f} %"
    energy = judged.scores
    assert distances.rows[0].erased == f"{energy.erased.energy[0].distance:.3f}"
    assert distances.rows[0].null == f"{energy.again.energy[0].distance:.3f}"


def test_no_name_of_the_code_reaches_a_reader(judged: Judged) -> None:
    labels = [row.label for group in judged.groups for row in group.rows]
    assert len(labels) == len(set(labels)) > 30
    labels += [row.label for row in judged.equivalence]
    labels += [row.label for row in judged.means]
    assert [label for label in labels if "_" in label or "{" in label] == []
    assert "accuracy of the retained client with the lowest" in SCALARS.values()


def test_means_are_over_the_models_of_each_kind(judged: Judged) -> None:
    row = next(row for row in judged.means if row.label == "clean accuracy")
    mean = judged.ensembles.scalars["clean_accuracy"]["retrained"].mean()
    assert row.retrained == f"{100 * mean:.1f} %"


def test_a_scalar_without_a_null_is_shown_and_not_judged(judged: Judged) -> None:
    assert judged.uncompared == ("attack_success",)
    assert "attack success" not in [row.label for row in judged.equivalence]
    assert "attack success" in [row.label for row in judged.means]


def test_a_shift_shows_in_the_verdict_and_its_absence_in_the_null(judged: Judged) -> None:
    assert judged.verdict.visibility.answer == "distinguishable"
    null = judge("as erased", audits.made_up(shift=0.0), seed=0)
    assert null.verdict.visibility.answer != "distinguishable"
    details = [row.detail for group in judged.groups[1:2] for row in group.rows]
    assert all(re.fullmatch(r"[\d.]+ to [\d.]+ %, p = [\d.e-]+", detail) for detail in details)
