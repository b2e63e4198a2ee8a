from __future__ import annotations

import pytest
import torch

from secede import state as states
from secede.errors import ConfigError, StateError
from secede.federation.engine import Update, aggregate
from secede.federation.robust import MEANS, TrimmedMean, by_name, median


def updates(*values: list[float], dtype: torch.dtype = torch.float32) -> list[Update]:
    return [
        Update(i, {"w": torch.tensor(value, dtype=dtype), "n": torch.tensor(i)}, samples=10**i)
        for i, value in enumerate(values)
    ]


def test_the_trimmed_mean_matches_the_hand_sum() -> None:
    # First entry: 1 2 3 4 100, without 1 and 100: 9 / 3. Second: -50 0 0 6 9, without ends: 6 / 3.
    found = TrimmedMean()(updates([1, 0], [100, 9], [3, -50], [2, 0], [4, 6]))
    torch.testing.assert_close(found["w"], torch.tensor([3.0, 2.0]))
    assert int(found["n"]) == 2  # the middle of 0 to 4: the first one does not decide


def test_the_median_matches_the_hand_sum() -> None:
    # Odd: the middle of 1 3 100. Even: the mean of 2 and 3 in 1 2 3 100.
    torch.testing.assert_close(median(updates([1], [100], [3]))["w"], torch.tensor([3.0]))
    torch.testing.assert_close(median(updates([1], [100], [3], [2]))["w"], torch.tensor([2.5]))


def test_the_share_decides_how_many_are_left_out() -> None:
    ten = updates(*[[float(i)] for i in (0, 1, 2, 3, 4, 5, 6, 7, 800, 900)])
    # Two at each end: 2 to 7.
    torch.testing.assert_close(TrimmedMean(share=0.2)(ten)["w"], torch.tensor([4.5]))


@pytest.mark.parametrize("name", ["trimmed", "median"])
@pytest.mark.parametrize("evil", [1e30, -1e30, 0.0])
def test_one_client_in_five_cannot_leave_the_others_range(name: str, evil: float) -> None:
    honest = [torch.tensor([1.0, -2.0, 5.0]) + 0.1 * i for i in range(4)]
    sent = [Update(i, {"w": value}, 7) for i, value in enumerate(honest)]
    found = by_name(name)([*sent, Update(4, {"w": torch.full((3,), evil)}, 10**9)])["w"]
    assert bool((found >= honest[0]).all() and (found <= honest[-1]).all())


def test_equal_updates_have_themselves_as_mean() -> None:
    for mean in MEANS.values():
        assert states.digest({"w": mean(updates([1, 2], [1, 2], [1, 2]))["w"]}) == states.digest(
            {"w": torch.tensor([1.0, 2.0])}
        )


def test_half_precision_is_kept() -> None:
    assert median(updates([1], [2], [3], dtype=torch.bfloat16))["w"].dtype == torch.bfloat16


def test_a_broken_update_is_named() -> None:
    with pytest.raises(
        StateError, match=r"client 1's update: 'w' holds values that are not finite"
    ):
        median(updates([1], [float("nan")], [3]))


def test_two_updates_that_are_left_have_their_plain_mean() -> None:
    for mean in (TrimmedMean(), median):
        torch.testing.assert_close(mean(updates([1], [2]))["w"], torch.tensor([1.5]))


def test_too_few_updates_are_refused() -> None:
    for mean in (TrimmedMean(), median):
        with pytest.raises(ConfigError, match="no updates"):
            mean([])
    with pytest.raises(StateError, match="cannot cut 1 at each end of 2 states"):
        states.trimmed_mean([u.state for u in updates([1], [2])], 1)


def test_settings_and_names_are_checked() -> None:
    assert by_name("mean") is aggregate
    with pytest.raises(ConfigError, match="did you mean 'median'"):
        by_name("medain")
    with pytest.raises(ConfigError, match="share must be above 0 and below"):
        TrimmedMean(share=0.5)
