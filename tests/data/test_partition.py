from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from secede.data.partition import by_sizes, dirichlet, equal
from secede.errors import ConfigError, DataError, SecedeError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def all_of(parts: list[Tensor]) -> list[int]:
    return sorted(int(index) for part in parts for index in part)


def sizes_of(parts: list[Tensor]) -> list[int]:
    return [len(part) for part in parts]


LABELS = torch.arange(1000) % 10


@pytest.mark.parametrize(
    "deal",
    [
        lambda seeded: equal(1000, 3, seeded),
        lambda seeded: by_sizes(1000, [500, 300, 200], seeded),
        lambda seeded: dirichlet(LABELS, 3, 0.5, seeded),
    ],
    ids=["equal", "by_sizes", "dirichlet"],
)
def test_parts_are_disjoint_shuffled_and_seeded(
    deal: Callable[[torch.Generator], list[Tensor]],
) -> None:
    parts = deal(generator())
    assert all_of(parts) == list(range(1000))
    for part in parts:
        assert part.dtype == torch.int64
        assert part.tolist() != sorted(part.tolist())
    again, other = deal(generator()), deal(generator(1))
    assert all(torch.equal(one, two) for one, two in zip(parts, again, strict=True))
    assert not all(torch.equal(one, two) for one, two in zip(parts, other, strict=True))


def test_equal_parts_differ_by_one_at_most() -> None:
    assert sizes_of(equal(60, 5, generator())) == [12, 12, 12, 12, 12]
    assert sizes_of(equal(11, 4, generator())) == [3, 3, 3, 2]
    assert sizes_of(equal(3, 3, generator())) == [1, 1, 1]


def test_sizes_are_kept_and_the_rest_left_out() -> None:
    parts = by_sizes(10, [1, 4, 2], generator())
    assert sizes_of(parts) == [1, 4, 2]
    assert len(set(all_of(parts))) == 7
    assert all(0 <= index < 10 for index in all_of(parts))


def test_a_small_alpha_skews_the_labels_and_a_large_one_does_not() -> None:
    def largest_share(alpha: float) -> float:
        """Mean over clients of their most frequent label's share."""
        parts = dirichlet(LABELS, 5, alpha, generator())
        shares = [LABELS[part].bincount().max() / len(part) for part in parts]
        return float(torch.tensor(shares).mean())

    assert largest_share(0.1) > 0.35
    assert largest_share(1000) < 0.13


def test_every_client_gets_its_minimum() -> None:
    for seed in range(20):
        parts = dirichlet(LABELS, 5, 0.3, generator(seed), minimum=100)
        assert min(sizes_of(parts)) >= 100
        assert all_of(parts) == list(range(1000))


def test_the_minimum_is_what_rejects_a_draw() -> None:
    smallest = [min(sizes_of(dirichlet(LABELS, 5, 0.3, generator(seed)))) for seed in range(20)]
    assert min(smallest) < 100


@settings(deadline=None, max_examples=50)
@given(
    count=st.integers(1, 60),
    clients=st.integers(1, 6),
    alpha=st.sampled_from([0.5, 1.0, 100.0]),
    classes=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_dirichlet_uses_every_sample_once_or_refuses(
    count: int, clients: int, alpha: float, classes: int, seed: int
) -> None:
    labels = torch.arange(count) % classes
    try:
        parts = dirichlet(labels, clients, alpha, generator(seed))
    except DataError as error:
        assert "too few" in str(error) or "larger alpha" in str(error)  # noqa: PT017
        return
    assert len(parts) == clients
    assert min(sizes_of(parts)) >= 1
    assert all_of(parts) == list(range(count))


def test_an_impossible_skew_is_given_up_with_advice() -> None:
    # Two classes that each go nearly whole to one client cannot reach three clients.
    with pytest.raises(DataError, match=r"3 clients 1 samples or more of 100; use a larger alpha"):
        dirichlet(torch.arange(100) % 2, 3, 1e-6, generator())


@pytest.mark.parametrize(
    ("deal", "kind", "message"),
    [
        (lambda: equal(4, 5, generator()), DataError, "4 samples, too few for 5 clients"),
        (lambda: equal(4, 0, generator()), ConfigError, "0 clients"),
        (lambda: by_sizes(10, [6, 5], generator()), DataError, "ask for 11 samples, .* has 10"),
        (lambda: by_sizes(10, [6, 0], generator()), ConfigError, r"sizes are \[6, 0\]"),
        (lambda: by_sizes(10, [], generator()), ConfigError, r"sizes are \[\]"),
        (lambda: dirichlet(LABELS[:4], 5, 1.0, generator()), DataError, "4 samples, .* 5 clients"),
        (
            lambda: dirichlet(LABELS, 5, 1.0, generator(), minimum=201),
            DataError,
            "1,000 samples, too few for 5 clients with at least 201 each",
        ),
        (lambda: dirichlet(LABELS, 5, 0.0, generator()), ConfigError, r"alpha is 0\.0"),
        (lambda: dirichlet(LABELS, 5, float("nan"), generator()), ConfigError, "alpha is nan"),
        (lambda: dirichlet(LABELS, 5, float("inf"), generator()), ConfigError, "alpha is inf"),
        (lambda: dirichlet(LABELS, 5, 1, generator(), minimum=0), ConfigError, "0 samples"),
    ],
)
def test_what_cannot_be_dealt_is_told(
    deal: Callable[[], list[Tensor]], kind: type[SecedeError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        deal()
