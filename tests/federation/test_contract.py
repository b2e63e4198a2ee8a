"""What every engine promises; it runs on the simulator, Flower and NVFlare, which must agree.

Through the engine's two methods all agree on the digest: the same updates, the same answers.

Tests `federation/cost.py` and `federation/engine.py` too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from harness.flower.inprocess import InProcess, sites
from harness.flower.small import (
    CLASSES,
    SIZES,
    client_app,
    initial,
    load_model,
    simulator,
    strategy,
)
from harness.flower.unlimited import no_limits, unlimit
from harness.nvflare.needs import needs_nvflare
from secede import state as states
from secede.errors import ConfigError
from secede.federation.engine import ClientSide, Engine, aggregate
from secede.flower.protocol.arrays import template_of
from secede.flower.protocol.nodes import online_nodes
from secede.flower.rounds.engine import FlowerEngine
from secede.flower.rounds.grid import Transport
from secede.unlearning.client_tasks import LIVE, LOCAL, CountRight, Measure
from secede.unlearning.method import LocalStepMethod, Server, TakeStep
from secede.unlearning.methods.reference import Reference
from secede.unlearning.post_training_hold import FIRST_ROUND_SHARE, LIGHT_WEIGHT
from secede.unlearning.registry import create

EVERYONE = tuple(range(len(SIZES)))
Make = Callable[[], Engine]


def flower(folder: Path) -> FlowerEngine:
    app = client_app(limits=no_limits(), methods=LOCAL)
    grid = InProcess(sites(len(SIZES), folder), app)
    return FlowerEngine(
        transport=Transport(grid=grid, pause=0.01),
        strategy=strategy(),
        clients=dict(enumerate(online_nodes(grid))),
        template=template_of(load_model()),
        round_timeout=1.0,
        online_timeout=0.2,
    )


@pytest.fixture(scope="module")
def in_nvflare() -> Iterator[Make]:
    """One job in NVFlare's simulator for all tests: it takes long to start."""
    needs_nvflare()
    from harness.nvflare.remote import simulated

    with simulated() as make:
        yield make


NVFLARE = pytest.param("nvflare", marks=[pytest.mark.nvflare, pytest.mark.slow])


@pytest.fixture(params=["simulator", "flower", NVFLARE])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    number = iter(range(100))
    unlimit(monkeypatch)
    if request.param == "simulator":
        return simulator
    if request.param == "nvflare":
        return cast("Make", request.getfixturevalue("in_nvflare"))
    return lambda: flower(tmp_path / str(next(number)))


def step(name: str, **settings: Any) -> TakeStep:
    method: Any = create(name, settings)[1]
    return TakeStep(method)


def trained(engine: Engine, rounds: int = 2) -> states.State:
    state: states.State = initial()
    for number in range(1, rounds + 1):
        reply = engine.train_round(state, EVERYONE, phase="training", number=number)
        state = aggregate(reply.updates)
    return state


def test_a_round_gives_the_simulators_updates_to_the_bit(make: Make) -> None:
    mine, other = make(), simulator()
    for number, clients in ((1, EVERYONE), (2, (2, 0))):
        here = mine.train_round(initial(), clients, phase="training", number=number)
        there = other.train_round(initial(), clients, phase="training", number=number)
        assert [u.client for u in here.updates] == list(clients)
        assert [u.samples for u in here.updates] == [SIZES[client] for client in clients]
        assert [states.digest(u.state) for u in here.updates] == [
            states.digest(u.state) for u in there.updates
        ]


def test_several_rounds_end_at_the_simulators_digest(make: Make) -> None:
    assert states.digest(trained(make())) == states.digest(trained(simulator()))


def test_phase_and_number_name_a_rounds_randomness(make: Make) -> None:
    engine, found = make(), set[str]()
    for phase, number in (("training", 1), ("training", 2), ("post-training", 1)):
        reply = engine.train_round(initial(), [0], phase=phase, number=number)
        found.add(states.digest(reply.updates[0].state))
    again = engine.train_round(initial(), [0], phase="training", number=1)
    assert len(found) == 3
    assert states.digest(again.updates[0].state) in found


