from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from secede import state as states
from secede.errors import ConfigError, RecordError, StorageError
from secede.federation.engine import Update
from secede.state import State
from secede.unlearning.update_history import UpdateHistory

KILO = 1000


def one(value: float) -> State:
    return {"w": torch.tensor([float(value)])}


def teach(history: UpdateHistory, first: int, last: int, *, start: float = 0.0) -> float:
    """Keep rounds in which client 0 (1 sample) adds 4 and client 1 (3 samples) takes 4 away."""
    before = start
    for number in range(first, last + 1):
        updates = [Update(0, one(before + 4), 1), Update(1, one(before - 4), 3)]
        history.record(number, one(before), updates)
        before += 4 * 0.25 - 4 * 0.75
    return before


def checkpoint(history: UpdateHistory) -> None:
    """Do what training does around its own checkpoint."""
    history.save_sums(history.sums)
    history.delete_other_sums(history.sums.round)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("interval", "expected"), [(1, (1, 2, 3, 4, 5)), (2, (1, 3, 5)), (3, (1, 4)), (9, (1,))]
)
def test_round_one_and_every_interval_after_it_are_kept(
    tmp_path: Path, interval: int, expected: tuple[int, ...]
) -> None:
    history = UpdateHistory(tmp_path, interval=interval)
    teach(history, 1, 5)
    assert history.rounds == expected


def test_a_kept_round_holds_the_state_before_it_and_the_clients_updates(tmp_path: Path) -> None:
    history = UpdateHistory(tmp_path, interval=2)
    teach(history, 1, 3, start=10.0)
    kept = history.round(3)
    assert kept.before["w"].item() == 6.0  # 10 - 2 - 2
    assert {client: update["w"].item() for client, update in kept.updates.items()} == {0: 4, 1: -4}
    assert kept.weights == {0: 0.25, 1: 0.75}
    assert history.round(1).before["w"].item() == 10.0


def test_sums_are_weighted_and_run_over_all_rounds_kept_or_not(tmp_path: Path) -> None:
    history = UpdateHistory(tmp_path, interval=4)
    end = teach(history, 1, 3)
    # Client 0: 3 rounds of 4 / 4; client 1: 3 rounds of -4 * 3 / 4.
    assert history.update_sum(0)["w"].item() == 3.0
    assert history.update_sum(1)["w"].item() == -9.0
    assert end == 3.0 - 9.0  # together they are all that training did


def test_gaps_match_the_hand_sum(tmp_path: Path) -> None:
    # Updates 4 and -4 weigh 1/4 and 3/4: their mean is -2. Without client 0 it is -4, 2 away;
    # without client 1 it is 4, 6 away.
    history = UpdateHistory(tmp_path, interval=4)
    teach(history, 1, 2)
    assert history.gaps(0) == (2.0, 2.0)
    assert history.gaps(1) == (6.0, 6.0)
    assert history.gaps(2) == (None, None)


def test_a_client_alone_in_a_round_has_an_infinite_gap(tmp_path: Path) -> None:
    history = UpdateHistory(tmp_path)
    history.record(1, one(0), [Update(0, one(1), 1)])
    checkpoint(history)
    assert UpdateHistory(tmp_path).gaps(0) == (math.inf,)


def test_gaps_are_read_from_the_disk_and_go_on_after_a_kill(tmp_path: Path) -> None:
    history = UpdateHistory(tmp_path)
    end = teach(history, 1, 2)
    checkpoint(history)
    resumed = UpdateHistory(tmp_path)
    assert resumed.gaps(1) == (6.0, 6.0)
    resumed = UpdateHistory(tmp_path)
    teach(resumed, 3, 3, start=end)
    assert resumed.gaps(1) == (6.0, 6.0, 6.0)


def test_without_gaps_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="how far each client moved the mean"):
        UpdateHistory(tmp_path).gaps(0)
    states.save({"0/w": torch.ones(1)}, tmp_path / "sums-00002.safetensors")  # of an older version
    older = UpdateHistory(tmp_path)
    assert older.update_sum(0)["w"].item() == 1
    with pytest.raises(RecordError, match="an older version recorded it"):
        older.gaps(0)


def test_the_global_model_before_a_round_is_the_latest_recorded_one(tmp_path: Path) -> None:
    history = UpdateHistory(tmp_path, interval=2)
    with pytest.raises(RecordError, match="holds no global model"):
        history.before(3)
    teach(history, 1, 4, start=10.0)  # each round takes 2 away
    found = {last: history.before(last) for last in (1, 2, 3, 9)}
    assert {last: (number, state["w"].item()) for last, (number, state) in found.items()} == {
        1: (1, 10.0),
        2: (1, 10.0),
        3: (3, 6.0),
        9: (3, 6.0),
    }


