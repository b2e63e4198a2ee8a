from __future__ import annotations

import pytest
from scipy.stats import chisquare

from secede.canaries.coins import canary_secret, coin, generator, shuffled
from secede.errors import ConfigError

SECRET = canary_secret(bytes(32))


@pytest.mark.parametrize("sides", [2, 3, 9, 10])
def test_coins_are_uniform_over_salts(sides: int) -> None:
    counts = [0] * sides
    for number in range(4000):
        counts[coin(canary_secret(number.to_bytes(32)), sides, "drawn", 0)] += 1
    assert chisquare(counts).pvalue > 1e-3


def test_a_coin_depends_on_its_name_alone() -> None:
    assert [coin(SECRET, 1000, "drawn", n) for n in range(4)] == [415, 858, 567, 986]
    assert coin(SECRET, 1, "drawn") == 0


def test_words_that_would_favour_a_side_are_drawn_again() -> None:
    sides = (1 << 63) + 1  # nearly half of all words are rejected
    assert all(0 <= coin(SECRET, sides, "drawn", n) < sides for n in range(50))


def test_generators_and_orders_are_the_same_each_time() -> None:
    first, again = generator(SECRET, "input", 3), generator(SECRET, "input", 3)
    assert first.random(5).tolist() == again.random(5).tolist()
    assert sorted(shuffled(SECRET, 100, "order")) == list(range(100))
    assert shuffled(SECRET, 100, "order") != shuffled(SECRET, 100, "pool")


def test_a_salt_of_another_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="31 bytes, expected 32"):
        canary_secret(bytes(31))
    with pytest.raises(ConfigError, match="0 sides"):
        coin(SECRET, 0, "drawn")
