from __future__ import annotations

import numpy as np
import pytest

from harness import audits
from secede.reports import names
from secede.reports.audit.figures import BINS, margin_plot, model_plot
from secede.reports.figures.figure_data import CurvePanel, ModelsPanel


def test_each_kind_has_a_curve_over_the_leavers_and_over_held_out_samples() -> None:
    found = audits.made_up()
    plot = margin_plot(found)
    leaver, held_out = plot.panels
    assert isinstance(leaver, CurvePanel)
    assert isinstance(held_out, CurvePanel)
    assert leaver.arms == (names.FEDAVG, names.ERASED, names.RETRAIN, names.RETRAIN_AGAIN)
    for curve in (*leaver.curves, *held_out.curves):
        assert len(curve.heights) == BINS
        assert sum(curve.heights) == pytest.approx(1)
    erased = found.margins["erased"]["pool"]
    assert leaver.curves[1].median == pytest.approx(float(np.median(erased[found.member])))
    assert held_out.curves[1].median == pytest.approx(float(np.median(erased[~found.member])))


def test_each_model_has_a_dot_at_its_mean() -> None:
    found = audits.made_up()
    leaver = model_plot(found).panels[0]
    assert isinstance(leaver, ModelsPanel)
    arm, values = leaver.rows[1]
    assert arm == names.ERASED
    own = found.margins["erased"]["pool"][3][found.member[3]]
    assert values[3] == pytest.approx(float(own.mean()))
    assert len(values) == found.models


def test_margins_that_are_all_alike_can_be_drawn() -> None:
    found = audits.made_up()
    for sets in found.margins.values():
        for margins in sets.values():
            margins[:] = 1.0
    (panel, _) = margin_plot(found).panels
    assert isinstance(panel, CurvePanel)
    assert [sum(curve.heights) for curve in panel.curves] == pytest.approx([1.0] * 4)