def test_a_round_kept_twice_is_kept_once(tmp_path: Path) -> None:
    history = UpdateHistory(tmp_path)
    teach(history, 1, 2)
    checkpoint(history)
    teach(history, 3, 3, start=-4.0)
    before, summed = files(tmp_path), history.update_sum(0)["w"].item()
    teach(history, 3, 3, start=-4.0)
    assert files(tmp_path) == before
    assert history.update_sum(0)["w"].item() == summed == 3.0


def test_a_round_costs_one_file_where_due_and_the_sums_cost_none(tmp_path: Path) -> None:
    history = UpdateHistory(tmp_path, interval=2)
    teach(history, 1, 4)
    assert sorted(files(tmp_path)) == ["updates-00001.safetensors", "updates-00003.safetensors"]
    kept = history.sums
    teach(history, 5, 5, start=-8.0)
    history.save_sums(kept)  # a thread behind writes the sums as they were
    assert UpdateHistory(tmp_path).update_sum(1)["w"].item() == -12.0
    assert history.update_sum(1)["w"].item() == -15.0


def test_a_kept_round_is_written_by_whoever_is_told_to(tmp_path: Path) -> None:
    later, jobs = UpdateHistory(tmp_path / "later", interval=1), list[Callable[[], None]]()
    later.submit = jobs.append
    teach(later, 1, 2)
    assert not (tmp_path / "later").exists()
    for job in jobs:
        job()
    teach(UpdateHistory(tmp_path / "at-once", interval=1), 1, 2)
    assert files(tmp_path / "later") == files(tmp_path / "at-once")
    assert later.rounds == (1, 2)


def test_a_killed_training_goes_on_from_what_was_settled_to_the_same_bytes(tmp_path: Path) -> None:
    through, killed = UpdateHistory(tmp_path / "through"), UpdateHistory(tmp_path / "killed")
    teach(through, 1, 6)
    checkpoint(through)
    teach(killed, 1, 2)
    checkpoint(killed)
    teach(killed, 3, 4, start=-4.0)
    killed.save_sums(killed.sums)  # but the checkpoint did not come: rounds 3 and 4 come again
    again = UpdateHistory(tmp_path / "killed")
    teach(again, 3, 3, start=-4.0)
    assert len(list((tmp_path / "killed").glob("sums-*"))) == 1
    teach(again, 4, 6, start=-6.0)
    checkpoint(again)
    assert files(tmp_path / "killed") == files(tmp_path / "through")


def test_a_training_killed_before_its_first_checkpoint_leaves_no_sums_behind(
    tmp_path: Path,
) -> None:
    killed = UpdateHistory(tmp_path)
    teach(killed, 1, 4)
    killed.save_sums(killed.sums)
    again = UpdateHistory(tmp_path)
    teach(again, 1, 3)
    checkpoint(again)
    assert [path.name for path in tmp_path.glob("sums-*")] == ["sums-00003.safetensors"]


def test_settling_leaves_the_sums_it_names_and_every_kept_round(tmp_path: Path) -> None:
    history = UpdateHistory(tmp_path, interval=1)
    for number in range(1, 5):
        teach(history, number, number)
        history.save_sums(history.sums)
    history.delete_other_sums(3)
    assert [path.name for path in tmp_path.glob("sums-*")] == ["sums-00003.safetensors"]
    assert history.rounds == (1, 2, 3, 4)
    assert history.update_sum(0)["w"].item() == 4.0
    assert UpdateHistory(tmp_path, interval=1).update_sum(0)["w"].item() == 3.0


def test_going_on_without_the_round_before_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    history = UpdateHistory(tmp_path, interval=1)
    teach(history, 1, 2)
    with pytest.raises(RecordError, match=r"lacks the sums after round 4.*train again"):
        teach(history, 5, 5)
    assert history.rounds == (1, 2)


def test_a_client_that_missed_rounds_keeps_its_sum_and_is_in_no_such_round(tmp_path: Path) -> None:
    history = UpdateHistory(tmp_path, interval=1)
    history.record(1, one(0), [Update(0, one(2), 5), Update(1, one(4), 5)])
    history.record(2, one(3), [Update(1, one(7), 5)])  # alone, so with weight 1
    history.record(3, one(7), [Update(0, one(9), 5), Update(2, one(7), 15)])
    assert set(history.round(2).updates) == {1}
    assert history.round(2).weights == {1: 1.0}
    assert history.update_sum(0)["w"].item() == 2 / 2 + 2 / 4
    assert history.update_sum(1)["w"].item() == 4 / 2 + 4
    assert history.update_sum(2)["w"].item() == 0.0
    with pytest.raises(RecordError, match="holds no update of client 3"):
        history.update_sum(3)


