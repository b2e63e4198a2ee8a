"""The figures of an audit's page: how margins are spread, and each model's mean margin."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secede.audit.ensembles.margins import ENSEMBLES, Ensemble, Ensembles, Floats
from secede.reports import names
from secede.reports.figures.figure_data import Curve, CurvePanel, ModelsPanel, Plot

ARMS: dict[Ensemble, str] = {
    "original": names.FEDAVG,
    "erased": names.ERASED,
    "retrained": names.RETRAIN,
    "retrained-again": names.RETRAIN_AGAIN,
}
BINS = 36
_SHOWN = (0.2, 99.8)  # percentiles of all margins: what lies beyond is counted at the edge
_MARGIN = "margin: log odds of the sample's label"
_MEAN = "mean margin of a model"

Groups = dict[str, dict[Ensemble, list[Floats]]]  # of samples; margins of each model


def margin_plot(ensembles: Ensembles) -> Plot:
    """Return the distributions of margins, of all models of a kind together."""
    panels = tuple(_curves(title, by) for title, by in _groups(ensembles).items())
    return Plot(
        slug="margins",
        title="How sure the models are of the right label",
        caption="Each curve is of all models of one kind, on the same samples. If the leaver is "
        "forgotten, the curve of the erased models lies where those of the retrained ones do, as "
        "near as the two retrained ones lie to each other. A curve further left is less sure; one "
        "further right knows the samples better than a model can that never saw them.",
        rows=(panels,),
    )


def model_plot(ensembles: Ensembles) -> Plot:
    """Return each model's mean margin as a dot."""
    panels = tuple(
        ModelsPanel(
            title=title,
            position_label=_MEAN,
            rows=tuple(
                (ARMS[kind], tuple(float(values.mean()) for values in by[kind]))
                for kind in ENSEMBLES
            ),
        )
        for title, by in _groups(ensembles).items()
    )
    return Plot(
        slug="models",
        title="Each model's mean margin",
        caption="One dot for each model. Where the erased models' dots lie apart from the "
        "retrained ones' on both sides, one can see that a model was erased, even if nothing can "
        "be told of single samples.",
        rows=(panels,),
    )


def _groups(ensembles: Ensembles) -> Groups:
    """Return the margins by what the samples were to the leaver of each federation."""
    groups: Groups = {}
    for title, mask in (
        ("The leaver's samples", ensembles.member),
        ("Held-out samples like them", ~ensembles.member),
    ):
        groups[title] = {
            kind: [
                row[chosen]
                for row, chosen in zip(ensembles.margins[kind]["pool"], mask, strict=True)
            ]
            for kind in ENSEMBLES
        }
    return groups


def _curves(title: str, by: dict[Ensemble, list[Floats]]) -> CurvePanel:
    joined = {kind: np.concatenate(values) for kind, values in by.items()}
    low, high = np.percentile(np.concatenate(list(joined.values())), _SHOWN)
    edges = np.linspace(low, max(high, low + 1e-6), BINS + 1)
    return CurvePanel(
        title=title,
        position_label=_MARGIN,
        value_label="share of samples",
        curves=tuple(_curve(ARMS[kind], joined[kind], edges) for kind in ENSEMBLES),
    )


def _curve(arm: str, values: Floats, edges: NDArray[np.float64]) -> Curve:
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    middles = (edges[:-1] + edges[1:]) / 2
    return Curve(
        arm,
        tuple(map(float, middles)),
        tuple(map(float, counts / len(values))),
        float(np.median(values)),
    )
