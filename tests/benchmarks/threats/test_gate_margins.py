"""docs/threats.md has what the gate lets pass as chance, as the gate's own code says."""

from __future__ import annotations

from benchmarks.threats import gate_margins
from harness.paths import ROOT


def test_the_page_has_the_table_as_it_is() -> None:
    assert gate_margins.table() in (ROOT / "docs" / "threats.md").read_text(encoding="utf-8")


def test_a_smaller_margin_and_more_samples_let_less_pass() -> None:
    falls = [[gate_margins.class_fall(n, m) for m in gate_margins.MARGINS] for n in (30, 100, 1000)]
    for row in falls:
        assert row == sorted(row, reverse=True)
    for column in zip(*falls, strict=True):
        assert list(column) == sorted(column, reverse=True)


def test_comparing_sample_by_sample_lets_less_pass() -> None:
    for samples in gate_margins.SAMPLES:
        for margin in gate_margins.MARGINS:
            alone = gate_margins.class_fall(samples, margin, paired=False)
            paired = gate_margins.class_fall(samples, margin)
            assert paired <= alone
            assert paired < alone or samples == 30  # a sample is 3 points there
        alone = gate_margins.overall_fall(samples, paired=False)
        assert gate_margins.overall_fall(samples) < alone or samples == 30
