from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from secede.seeding import derive, generator, seeded


def test_a_name_gives_the_same_numbers_whatever_was_drawn_before() -> None:
    first = torch.rand(3, generator=generator(7, "batches", 1, 2))
    torch.rand(100, generator=generator(7, "something", "else"))
    assert torch.equal(first, torch.rand(3, generator=generator(7, "batches", 1, 2)))


@given(st.integers(0, 10**6), st.lists(st.integers(0, 99), min_size=2, max_size=2, unique=True))
def test_different_names_and_seeds_give_different_seeds(seed: int, names: list[int]) -> None:
    a, b = names
    assert len({derive(seed, a), derive(seed, b), derive(seed + 1, a), derive(seed, a, b)}) == 4


def test_the_global_generator_is_restored() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with seeded(0, "noise"):
        inside = torch.rand(2)
    assert torch.equal(torch.rand(2), expected)
    with seeded(0, "noise"):
        assert torch.equal(torch.rand(2), inside)
