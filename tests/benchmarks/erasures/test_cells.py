from __future__ import annotations

import torch

from benchmarks.erasures.cells import LEAVER, Cell, cells, deal, federation


def cell(scenario: str = "clean", share: float = 0.2) -> Cell:
    return Cell(data="digits", network="mlp", scenario=scenario, share=share, seed=0)


def test_every_combination_is_one_cell_with_a_name_of_its_own() -> None:
    every = list(cells(["digits"], ["mlp"], ["clean", "flipped"], [0.2, 0.4], [0, 1]))
    assert len({each.name for each in every}) == len(every) == 8
    assert every[0].name == "digits-mlp-clean-0.2-0"


def test_the_leaver_has_its_share_and_all_of_its_own_classes() -> None:
    labels = torch.arange(100) % 10
    leaver, *others = deal(labels, cell(share=0.3), 80, [8, 9])
    assert (len(leaver), sum(map(len, others))) == (24, 56)
    assert len(torch.cat([leaver, *others]).unique()) == 80
    assert int(torch.isin(labels[leaver], torch.tensor([8, 9])).sum()) == 20
    assert not any(torch.isin(labels[part], torch.tensor([8, 9])).any() for part in others)


def test_what_does_not_fit_into_a_light_leavers_share_is_left_out() -> None:
    labels = torch.arange(100) % 10
    leaver, *others = deal(labels, cell(share=0.05), 80, [9])
    assert labels[leaver].tolist() == [9, 9, 9, 9]
    assert sum(map(len, others)) == 76
    assert not any((labels[part] == 9).any() for part in others)


def test_clean_accuracy_counts_no_class_of_the_leavers_own() -> None:
    made = federation(cell("exclusive"))
    assert sorted(made.test.y[~made.clean].unique().tolist()) == [8, 9]
    assert len(made.engine.clients[LEAVER]) == len(made.own) + 3 * len(made.canaries or ())
