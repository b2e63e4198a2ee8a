from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg, FedProx

from harness.flower.small import SIZES, Federation, initial, load_model, simulator, strategy
from harness.paths import ROOT
from secede import state as states
from secede.errors import ConfigError, GuardError, RecordError, SilentError
from secede.federation.engine import aggregate
from secede.flower import Store, recording
from secede.flower.client.kept_updates import KeptUpdates


def simulated(rounds: int) -> states.State:
    engine, state = simulator(), initial()
    for number in range(1, rounds + 1):
        reply = engine.train_round(state, range(len(SIZES)), phase="training", number=number)
        state = aggregate(reply.updates)
    return state


def test_training_agrees_with_the_simulator_to_a_millionth(federation: Federation) -> None:
    # To 1e-6 and not to the bit: Flower sums the mean in NumPy, the simulator in torch. Through
    # the engine, which averages as the simulator does, they agree on the digest (test_contract).
    federation.train(3)
    found, expected = federation.store.last_model(), simulated(3)
    assert found is not None
    largest = max(float((found[n] - expected[n]).abs().max()) for n in expected)
    assert largest < 1e-6


def test_each_round_tells_who_contributed_with_which_weight_and_digest(
    federation: Federation,
) -> None:
    federation.train(2)
    rounds = federation.store.log.rounds()
    assert [r.number for r in rounds] == [1, 2]
    assert rounds[1].start == rounds[0].model
    assert rounds[1].model == states.digest(federation.store.last_model() or {})
    assert {c.client: c.weight for c in rounds[1].clients} == {
        f"site-{n}": size for n, size in enumerate(SIZES)
    }
    assert rounds[1].config == {"lr": 0.1}
    for n, size in enumerate(SIZES):
        updates = KeptUpdates(federation.folder / f"disk-{n}" / f"partition-{n}")
        kept = updates.all()
        assert len(kept) == 2
        assert (kept[0].round, kept[0].samples, kept[0].run) == (2, size, "1")
        told = [{c.client: c.digest for c in r.clients}[f"site-{n}"] for r in rounds]
        newest = updates.newest(federation.store.identity)
        assert told == [kept[1].digest, states.digest(newest or {})]


def test_the_server_keeps_models_and_never_an_update(federation: Federation) -> None:
    federation.train(4)
    rounds = federation.store.log.rounds()
    here = {path.stem for path in (federation.folder / "home" / "models").iterdir()}
    assert here == {rounds[-1].model, rounds[-2].model}
    updates = {c.digest for r in rounds for c in r.clients}
    assert not here & updates
    for path in (federation.folder / "home").rglob("*"):
        if path.is_file() and path.stem != "server":  # its pair of keys, after which it is called
            assert path.suffix in (".json", ".jsonl", ".safetensors", ".sqlite", ".lock"), path


def test_who_fails_or_drops_out_is_not_in_the_mean(federation: Federation) -> None:
    federation.site("site-2").vanishes = True
    federation.train(1)
    last = federation.store.last_round()
    assert last is not None
    assert {c.client for c in last.clients} == {"site-0", "site-1", "site-3"}
    assert last.share("site-2") == 0
    assert last.share("site-1") == pytest.approx(90 / 195)


REFUSED: list[tuple[str, Any]] = [
    ("FedAdam", lambda: strategies.FedAdam()),
    ("FedAdagrad", lambda: strategies.FedAdagrad()),
    ("FedYogi", lambda: strategies.FedYogi()),
    ("FedAvgM", lambda: strategies.FedAvgM()),
    ("FedMedian", lambda: strategies.FedMedian()),
    ("FedTrimmedAvg", lambda: strategies.FedTrimmedAvg()),
    ("Krum", lambda: strategies.Krum()),
    ("MultiKrum", lambda: strategies.MultiKrum()),
    ("Bulyan", lambda: strategies.Bulyan()),
    ("QFedAvg", lambda: strategies.QFedAvg(client_learning_rate=0.1)),
    (
        "DifferentialPrivacyServerSideFixedClipping",
        lambda: strategies.DifferentialPrivacyServerSideFixedClipping(strategy(), 0.1, 1.0, 4),
    ),
    (
        "DifferentialPrivacyClientSideFixedClipping",
        lambda: strategies.DifferentialPrivacyClientSideFixedClipping(strategy(), 0.1, 1.0, 4),
    ),
]


@pytest.mark.parametrize(("name", "make"), REFUSED, ids=[name for name, _ in REFUSED])
def test_what_is_no_weighted_mean_is_refused_by_name(
    federation: Federation, name: str, make: Any
) -> None:
    with pytest.raises(ConfigError, match=rf"'{name}' cannot be erased from.*FedAvg or FedProx"):
        recording(make(), federation.store)


