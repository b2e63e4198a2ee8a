from __future__ import annotations

import pytest

from secede.errors import did_you_mean

NAMES = ("site-0", "site-1", "clinic-north", "mnist-10k", "emnist47")


@pytest.mark.parametrize(
    ("found", "hint"),
    [
        ("clinic-nort", "clinic-north"),
        ("Clinic_North", "clinic-north"),
        ("sit-0", "site-0"),
        ("mnist10k", "mnist-10k"),
        ("site-9", None),  # another client's name, and no slip
        ("site-10", None),
        ("nobody", None),
        ("clinic", None),
    ],
)
def test_a_name_is_suggested_only_where_it_is_near(found: str, hint: str | None) -> None:
    expected = "" if hint is None else f"did you mean {hint!r}? "
    assert did_you_mean(found, NAMES) == expected
