"""Fading inside a whole erasure: when it runs, what it tells, and what comes after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.erasure import small
from secede import state as states
from secede.erasure.defences import unused_weights
from secede.erasure.defences.guard import Guard
from secede.erasure.defences.unused_weights import find_layers
from secede.erasure.documents.plan import Margins
from secede.erasure.planning.options import EraseOptions
from secede.erasure.storage.home import Home
from secede.erasure.storage.transition_details import GuardReport, RoundDetails
from secede.erasure.workflow import post_training as rounds
from secede.erasure.workflow.measurement import CLEARED, KEPT, NOTHING_REMOVED, REMOVED, STAYED
from secede.simulation.backend import SimulatedBackend
from secede.state import State


@pytest.mark.parametrize(
    ("hidden", "mean", "shown"),
    [("false", "mean", 3), ("false", "median", 1), ("true", "mean", 1)],
)
def test_what_the_retained_clients_do_not_use_fades_in_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str, mean: Any, shown: int
) -> None:
    home = small.make(tmp_path, f"situation.secure_aggregation = {hidden}\n{small.DEEP}")
    seen: list[tuple[State, State, list[State]]] = []

    def spy(state: State, start: State, updates: list[State], **how: Any) -> unused_weights.Removal:
        seen.append((state, start, updates))
        return genuine(state, start, updates, **how)

    genuine = unused_weights.remove_unused_weights
    monkeypatch.setattr(unused_weights, "remove_unused_weights", spy)
    small.erase(home, small.receive(home).id, how=small.options(min_rounds=2, mean=mean))
    course = small.course(home)
    way = course.transitions
    ((after, start, updates),) = seen  # once, though there were two rounds
    (guarded,) = [t for t in way if t.state == "guarded"]
    assert states.digest(start) == guarded.details.ledger_model
    assert len(updates) == shown  # a robust mean believes nobody alone
    weights = find_layers(small.build_deep((8, 8), 3), 3).weights
    assert weights.keys() == {"1.weight"}
    expected = genuine(after, start, updates, trainable=after.keys(), weights=weights)
    none, first, second = course.rounds
    assert first.unused_weights is not None
    assert first.model == states.digest(expected.state) != states.digest(after)
    assert first.unused_weights.removed_share == expected.share > 0
    assert none.unused_weights is None
    assert second.unused_weights is None
    told = REMOVED.format(share=expected.share, count=expected.zeroed)
    assert told in small.told(home)["limits"]


@pytest.mark.parametrize(("rounds", "taken"), [(5, 2), (1, 1)])
def test_a_round_in_which_weights_faded_is_not_the_last(
    tmp_path: Path, rounds: int, taken: int
) -> None:
    home = small.make(tmp_path, small.DEEP)
    small.erase(home, small.receive(home).id, how=small.options(max_rounds=rounds, min_rounds=1))
    details = [t.details for t in small.course(home).transitions]
    done = [each for each in details if isinstance(each, RoundDetails)]
    assert [each.round for each in done][: taken + 1] == list(range(taken + 1))
    assert len(done) > taken
    assert (done[1].unused_weights is not None) == (
        rounds > 1
    )  # one round alone stays a plain mean


def test_an_erasure_that_is_cut_short_as_weights_fade_ends_with_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = small.make(tmp_path, small.DEEP)
    entry = small.receive(whole)
    cut = small.copy(whole, tmp_path / "cut")
    small.erase(whole, entry.id)

    def killed(*given: Any, **how: Any) -> unused_weights.Removal:
        genuine(*given, **how)
        raise KeyboardInterrupt

    genuine = unused_weights.remove_unused_weights
    monkeypatch.setattr(unused_weights, "remove_unused_weights", killed)
    with pytest.raises(KeyboardInterrupt):
        small.erase(cut, entry.id)
    monkeypatch.setattr(unused_weights, "remove_unused_weights", genuine)
    small.erase(cut, entry.id)
    assert small.serving(cut) == small.serving(whole)


@pytest.fixture
def deep(tmp_path: Path) -> Home:
    """A federation with a hidden layer, in which something can fade."""
    return small.make(tmp_path, small.DEEP)


def test_nothing_fades_if_the_leaver_is_trusted_and_the_receipt_says_so(
    deep: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> unused_weights.Removal:
        raise AssertionError("nothing was to fade")

    monkeypatch.setattr(unused_weights, "remove_unused_weights", never)
    small.erase(
        deep, small.receive(deep).id, how=small.options(keep_unused_weights=True, min_rounds=2)
    )
    told = small.told(deep)
    assert (told["method"]["rung"], told["method"]["rounds"]) == ("local-step", 2)
    assert told["method"]["settings"]["keep_unused_weights"] is True
    assert KEPT in told["limits"]
    assert "was kept as the leaver returned it, because --keep-unused-weights was set" in KEPT
    assert NOTHING_REMOVED not in told["limits"]
    assert all(done.unused_weights is None for done in small.course(deep).rounds)
    assert deep.load_plan(small.course(deep).plan).keep_unused_weights


def test_after_a_rung_without_the_leaver_values_that_nobody_moves_go_all_the_same(
    deep: Home,
) -> None:
    ground = SimulatedBackend(deep, gone=["site-0"])
    small.erase(
        deep, small.receive(deep).id, ground=ground, how=EraseOptions(keep_unused_weights=True)
    )
    details = [t.details for t in small.course(deep).transitions]
    done = [each for each in details if isinstance(each, RoundDetails)]
    assert done[1].unused_weights is not None
    assert KEPT not in small.told(deep)["limits"]


@pytest.mark.parametrize("how", ["kind", "size"])
def test_what_cannot_fade_is_told_and_named_in_the_receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    normed = small.DEEP.replace("small:build_deep", "small:build_normed")
    home = small.make(tmp_path, normed if how == "kind" else small.DEEP)
    if how == "size":
        monkeypatch.setattr(unused_weights, "_MAX_BYTES", 1000)
    lines = list[str]()
    small.erase(home, small.receive(home).id, tell=lines.append)
    names = {
        "kind": ["1.parametrizations.weight.original0", "1.parametrizations.weight.original1"],
        "size": ["1.weight"],
    }[how]
    (first,) = [done for done in small.course(home).rounds if done.unused_weights]
    assert first.unused_weights is not None
    assert (first.round, first.unused_weights.kept) == (1, tuple(names))
    assert first.scalars()["unused_kept"] == len(names)
    assert any(f", these could not be removed: {', '.join(names)}" in line for line in lines)
    told = STAYED.format(count=len(names)) + ", ".join(names) + "."
    assert told in small.told(home)["limits"]


def test_what_nobody_reaches_is_set_to_zero_in_a_layer_written_by_hand(tmp_path: Path) -> None:
    home = small.make(tmp_path, small.DEEP.replace("small:build_deep", "small:build_own"))
    assert small.model(home)["1.weight"][:, -1].all()
    lines = list[str]()
    small.erase(home, small.receive(home).id, tell=lines.append)
    assert not small.model(home)["1.weight"][:, -1].any()
    (first,) = [done for done in small.course(home).rounds if done.unused_weights]
    assert first.unused_weights is not None
    assert (first.unused_weights.cleared, first.scalars()["unused_cleared"]) == (("1.weight",), 1)
    assert first.unused_weights.zeroed >= 16
    assert first.unused_weights.kept_count == 0
    assert any(line.endswith(", these could not be removed: 1.weight") for line in lines)
    limits = small.told(home)["limits"]
    assert CLEARED.format(count=1) + "1.weight." in limits
    assert not any(limit.startswith(STAYED.format(count=1)) for limit in limits)


def test_the_erasure_after_a_faded_one_takes_the_mean_of_the_others_as_reference(
    deep: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "is_good_enough", lambda *_: True)  # it ends as soon as it may
    wide = small.options(margins=Margins(overall=0.9, per_class=0.99))
    small.erase(deep, small.receive(deep).id, how=wide)
    removed = [
        d.unused_weights.removed_share for d in small.course(deep).rounds if d.unused_weights
    ]
    assert any(removed)
    ground = SimulatedBackend(deep)
    seen = list[State]()
    genuine = Guard.check

    def spy(guard: Guard, state: State) -> tuple[State, GuardReport]:
        seen.append(guard._centre)
        return genuine(guard, state)

    monkeypatch.setattr(Guard, "check", spy)
    own = [ground.last_update(f"site-{n}") for n in (1, 2, 3)]
    assert all(one is not None for one in own)
    serving = small.model(deep)
    _, second, third = [one for one in own if one is not None]
    small.erase(deep, small.receive(deep, "site-1").id, ground=ground)
    (centre,) = seen
    expected = states.mean([second.state, third.state], [second.weight, third.weight])
    assert states.distance(centre, expected) < 1e-5 * states.distance(serving, expected)