def test_fedavg_fedprox_and_ones_own_that_only_look_on_are_taken(federation: Federation) -> None:
    class Saving(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return super().aggregate_train(server_round, replies)

    for found in (strategy(), FedProx(proximal_mu=0.1), Saving(fraction_evaluate=0.0)):
        recording(found, federation.store)
    recording(Saving(fraction_evaluate=0.0), federation.store).start(
        federation.grid(), ArrayRecord(initial()), num_rounds=1, timeout=5
    )
    assert federation.store.last_round() is not None


def test_ones_own_that_changes_the_mean_is_found_out(federation: Federation) -> None:
    class Shifting(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            assert arrays is not None
            moved = {n: v * 1.01 for n, v in arrays.to_torch_state_dict().items()}
            return ArrayRecord(moved), metrics

    with pytest.raises(ConfigError, match="'Shifting' changes the weighted mean"):
        recording(Shifting(fraction_evaluate=0.0), federation.store).start(
            federation.grid(), ArrayRecord(initial()), num_rounds=1, timeout=5
        )
    assert federation.store.last_round() is None


def test_another_network_than_load_models_is_refused(federation: Federation) -> None:
    other = {f"x.{name}": value for name, value in initial().items()}
    with pytest.raises(GuardError, match=r"not those of load_model\(\): names differ"):
        federation.recording().start(federation.grid(), ArrayRecord(other), num_rounds=1)


def test_waiting_for_clients_ends_and_is_announced(federation: Federation) -> None:
    for site in federation.sites[1:]:
        site.online = False
    with pytest.raises(SilentError, match=r"too few clients came within 0.3 seconds: 1 are online"):
        federation.train(1)


def test_a_start_that_was_cut_short_goes_on_after_its_last_round(federation: Federation) -> None:
    def die(message: Message) -> None:
        if message.content["config"]["server-round"] == 3:
            raise KeyboardInterrupt

    grid = federation.grid()
    grid.before = die
    with pytest.raises(KeyboardInterrupt):
        federation.train(5, grid=grid)
    unfinished = federation.store.trainings.unfinished()
    assert unfinished is not None
    assert unfinished[1] == 2
    federation.train(5)
    assert federation.told.has("goes on after round 2 of 5")
    assert [r.number for r in federation.store.log.rounds()] == [1, 2, 3, 4, 5]
    assert federation.store.trainings.unfinished() is None
    whole = Federation(federation.folder / "whole")
    whole.train(5)
    last, other = federation.store.last_round(), whole.store.last_round()
    assert last is not None
    assert other is not None
    assert last.model == other.model  # the same bits as if nothing had happened


def test_a_finished_training_is_followed_by_a_new_one(federation: Federation) -> None:
    federation.train(2)
    federation.train(2)
    rounds = federation.store.log.rounds()
    assert [(r.number, r.training) for r in rounds] == [(1, 0), (2, 0), (3, 1), (4, 1)]
    assert rounds[2].start == rounds[1].model


def test_two_servers_do_not_train_into_one_store(federation: Federation) -> None:
    store = federation.store
    with store.lock(), pytest.raises(RecordError, match="is in use by"), store.lock(0.05):
        pass


def test_a_line_that_a_kill_cut_off_is_no_round(federation: Federation) -> None:
    federation.train(2)
    path = federation.folder / "home" / "rounds.jsonl"
    path.write_bytes(path.read_bytes() + b'{"number": 3, "cli')
    assert len(federation.store.log.rounds()) == 2
    federation.train(1)
    assert [r.number for r in federation.store.log.rounds()] == [1, 2, 3]


def test_the_last_round_is_found_without_reading_the_others(federation: Federation) -> None:
    federation.train(3)
    log = federation.store.log
    path = federation.folder / "home" / "rounds.jsonl"
    whole = path.read_bytes()
    assert log.last() == log.rounds()[-1]
    path.write_bytes(200 * whole + b'{"number": 4, "cli')  # longer than what is looked at first
    assert len(path.read_bytes()) > 1 << 17
    assert log.last() == log.rounds()[-1]
    path.write_bytes(b"{}\n" + whole)
    assert log.last() is not None  # it does not look at the damaged one
    path.write_bytes(b'{"number": 1, "cli')
    assert log.last() is None
    path.write_bytes(b"")
    assert log.last() is None


def test_a_model_is_hashed_once_and_one_that_changed_anew(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = list[str]()
    real = states.digest

    def counted(state: states.State) -> str:
        hashed.append(real(state))
        return hashed[-1]

    monkeypatch.setattr(states, "digest", counted)
    federation.train(3)
    rounds = federation.store.log.rounds()
    for completed in rounds:
        assert hashed.count(completed.model) == 1
    for each in rounds[-1].clients:
        assert hashed.count(str(each.digest)) == 1  # at the server, which tells the client

    def changed(number: int, record: ArrayRecord) -> None:
        record["0.bias"] = Array(record["0.bias"].numpy() + number)

    federation.recording().start(
        federation.grid(), ArrayRecord(initial()), num_rounds=2, timeout=5, evaluate_fn=changed
    )
    *_, before, after = federation.store.log.rounds()
    assert after.start != before.model  # the clients did not start from it
    assert after.start in hashed


def test_a_damaged_log_is_named(federation: Federation) -> None:
    federation.train(1)
    path = federation.folder / "home" / "rounds.jsonl"
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(RecordError, match=r"rounds.jsonl: damaged"):
        federation.store.log.rounds()


@pytest.mark.slow
@pytest.mark.parametrize("kills", [(0.0, 0.05, 0.2), (0.01, 0.1, 0.4)])
def test_killed_at_any_time_training_ends_with_the_same_model(
    tmp_path: Path, kills: tuple[float, ...]
) -> None:
    whole = Federation(tmp_path / "whole")
    whole.train(6)
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "harness.flower.training", str(folder), "6"]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    for seconds in kills:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "begin\n"  # imports are over
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.wait(60)
    subprocess.run(command, env=environment, check=True, timeout=120, capture_output=True)
    store = Store(folder / "home", load_model, name="north")
    last, other = store.last_round(), whole.store.last_round()
    assert last is not None
    assert other is not None
    assert last.model == other.model
    assert len(store.log.rounds()) == 6
    assert json.loads((folder / "home" / "training.json").read_text())["finished"]
