import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secede.reports.figures.catalogue import PAPER, make_plots, panel_columns
from secede.reports.figures.figure_data import LinePanel, ScatterPanel
from secede.reports.records.load import read_run
from secede.reports.records.runs import Run

Make = Callable[..., Run]

CELLS = [
    *(("backdoor", data, n) for data in ("mnist", "emnist47", "cifar10") for n in (5, 10)),
    *(("flipped", data, n) for data in ("mnist", "emnist47") for n in (5, 10)),
]


@pytest.fixture
def cells(make_run: Make) -> list[Run]:
    return [
        make_run(scenario=scenario, data=data, clients=n, seeds=(0,), rounds=3, post_rounds=2)
        for scenario, data, n in reversed(CELLS)
    ]


def test_the_whole_paper_is_drawn(cells: list[Run]) -> None:
    found = {plot.slug: [len(row) for row in plot.rows] for plot in make_plots(cells)}
    assert found == {
        "backdoor-efficacy": [3, 3],
        "backdoor-membership-n5": [3, 3],
        "backdoor-membership-n10": [3, 3],
        "backdoor-clean-accuracy": [3],
        "backdoor-communication-n5": [3],
        "backdoor-communication-n10": [3],
        "backdoor-rounds-n5": [3, 3],
        "backdoor-rounds-n10": [3, 3],
        "backdoor-methods-n5": [1, 1, 1],
        "backdoor-methods-n10": [1, 1, 1],
        "flipped-efficacy": [2],
        "flipped-membership-n5": [2, 2],
        "flipped-membership-n10": [2, 2],
        "flipped-clean-accuracy": [2],
        "flipped-communication-n5": [2],
        "flipped-communication-n10": [2],
        "flipped-rounds-n5": [2, 2],
        "flipped-rounds-n10": [2, 2],
        "flipped-methods-n5": [1, 1],
        "flipped-methods-n10": [1, 1],
    }


def test_panels_stand_in_the_papers_order(cells: list[Run]) -> None:
    efficacy = make_plots(cells)[0]
    titles = [panel.title for panel in efficacy.rows[0]]
    assert titles == ["MNIST", "EMNIST, 47 classes", "CIFAR-10"]


def test_runs_that_differ_in_more_than_clients_get_a_column_each(make_run: Make) -> None:
    runs = [make_run(seeds=(0,), post_rounds=2), make_run(seeds=(0,), post_rounds=3)]
    assert [len(column.runs) for column in panel_columns(runs)] == [1, 1]
    assert [column.title for column in panel_columns(runs)] == ["MNIST, backdoor, N=5"] * 2


def test_a_single_run_has_its_own_panels(make_run: Make) -> None:
    found = make_plots([make_run(scenario="clean", seeds=(0,))])
    assert [plot.slug for plot in found] == [
        "clean-efficacy",
        "clean-membership-n5",
        "clean-clean-accuracy",
        "clean-communication-n5",
        "clean-rounds-n5",
        "clean-methods-n5",
    ]
    assert [panel.value_label for panel in found[0].panels] == [
        "loss on the leaver's samples",
        "accuracy on the leaver's samples",
    ]


def test_without_membership_scores_their_figure_is_left_out(
    write_run: Callable[..., Path],
) -> None:
    folder = write_run(seeds=(0,), rounds=2, post_rounds=1)
    path = folder / "seed-0" / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "membership": {}}))
    slugs = [plot.slug for plot in make_plots([read_run(folder)])]
    assert len(slugs) == 5
    assert "backdoor-membership-n5" not in slugs


def test_captions_say_after_how_many_rounds(make_run: Make) -> None:
    long, short = make_run(seeds=(0,)), make_run(seeds=(0,), clients=10, post_rounds=3)
    found = {plot.slug: plot.caption for plot in make_plots([long, short], PAPER)}
    assert "Erased: after 1 round of" in found["backdoor-efficacy"]
    assert "Erased: after up to 5 rounds of" in found["backdoor-clean-accuracy"]
    titles = {plot.slug: plot.title for plot in make_plots([long, short], PAPER)}
    assert titles["backdoor-efficacy"].endswith("forgotten after 1 round?")
    assert titles["backdoor-clean-accuracy"].endswith("useful after up to 5 rounds?")
    only = {plot.slug: plot.caption for plot in make_plots([short], PAPER)}
    assert "Erased: after 3 rounds of" in only["backdoor-clean-accuracy"]


def test_figures_of_a_page_look_at_the_round_that_is_judged(make_run: Make) -> None:
    plots = make_plots([make_run(seeds=(0,))])
    moments = [plot for plot in plots if not plot.slug.startswith("backdoor-rounds")]
    for plot in moments:
        told = re.findall(r"(\d+) rounds? of post-training", f"{plot.title} {plot.caption}")
        assert set(told) <= {"2"}, plot.slug
    assert sum("2 rounds" in plot.caption for plot in moments) == 4


