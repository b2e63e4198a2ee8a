from itertools import combinations

from secede.reports.figures.scatter import (
    MARK_SPACING,
    Box,
    label_box,
    label_offset,
    shifts,
)

FRAME = (400.0, 200.0)


def test_boxes_know_what_they_share_and_how_far_they_stick_out() -> None:
    box = Box(0, 0, 10, 4)
    assert box.overlap(Box(8, 1, 20, 9)) == 2 * 3
    assert box.overlap(Box(10, 0, 20, 4)) == 0
    assert box.shifted(395).overhang(FRAME) == 5
    assert box.overhang(FRAME) == 0


def test_columns_at_one_place_move_apart_and_free_ones_stay() -> None:
    here = Box(-MARK_SPACING / 2, 0, MARK_SPACING / 2, 30)
    above = Box(-MARK_SPACING / 2, 40, MARK_SPACING / 2, 60)
    assert shifts([here, here, here, above]) == [0, MARK_SPACING, -MARK_SPACING, 0]


def test_a_name_stands_right_of_its_mark_if_nothing_is_there() -> None:
    assert label_offset((100, 100), 60, [], FRAME) == (8, 0)


def test_a_name_stays_inside_the_frame() -> None:
    begins = label_offset((395, 100), 60, [], FRAME)
    assert label_box((395, 100), 60, begins).overhang(FRAME) == 0


def test_names_of_one_mark_do_not_cover_each_other() -> None:
    place, taken = (200.0, 100.0), [Box(195, 95, 205, 105)]
    for _ in range(10):
        taken.append(label_box(place, 60, label_offset(place, 60, taken, FRAME)))
    assert all(one.overlap(other) == 0 for one, other in combinations(taken, 2))