def test_a_rounds_cost_is_a_model_down_and_up_for_each(make: Make) -> None:
    size = states.size_bytes(initial())
    cost = make().train_round(initial(), (0, 2), phase="training", number=1).cost
    assert cost.rounds == 1
    assert cost.gradient_samples == SIZES[0] + SIZES[2]
    for wire in (cost.upload_bytes, cost.download_bytes):
        assert 2 * size <= wire <= 2 * (size + 1500)  # NumPy's headers, keys, metrics
    assert cost.seconds > 0


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("second-choice", {}),
        ("projected-ascent", {"stop_distance": 5.0, "batch_size": 16}),
        ("gradient-ascent", {"epochs": 1, "batch_size": 16}),
        ("virtual-teacher", {}),
        ("reference", {}),
    ],
)
def test_a_local_step_gives_the_simulators_state_to_the_bit(
    make: Make, name: str, settings: dict[str, Any]
) -> None:
    found = []
    for engine in (make(), simulator()):
        reply, cost = engine.ask(1, step(name, **settings), global_state=trained(engine))
        found.append((states.digest(reply.state), reply.report.as_dict(), cost.gradient_samples))
    (here, report, gradients), (there, expected, others) = found
    assert here == there
    assert report == expected
    assert gradients == others


def erased(engine: Engine, leaver: int, **settings: Any) -> str:
    """Return the digest after second choice's start and three rounds of post-training."""
    method = create("second-choice", settings)[1]
    server = Server(
        engine=engine,
        global_state=trained(engine),
        leaver=leaver,
        retained=tuple(client for client in EVERYONE if client != leaver),
        fresh_state=initial,
        fresh_model=load_model,
    )
    start = method.start(server)
    state, memory = start.state, start.memory
    for number in (1, 2, 3):
        after = method.recover(server, state, memory, number)
        state, memory = after.state, after.memory
    return states.digest(state)


def test_a_heavy_leavers_erasure_ends_at_the_simulators_digest(make: Make) -> None:
    assert SIZES[2] / sum(SIZES) > LIGHT_WEIGHT  # so its first round holds more than another one's
    found = erased(make(), 2)
    assert found == erased(simulator(), 2)
    assert found != erased(simulator(), 2, hold_first=FIRST_ROUND_SHARE)


def test_the_reference_is_the_mean_of_the_others(make: Make) -> None:
    engine = make()
    last = engine.train_round(initial(), EVERYONE, phase="training", number=1).updates
    reply, cost = engine.ask(1, step("reference"), global_state=aggregate(last))
    others = aggregate([update for update in last if update.client != 1])
    assert states.distance(reply.state, others) < 1e-5
    assert reply.report.own_weight == pytest.approx(SIZES[1] / sum(SIZES))
    size = states.size_bytes(initial())
    for wire in (cost.upload_bytes, cost.download_bytes):
        assert size <= wire <= size + 2500
    assert cost.rounds == 0


def test_who_missed_the_last_round_has_no_share_in_it(make: Make) -> None:
    engine = make()
    engine.train_round(initial(), EVERYONE, phase="training", number=1)
    later = engine.train_round(initial(), (0, 2, 3), phase="training", number=2)
    mean = aggregate(later.updates)
    ascent = step("projected-ascent", stop_distance=5.0, batch_size=16, learning_rate=1e-9)
    reply, _ = engine.ask(1, ascent, global_state=mean)
    assert reply.report.own_weight == 0
    assert states.distance(reply.state, mean) < 1e-5  # it starts from the mean as it stands
    with pytest.raises(ConfigError, match=r"missed the last round|its own words were logged"):
        engine.ask(1, step("reference"), global_state=mean)


def test_counting_and_measuring_answer_alike(make: Make) -> None:
    engine, other = make(), simulator()
    for task in (CountRight(), Measure()):
        here, cost = engine.ask(2, task, global_state=initial())
        there, _ = other.ask(2, task, global_state=initial())
        assert here.samples == SIZES[2]
        assert all(torch.equal(here.state[name], there.state[name]) for name in there.state)
        assert cost.gradient_samples == 0
    assert len(other.ask(2, CountRight(), global_state=initial())[0].state["right"]) == CLASSES


def test_an_unknown_client_is_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match="unknown client 9"):
        make().train_round(initial(), (0, 9), phase="training", number=1)
    with pytest.raises(ConfigError, match="unknown client 9"):
        make().ask(9, CountRight(), global_state=initial())


def test_a_local_step_before_the_first_round_is_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"no own state yet|its own words were logged"):
        make().ask(0, step("reference"), global_state=initial())


def test_what_cannot_be_sent_is_refused_and_what_can_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlimit(monkeypatch)
    engine = flower(tmp_path)

    class Mine(Reference):
        """A step of one's own."""

    def closure(side: ClientSide) -> Any:
        raise AssertionError("never run")

    for task in (closure, TakeStep(LocalStepMethod(Mine())), TakeStep(Mine())):
        with pytest.raises(ConfigError, match="cannot be sent to a live client") as caught:
            engine.ask(0, task, global_state=initial())
        assert all(name in str(caught.value) for name in LIVE)
