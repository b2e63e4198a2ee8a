from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from secede.data import partition
from secede.data.samples import Samples
from secede.errors import ConfigError
from secede.scenarios.classes import check_classes, deal_classes, draw_like, probe_classes
from secede.seeding import generator


def labels(count: int, classes: int = 10) -> Tensor:
    return torch.arange(count) % classes


def dealt(
    count: int = 100, clients: int = 5, leaver: int = 0, *, seed: int = 0, **how: Any
) -> tuple[Tensor, list[Tensor]]:
    y = labels(count)
    parts = partition.equal(count, clients, generator(seed, "partition"))
    how = {"classes": (8, 9), **how}
    return y, deal_classes(y, parts, leaver, generator(seed, "deal"), **how)


def sizes(parts: list[Tensor]) -> list[int]:
    return [len(part) for part in parts]


def test_the_leaver_alone_holds_the_classes_and_all_sizes_stay() -> None:
    # 100 images, ten of each class, 20 at each client: 20 images of 8 and 9 fill the leaver.
    y, parts = dealt(leaver=2)
    assert sizes(parts) == [20] * 5
    assert sorted(y[parts[2]].tolist()) == [8] * 10 + [9] * 10
    assert all(not torch.isin(y[parts[i]], torch.tensor([8, 9])).any() for i in (0, 1, 3, 4))


def test_a_leaver_with_room_keeps_some_of_its_other_images() -> None:
    y, parts = dealt(classes=(4,), clients=4)
    assert sizes(parts) == [25] * 4
    assert int((y[parts[0]] == 4).sum()) == 10
    assert len(y[parts[0]].unique()) > 1


def test_classes_larger_than_a_part_make_the_leaver_larger_and_the_others_equal() -> None:
    # 30 images of three classes, ten clients of ten: the leaver has 30, the nine others share 70.
    y, parts = dealt(clients=10, classes=(7, 8, 9))
    assert len(parts[0]) == 30
    assert set(sizes(parts[1:])) == {7, 8}
    assert set(y[parts[0]].tolist()) == {7, 8, 9}


def test_alone_the_leaver_holds_nothing_else() -> None:
    y, parts = dealt(clients=4, classes=(4,), alone=True)
    assert y[parts[0]].tolist() == [4] * 10
    assert sizes(parts) == [10, 30, 30, 30]


def test_the_others_keep_their_share_of_each_class() -> None:
    # At 1000 images the leaver's fifth has about 20 of each class; the others have the rest.
    y = labels(1000)
    parts = partition.equal(1000, 5, generator(0, "partition"))
    after = deal_classes(y, parts, 0, generator(0), classes=(8, 9), kept=0.1)
    for label in (8, 9):
        before = sum(int((y[part] == label).sum()) for part in parts[1:])
        assert sum(int((y[part] == label).sum()) for part in after[1:]) == round(0.1 * before)
    assert sizes(after) == sizes(parts)


def test_sizes_that_differ_stay_different() -> None:
    y = labels(100)
    parts = partition.by_sizes(100, [30, 10, 40], generator(0))
    after = deal_classes(y, parts, 0, generator(1), classes=(9,))
    assert sizes(after) == [30, 10, 40]
    held = torch.cat(after).sort().values
    assert torch.equal(held, torch.cat(parts).sort().values)  # the unused stay unused


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=4, max_size=120),
    st.integers(2, 6),
    st.sets(st.integers(0, 5), min_size=1, max_size=4),
    st.floats(0, 0.99),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_no_image_is_lost_or_doubled(
    found: list[int],
    clients: int,
    classes: set[int],
    kept: float,
    alone: bool,
    skewed: bool,
    seed: int,
) -> None:
    y = torch.tensor(found)
    clients = min(clients, len(y))
    draw = generator(seed)
    if skewed:  # sorted by label: some clients have a single class
        parts = list(y.argsort(stable=True).tensor_split(clients))
    else:
        parts = partition.equal(len(y), clients, draw)
    leaver, kept = seed % clients, 0.0 if alone else kept
    wanted = torch.tensor(sorted(classes))
    try:
        after = deal_classes(
            y, parts, leaver, draw, classes=sorted(classes), kept=kept, alone=alone
        )
    except ConfigError:
        return  # a class that nobody holds, or a client left with nothing
    assert torch.cat(after).sort().values.tolist() == list(range(len(y)))
    assert min(sizes(after)) >= 1
    if kept == 0:
        others = torch.cat([part for i, part in enumerate(after) if i != leaver])
        assert not torch.isin(y[others], wanted).any()
    if alone:
        assert torch.isin(y[after[leaver]], wanted).all()
    elif len(after[leaver]) > len(parts[leaver]):
        assert torch.isin(y[after[leaver]], wanted).all()  # it gave all it had
    else:
        assert sizes(after) == sizes(parts)


def test_the_same_generator_deals_the_same() -> None:
    one, same, other = (dealt(clients=4, classes=(4,), seed=seed)[1] for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not torch.equal(one[1], other[1])


def test_a_client_that_would_be_left_with_nothing_is_named() -> None:
    y = torch.tensor([0, 0, 1, 1])
    parts = [torch.tensor([0, 1]), torch.tensor([2, 3])]
    # The leaver has two zeros to give: enough for the client whose ones it takes.
    assert sizes(deal_classes(y, parts, 0, generator(0), classes=(1,))) == [2, 2]
    parts = [torch.tensor([0]), torch.tensor([1]), torch.tensor([2]), torch.tensor([3])]
    with pytest.raises(ConfigError, match=r"client 3 had images of the classes \[1\] only"):
        deal_classes(y, parts, 0, generator(0), classes=(1,))


def test_a_class_that_nobody_holds_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no image of class 12, which scenario\.classes names"):
        dealt(classes=(12,))


@pytest.mark.parametrize("classes", [(), (3, 3), (-1,)])
def test_classes_that_are_none_or_named_twice_are_refused(classes: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"scenario\.classes is .* each once"):
        check_classes(classes)


def test_drawn_places_have_the_mix_of_what_they_are_like() -> None:
    # Two thirds of label 0, one of 1; six zeros are there, so three ones go with them.
    y = torch.tensor([0] * 6 + [1] * 6 + [2] * 6)
    drawn = y[draw_like(y, torch.tensor([0, 0, 1]), generator(0))]
    assert torch.bincount(drawn, minlength=3).tolist() == [6, 3, 0]


def test_labels_that_are_not_there_cannot_be_drawn() -> None:
    y = torch.tensor([0, 0, 1])
    assert draw_like(y, torch.tensor([1, 7, 7]), generator(0)).tolist() == [2]
    assert len(draw_like(y, torch.tensor([7]), generator(0))) == 0


def test_the_probe_counts_classes_apart() -> None:
    test = Samples(torch.zeros(4, 2), torch.tensor([0, 1, 2, 1]))
    probe = probe_classes(test, (1,), "class_accuracy")
    assert probe.samples is test
    assert probe.measures["class_accuracy"].tolist() == [False, True, False, True]
    assert probe.measures["others_accuracy"].tolist() == [True, False, True, False]


@pytest.mark.parametrize(("classes", "what"), [((5,), "of these"), ((0, 1, 2), "of any other")])
def test_a_test_set_without_them_is_refused(classes: tuple[int, ...], what: str) -> None:
    test = Samples(torch.zeros(3, 2), torch.arange(3))
    with pytest.raises(ConfigError, match=f"no test image {what}"):
        probe_classes(test, classes, "class_accuracy")