def test_integer_buffers_are_neither_scaled_nor_summed(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = states.of(model)
    history = UpdateHistory(tmp_path, interval=1)
    for number in (1, 2):
        model.train()
        model(torch.randn(4, 2, generator=torch.Generator().manual_seed(number)))
        history.record(number, before, [Update(0, states.of(model), 3), Update(1, before, 1)])
    counter = "1.num_batches_tracked"
    assert history.round(2).updates[0][counter].item() == 2
    total = history.update_sum(0)
    assert total[counter].dtype == torch.int64
    states.check_schema(total, before)
    mean = history.round(1).updates[0]["1.running_mean"]
    mean = mean + history.round(2).updates[0]["1.running_mean"]
    torch.testing.assert_close(total["1.running_mean"], 0.75 * mean)


@pytest.mark.parametrize(
    ("interval", "rounds", "kilobytes"),
    # 1 kB a state, 4 clients: 5 kB for each kept round, and twice 4 kB of sums.
    [(1, 10, 58), (2, 10, 33), (2, 9, 33), (3, 9, 23), (20, 10, 13)],
)
def test_the_limit_is_checked_to_the_byte(
    tmp_path: Path, interval: int, rounds: int, kilobytes: int
) -> None:
    fits = UpdateHistory(tmp_path, interval=interval, limit_bytes=kilobytes * KILO)
    fits.check_fits(state_bytes=KILO, clients=4, rounds=rounds)
    tight = UpdateHistory(tmp_path, interval=interval, limit_bytes=kilobytes * KILO - 1)
    with pytest.raises(ConfigError, match=r"the history would take .* situation\.history_limit_gb"):
        tight.check_fits(state_bytes=KILO, clients=4, rounds=rounds)


def test_what_is_kept_takes_no_more_than_was_checked(tmp_path: Path) -> None:
    state = {"w": torch.zeros(5000)}
    history = UpdateHistory(tmp_path, interval=2)
    for number in range(1, 6):
        history.record(number, state, [Update(client, state, 1) for client in range(3)])
        checkpoint(history)
    checked = (3 * 4 + 2 * 3) * states.size_bytes(state)
    assert 0 < history.size_bytes <= checked


@pytest.mark.parametrize("content", [b"", b"\x80\x04evil", None], ids=["empty", "alien", "cut"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    history = UpdateHistory(tmp_path, interval=1)
    teach(history, 1, 2)
    history.save_sums(history.sums)
    for name in ("updates-00002.safetensors", "sums-00002.safetensors"):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:-3] if content is None else content)
    with pytest.raises(RecordError, match=r"history is damaged: .*updates-00002.*train again"):
        history.round(2)
    with pytest.raises(RecordError, match=r"history is damaged: .*sums-00002.*train again"):
        UpdateHistory(tmp_path, interval=1).update_sum(0)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    states.save(one(1), tmp_path / "updates-00001.safetensors")
    with pytest.raises(RecordError, match="holds no round of a history"):
        UpdateHistory(tmp_path).round(1)
    states.save(one(1), tmp_path / "updates-last.safetensors")
    with pytest.raises(RecordError, match="is no file of a history"):
        _ = UpdateHistory(tmp_path).rounds
    states.save({"x/w": torch.zeros(1)}, tmp_path / "sums-00001.safetensors")
    with pytest.raises(RecordError, match="holds no sums of a history"):
        UpdateHistory(tmp_path).update_sum(0)


def test_a_round_that_was_not_kept_is_refused(tmp_path: Path) -> None:
    history = UpdateHistory(tmp_path, interval=2)
    teach(history, 1, 3)
    with pytest.raises(RecordError, match="lacks round 2"):
        history.round(2)


def test_another_interval_and_missing_rounds_are_noticed(tmp_path: Path) -> None:
    teach(UpdateHistory(tmp_path, interval=2), 1, 5)
    with pytest.raises(RecordError, match="holds rounds 1, 3, 5, expected round 1 and every 4"):
        _ = UpdateHistory(tmp_path, interval=4).rounds
    (tmp_path / "updates-00001.safetensors").unlink()
    with pytest.raises(RecordError, match="holds rounds 3, 5"):
        _ = UpdateHistory(tmp_path, interval=2).rounds


def test_deleting_leaves_nothing_not_even_half_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    history = UpdateHistory(folder)
    teach(history, 1, 3)
    (folder / ".sums-00004.safetensors.0a1b2c3d.part").touch()
    history.delete()
    assert not folder.exists()
    history.delete()
    assert (history.rounds, history.size_bytes) == ((), 0)
    with pytest.raises(RecordError, match="holds no update of client 0"):
        history.update_sum(0)


def test_deleting_spares_what_is_not_a_histories(tmp_path: Path) -> None:
    history = UpdateHistory(tmp_path)
    teach(history, 1, 1)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(StorageError, match="cannot delete the history"):
        history.delete()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_impossible_interval_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="interval is 0, expected 1 or more"):
        UpdateHistory(tmp_path, interval=0)
