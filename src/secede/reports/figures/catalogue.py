"""The paper's figures and one that compares methods, as values, for one run or many.

A row of panels goes over data sets, as in the paper. Numbers of clients share a panel of bars;
curves have a figure for each. Halimi et al. 2022, section 5, appendices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from secede.reports import names
from secede.reports.analysis import JUDGED_ROUND
from secede.reports.figures.figure_data import Panel, Plot
from secede.reports.figures.panels import (
    attack_panel,
    bar_panel,
    communication_panel,
    curves_beside,
    method_panel,
    methods_shown,
    rounds_panel,
)
from secede.reports.records.runs import Run
from secede.text import plural

WORTH_A_FIGURE = 3  # least number of methods for a figure that compares them
_BESIDE = {
    names.FINE_TUNE: "fine-tuning FedAvg's model",
    names.REFERENCE: "starting from the others' mean (the reference)",
    names.PROJECTED_ASCENT: "projected ascent",
}


@dataclass(frozen=True)
class Moments:
    """The rounds of post-training after which figures show the erased model."""

    forgotten: int
    flipped: int  # of flipped images, where the paper waits longer
    useful: int
    methods: int


JUDGED = Moments(*(4 * (JUDGED_ROUND,)))  # a page's own: the verdict's, in every figure
PAPER = Moments(forgotten=1, flipped=5, useful=5, methods=1)  # where the paper measures

# The scores that show the leaver.
_EFFICACY: dict[str, tuple[str, ...]] = {
    "backdoor": (names.ATTACK_SUCCESS, names.BACKDOOR_ACCURACY),
    "flipped": (names.FLIPPED_ACCURACY,),
    "clean": (names.LEAVER_LOSS, names.LEAVER_ACCURACY),
    "exclusive": (names.EXCLUSIVE_ACCURACY, names.OTHERS_ACCURACY),
    "class": (names.CLASS_ACCURACY, names.OTHERS_ACCURACY),
}
_SHADED = {
    "backdoor": "what counts as forgotten, to which less than retraining's belongs",
    "clean": "as far as two retrainings may differ; whether a clean leaver is forgotten, its loss "
    "decides",
}
_EFFICACY_CAPTION = {
    "backdoor": (
        "Attack success is the share of triggered test images of other classes that the model "
        "calls the target. The paper's backdoor accuracy also counts images that truly belong to "
        "the target, which gives it a floor (about 10 % with ten classes)."
    ),
    "flipped": "Accuracy on flipped test images; the aim is what retraining gives, not zero.",
    "clean": "The leaver's own training samples; the aim is what retraining gives, not more.",
    "exclusive": (
        "Accuracy on test images of the classes that the leaver held alone, or nearly so, and on "
        "those of all other classes; the aim is what retraining gives."
    ),
    "class": (
        "Accuracy on test images of the classes to erase and on those of all other classes; the "
        "aim is what retraining gives."
    ),
}


_CANARIES = (
    " Canaries: 1 is a model that knows all of the leaver's canaries; one that never saw them has "
    "the mean rank of chance, with ten labels 5.5, give or take what the coins did."
)


@dataclass(frozen=True)
class PanelColumn:
    """Runs that share a column of panels: one data set, each with another number of clients."""

    title: str
    runs: tuple[Run, ...]


def make_plots(runs: Sequence[Run], moments: Moments = JUDGED) -> tuple[Plot, ...]:
    """Return every figure for these runs, scenario by scenario."""
    plots: list[Plot] = []
    for scenario in names.SCENARIOS:
        chosen = [run for run in runs if run.config.scenario == scenario]
        if chosen:
            plots.extend(_scenario_plots(scenario, panel_columns(chosen), moments))
    return tuple(plots)


def panel_columns(runs: Sequence[Run]) -> tuple[PanelColumn, ...]:
    """Return a column for each data set, or for each run if they differ in more than clients."""
    ordered = sorted(runs, key=lambda run: (names.data_order(run.config.data), run.config.clients))
    groups: dict[str, list[Run]] = {}
    for run in ordered:
        groups.setdefault(run.config.data, []).append(run)
    if any(len({run.config.clients for run in group}) < len(group) for group in groups.values()):
        return tuple(PanelColumn(run.config.title, (run,)) for run in ordered)
    return tuple(
        PanelColumn(names.data_label(data), tuple(group)) for data, group in groups.items()
    )


def _scenario_plots(
    scenario: str, columns: tuple[PanelColumn, ...], moments: Moments
) -> Iterator[Plot]:
    yield _efficacy(scenario, columns, moments)
    sizes = sorted({run.config.clients for run in _runs(columns)})
    of_size = {size: _with_size(columns, size) for size in sizes}
    for size, cells in of_size.items():
        yield from _membership(scenario, size, cells, moments.forgotten)
    yield _clean(scenario, columns, moments.useful)
    for size, cells in of_size.items():
        yield _communication(scenario, size, cells)
    for size, cells in of_size.items():
        yield _rounds(scenario, size, cells)
    for size, cells in of_size.items():
        yield from _methods(scenario, size, cells, moments.methods)


def _with_size(columns: tuple[PanelColumn, ...], size: int) -> list[tuple[str, Run]]:
    return [(c.title, run) for c in columns for run in c.runs if run.config.clients == size]


def _efficacy(scenario: str, columns: tuple[PanelColumn, ...], moments: Moments) -> Plot:
    round = moments.flipped if scenario == "flipped" else moments.forgotten
    after = _reached(_runs(columns), round)
    return Plot(
        slug=f"{scenario}-efficacy",
        title=f"{names.SCENARIOS[scenario]}: is the leaver forgotten after {after}?",
        caption=f"Erased: after {after} of post-training. {_EFFICACY_CAPTION[scenario]}",
        rows=tuple(_bars(columns, score, round) for score in _EFFICACY[scenario]),
    )


def _clean(scenario: str, columns: tuple[PanelColumn, ...], round: int) -> Plot:
    after = _reached(_runs(columns), round)
    which = " of the other classes" if scenario in names.UTILITY else ""
    return Plot(
        slug=f"{scenario}-clean-accuracy",
        title=f"{names.SCENARIOS[scenario]}: is the model useful after {after}?",
        caption=f"Erased: after {after} of post-training. Accuracy on clean test images{which}.",
        rows=(_bars(columns, _utility(scenario), round),),
    )


def _utility(scenario: str) -> str:
    return names.UTILITY.get(scenario, names.CLEAN_ACCURACY)


def _bars(columns: tuple[PanelColumn, ...], score: str, round: int) -> tuple[Panel, ...]:
    return tuple(bar_panel(column.title, column.runs, score, round) for column in columns)


def _membership(
    scenario: str, size: int, cells: list[tuple[str, Run]], round: int
) -> Iterator[Plot]:
    found = ((run.folder, _attacked_after(run, round)) for _, run in cells)
    moments = {folder: at for folder, at in found if at is not None}
    attacked = [(title, run) for title, run in cells if run.folder in moments]
    if not attacked:
        return
    after = sorted(set(moments.values()))
    yield Plot(
        slug=f"{scenario}-membership-n{size}",
        title=f"{names.SCENARIOS[scenario]}, N = {size}: can an attacker tell that it took part?",
        caption="Two membership attacks: how much more often they call one of the leaver's samples "
        "a member than one that nobody trained on, with 95 % intervals. At zero an attack guesses; "
        "one that does so before erasing, too, can tell nothing of any model. Methods: after "
        f"{' or '.join(map(str, after[:-1]))}{' or ' if after[:-1] else ''}"
        f"{plural(after[-1], 'round')} of post-training.",
        rows=tuple(
            tuple(attack_panel(title, run, attack, moments[run.folder]) for title, run in attacked)
            for attack in names.ATTACKS
        ),
    )


def _attacked_after(run: Run, round: int) -> int | None:
    """Return the round at which the judged model was attacked: this one, or the last before it.

    Older records have attacks after the first round and the last one alone.
    """
    rounds = range(min(round, run.last_round(run.erased)), -1, -1)
    return next((at for at in rounds if run.attacks(run.erased, at, "yeom")), None)


def _communication(scenario: str, size: int, cells: list[tuple[str, Run]]) -> Plot:
    which = "an accuracy on the other classes" if scenario in names.UTILITY else "a clean accuracy"
    return Plot(
        slug=f"{scenario}-communication-n{size}",
        title=f"{names.SCENARIOS[scenario]}, N = {size}: what does {which} cost?",
        caption=f"Megabytes uploaded until {which} is first reached; one dot a round, "
        "the leaver's own upload included. Lower and further right is better.",
        rows=(tuple(communication_panel(title, run) for title, run in cells),),
    )


def _rounds(scenario: str, size: int, cells: list[tuple[str, Run]]) -> Plot:
    scores = [_utility(scenario), _shown_leaver(scenario)]
    read = all(run.has_canaries for _, run in cells)
    beside = _beside([run for _, run in cells])
    return Plot(
        slug=f"{scenario}-rounds-n{size}",
        title=f"{names.SCENARIOS[scenario]}, N = {size}: round by round",
        caption=f"Rounds of post-training for the erased model{beside}, "
        "rounds of training from scratch for the retrained one. The dotted level is FedAvg's last "
        f"round.{_CANARIES if read else ''}",
        rows=tuple(
            tuple(rounds_panel(title, run, score) for title, run in cells)
            for score in (*scores, *((names.CANARY_RANK,) if read else ()))
        ),
    )


def _shown_leaver(scenario: str) -> str:
    return names.LEAVER_LOSS if scenario == "clean" else names.MAIN_PROBE[scenario]


def _beside(runs: Sequence[Run]) -> str:
    """Return the methods drawn beside the erased model, as a part of a sentence."""
    shown = [what for arm, what in _BESIDE.items() if any(arm in curves_beside(r) for r in runs)]
    return f" and, beside it, for {' and '.join(shown)}" if shown else ""


def _methods(scenario: str, size: int, cells: list[tuple[str, Run]], round: int) -> Iterator[Plot]:
    rich = [
        (title, run)
        for title, run in cells
        if len(run.config.methods) >= WORTH_A_FIGURE
        and min(run.last_round(arm) for arm in run.config.methods) >= 1
    ]
    if not rich:
        return
    shaded = _SHADED.get(scenario, "what counts as forgotten")
    panels = [method_panel(title, run, round) for title, run in rich]
    logarithmic = (
        " Large differences are on a logarithmic scale."
        if any(panel.is_difference_logarithmic or panel.is_position_logarithmic for panel in panels)
        else ""
    )
    yield Plot(
        slug=f"{scenario}-methods-n{size}",
        title=f"{names.SCENARIOS[scenario]}, N = {size}: methods compared",
        caption=f"{_which([run for _, run in rich])} after {_ordinal(rich, round)} of "
        "post-training: how far its score lies from retraining's, with 95 % intervals, against "
        "how far its usefulness does (methods at one place stand side by side). The line is "
        "retraining; "
        f"shaded is {shaded}. Further right and nearer the line is better. Bold: the method "
        f"judged here.{logarithmic}",
        rows=tuple((panel,) for panel in panels),
    )


def _ordinal(cells: list[tuple[str, Run]], round: int) -> str:
    last = max(min(round, run.last_round(arm)) for _, run in cells for arm in run.config.methods)
    return "its first round" if last == 1 else plural(last, "round")


def _which(runs: Sequence[Run]) -> str:
    if all(len(methods_shown(run)) == len(run.config.methods) for run in runs):
        return "Every method"
    return "Every method but some variants, which the table has,"


def _runs(columns: tuple[PanelColumn, ...]) -> list[Run]:
    return [run for column in columns for run in column.runs]


def _reached(runs: Sequence[Run], round: int) -> str:
    reached = {min(round, run.last_round(run.erased)) for run in runs}
    upto = "" if len(reached) == 1 else "up to "
    return f"{upto}{plural(max(reached), 'round')}"
