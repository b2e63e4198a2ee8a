"""Write an audit's page: the verdict's two lines, the margins, and every score beside its null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from markupsafe import Markup

from secede.files import write_text
from secede.reports import names
from secede.reports.audit.figures import margin_plot, model_plot
from secede.reports.audit.judged import Judged
from secede.reports.build import Drawing, page_template
from secede.reports.figures.figure_data import LOOKS, THEME, Plot
from secede.reports.figures.render import panel_svg

TONES = {"indistinguishable": "yes", "distinguishable": "no", "undetermined": "undetermined"}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What an audit is of, as its page says it."""

    title: str
    method: str
    models: int
    pool: int
    dealt: int
    settings: Mapping[str, object]
    environment: Mapping[str, object]
    notes: Sequence[Mapping[str, Any]]  # of each federation

    @property
    def erasure(self) -> str:
        """What each erasure did, in words."""
        done: Mapping[str, Any] = self.notes[0]["erasure"]
        shares = [n["erasure"]["unused_weights"] for n in self.notes]
        words = f"{names.method_line(self.method)}; {done['rounds']} rounds of post-training"
        if any(share is None for share in shares):
            return f"{words}; unused weights were kept"
        mean = sum(share["share"] for share in shares) / len(shares)
        return f"{words}; {mean:.0%} of the layers' squared weights were removed as unused"

    @property
    def seconds(self) -> float:
        """The mean time of a federation."""
        return fmean(note["seconds"] for note in self.notes)


def write_audit_page(subject: Subject, judged: Sequence[Judged], path: Path) -> None:
    """Write the page; the first of `judged` are the models as they are."""
    write_text(path, render_audit_page(subject, judged, version=version("secede")))


def render_audit_page(subject: Subject, judged: Sequence[Judged], *, version: str) -> str:
    """Return the page as HTML."""
    first = judged[0]
    plots = (margin_plot(first.ensembles), model_plot(first.ensembles))
    return page_template("audit.html.j2").render(
        subject=subject,
        judged=judged,
        first=first,
        drawings=[_drawn(plot) for plot in plots],
        tones=TONES,
        label=names.label,
        theme=THEME,
        looks=LOOKS,
        version=version,
    )


def _drawn(plot: Plot) -> Drawing:
    panels = (panel_svg(p, f"{plot.slug}-{n}") for n, p in enumerate(plot.panels, start=1))
    return Drawing(plot, tuple(Markup(svg) for svg in panels))  # our own drawing, texts escaped