def test_attacks_of_older_records_are_drawn_where_they_were_made(
    write_run: Callable[..., Path],
) -> None:
    folder = write_run(seeds=(0,))
    path = folder / "seed-0" / "result.json"
    result = json.loads(path.read_text())
    del result["membership"]["projected-ascent@2"]
    path.write_text(json.dumps(result))
    plots = {plot.slug: plot for plot in make_plots([read_run(folder)])}
    assert plots["backdoor-membership-n5"].caption.endswith("after 1 round of post-training.")


@pytest.mark.parametrize(
    ("methods", "post_rounds", "drawn"),
    [
        (("second-choice", "fine-tune", "weight-negation"), 2, True),
        (("second-choice", "fine-tune"), 2, False),
        (("second-choice", "fine-tune", "weight-negation"), 0, False),
    ],
)
def test_three_methods_after_a_round_are_worth_a_figure(
    make_run: Make, methods: tuple[str, ...], post_rounds: int, drawn: bool
) -> None:
    run = make_run(seeds=(0,), rounds=3, post_rounds=post_rounds, methods=methods)
    assert ("backdoor-methods-n5" in [plot.slug for plot in make_plots([run])]) is drawn


def test_of_many_variants_the_figure_shows_the_first_and_says_so(make_run: Make) -> None:
    plain = ("second-choice", "fine-tune", "weight-negation")
    run = make_run(seeds=(0,), rounds=3, post_rounds=2, methods=plain)
    variants = tuple(f"second-choice@{number}" for number in range(9))
    (seed,) = run.seeds
    curves = {**seed.curves, **dict.fromkeys(variants, seed.curves["second-choice"])}
    config = replace(run.config, methods=(plain[0], *variants, *plain[1:]))
    many = replace(run, config=config, seeds=(replace(seed, curves=curves),))
    (plot,) = (plot for plot in make_plots([many]) if "methods" in plot.slug)
    (panel,) = plot.panels
    assert isinstance(panel, ScatterPanel)
    shown = [f"Second choice ({number})" for number in range(7)]
    labels = [mark.label for mark in panel.marks]
    assert labels == ["Second choice", *shown, "Fine-tuned", "Weight negation"]
    assert plot.caption.startswith("Every method but some variants, which the table has, after")
    assert make_plots([run])[-1].caption.startswith("Every method after 2 rounds of post-training")
    assert make_plots([run], PAPER)[-1].caption.startswith("Every method after its first round of")


def test_the_caption_of_rounds_names_what_stands_beside_the_erased_model(make_run: Make) -> None:
    def caption(*methods: str) -> str:
        run = make_run(seeds=(0,), rounds=3, post_rounds=2, methods=methods)
        return next(plot.caption for plot in make_plots([run]) if "rounds-n5" in plot.slug)

    assert "erased model, rounds of" in caption("projected-ascent", "weight-negation")
    others = caption("second-choice", "fine-tune", "projected-ascent")
    assert "and, beside it, for fine-tuning FedAvg's model and projected ascent, rounds" in others


def test_the_caption_of_methods_says_what_is_shaded(make_run: Make) -> None:
    found = {
        scenario: make_plots([make_run(scenario=scenario, seeds=(0,), rounds=3, post_rounds=2)])[-1]
        for scenario in ("backdoor", "flipped", "clean")
    }
    assert "to which less than retraining's belongs" in found["backdoor"].caption
    assert "shaded is what counts as forgotten." in found["flipped"].caption
    assert "its loss decides" in found["clean"].caption
    assert "logarithmic" in found["flipped"].caption
    assert "logarithmic" not in found["clean"].caption


def test_canaries_are_drawn_below_the_probe_if_every_run_has_them(make_run: Make) -> None:
    def said(seed: int, arm: str, round: int) -> dict[str, Any]:
        return {"ranks": [[round % 2, 1]], "wins": round % 2}

    planted = make_run(canaries=said)
    with_them = next(p for p in make_plots([planted]) if p.slug == "backdoor-rounds-n5")
    shown = [row[0].value_label for row in with_them.rows]
    assert shown == ["clean accuracy", "attack success", "mean rank of canaries"]
    assert "with ten labels 5.5" in with_them.caption
    erased = with_them.rows[2][0]
    assert isinstance(erased, LinePanel)
    assert [value.mean for value in erased.lines[-1].values[:3]] == [2, 1.5, 2]
    others = make_plots([planted, make_run(data="emnist47")])
    without = next(p for p in others if p.slug == "backdoor-rounds-n5")
    assert len(without.rows) == 2
