"""The parts of an erasure under SecAgg+, done by hand, and that `erase` itself refuses it.

Shown: the server reads no update; the local step passes through `secaggplus_mod` and starts from an
exact reference; Flower's own legacy workflow trains on from it without the leaver, hidden as
before. Not shown, because there is no such thing: guard, gate and receipt, which `erase` adds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.client.mod import LocalDpMod, secaggplus_mod
from torch import Tensor

from flower import secure
from flower.secure import SIZES, Wire
from flower.small import Federation, client_app
from secede import state as states
from secede.errors import ConfigError
from secede.flower import ClientErasure, Store, wire
from secede.flower.wire import Asked
from secede.unlearning import tasks
from secede.unlearning.method import TakeStep
from secede.unlearning.projected_ascent import ProjectedAscent

LEAVER = 13
RETAINED = tuple(node for node in SIZES if node != LEAVER)
SHARE = SIZES[LEAVER] / sum(SIZES.values())
EXACT = 1e-4  # that the reference may be off: SecAgg+ counts in steps of 16 / 2**22


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    log = logging.getLogger("flwr")
    before = log.level
    log.setLevel(logging.ERROR)
    yield
    log.setLevel(before)


@dataclass(frozen=True)
class Trained:
    """A federation after two rounds: its model, and what really went into the last mean."""

    erasure: ClientErasure
    grid: Wire
    model: dict[str, Tensor]
    sent: dict[int, dict[str, Tensor]]

    def kept(self, node: int) -> dict[str, Tensor]:
        """Return the update that a node kept, under the model's names."""
        updates = self.erasure.updates(self.grid.contexts[node])
        found = updates.get(updates.all()[0].digest)
        assert found is not None
        values = (found[str(place)].float() for place in range(len(found)))
        return dict(zip(self.model, values, strict=True))

    def reference_error(self) -> float:
        """Return how far the reference is from the mean of what the others sent."""
        own = self.kept(LEAVER)
        others = [self.sent[node] for node in RETAINED]
        wanted = states.mean(others, [SIZES[node] for node in RETAINED])
        found = states.reference(self.model, own, weight=SHARE)
        return max(float((found[n] - wanted[n]).abs().max()) for n in wanted)


def train(folder: Path, *inner: secure.Mod, wrong: bool = False, hidden: bool = True) -> Trained:
    """Train; `inner` mods stand inside the one that keeps updates, or outside if `wrong`."""
    erasure = ClientErasure(secure.load_model, secure.load_data)
    sent: dict[int, list[np.ndarray]] = {}

    def look(message, context, call_next):  # type: ignore[no-untyped-def]
        """Note what really leaves a node towards secure aggregation."""
        reply = call_next(message, context)
        if message.metadata.message_type == "train":
            (record,) = reply.content.array_records.values()
            sent[context.node_id] = record.to_numpy_ndarrays()
        return reply

    keep = (*inner, erasure.mod) if wrong else (erasure.mod, *inner)
    app, _ = secure.make_app(*((secaggplus_mod,) if hidden else ()), look, *keep)
    erasure.register(app)
    grid = Wire(app, folder)
    start = dict(secure.load_model().state_dict())
    model = secure.run(grid, start, 2, secure=hidden)
    model = {name: value.to(start[name].dtype) for name, value in model.items()}
    named = {
        node: {n: torch.from_numpy(np.array(a)) for n, a in zip(model, arrays, strict=True)}
        for node, arrays in sent.items()
    }
    return Trained(erasure, grid, model, named)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("secure"))


def readable(grid: Wire, sent: dict[int, dict[str, Tensor]]) -> set[int]:
    """Return the nodes some of whose parameters can be read in what reached the server."""
    found = set()
    for node, state in sent.items():
        pieces = [value.numpy().tobytes()[:32] for value in state.values() if value.numel() >= 8]
        pieces += [value.double().numpy().tobytes()[:32] for value in state.values()]
        if any(piece in data for _, data in grid.seen for piece in pieces):
            found.add(node)
    return found


def test_no_update_can_be_read_at_the_server(trained: Trained, tmp_path: Path) -> None:
    assert readable(trained.grid, trained.sent) == set()
    plain = train(tmp_path, hidden=False)
    assert readable(plain.grid, plain.sent) == set(SIZES)  # the same search, without SecAgg+


def test_the_reference_from_the_leavers_disk_is_exact(trained: Trained) -> None:
    assert trained.reference_error() < EXACT
    plain = states.mean(list(trained.sent.values()), [SIZES[node] for node in trained.sent])
    assert max(float((trained.model[n] - plain[n]).abs().max()) for n in plain) < EXACT


def test_by_hand_the_leaver_steps_and_the_others_train_on_under_secagg(trained: Trained) -> None:
    own = trained.erasure.updates(trained.grid.contexts[LEAVER]).all()[0]
    task = TakeStep(ProjectedAscent(radius=1.0, stop_distance=5.0, epochs=1, batch_size=32))
    form = tasks.sent(task)
    asked = Asked(
        task=form.name,
        method=form.method,
        settings=dict(form.settings),
        client=LEAVER,
        number=0,
        weight=SHARE,
        own=own.digest,  # from the client's own disk: the server has seen no update
    )
    before = len(trained.grid.seen)
    (reply,) = trained.grid.send_and_receive(
        [wire.question(LEAVER, asked, trained.model, ttl=60.0)]
    )
    found = wire.read_answer(reply, task, trained.model, "site").state
    reference = states.reference(trained.model, trained.kept(LEAVER), weight=SHARE)
    away = states.distance(found, reference)
    assert 0.001 < away <= 1.0 + 1e-4  # it moved, and stayed in the ball around the reference
    assert [kind for kind, _ in trained.grid.seen[before:]] == ["train.unlearn"]
    assert readable(trained.grid, {LEAVER: trained.sent[LEAVER]}) == set()

    grid = Wire(trained.grid.app, Path(), nodes=RETAINED)
    grid.contexts = trained.grid.contexts
    after = secure.run(grid, dict(found), 1, secure=True)
    assert states.is_finite(after)
    assert {kind for kind, _ in grid.seen} == {"train"}
    assert len(grid.seen) == 4 * len(RETAINED)  # SecAgg+'s four stages, without the leaver
    assert readable(grid, trained.sent) == set()


@pytest.mark.parametrize("wrong", [False, True])
def test_updates_are_kept_outside_of_the_noise_and_inside_secagg(
    tmp_path: Path, wrong: bool
) -> None:
    noise = LocalDpMod(clipping_norm=1.0, sensitivity=0.1, epsilon=1.0, delta=1e-2)
    error = train(tmp_path, noise, wrong=wrong).reference_error()
    assert error > 0.01 if wrong else error < EXACT


# What is refused


def test_a_store_for_secure_aggregation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rounds under secure aggregation cannot be recorded"):
        Store(tmp_path, secure.load_model, secure_aggregation=True)


def test_recording_clients_that_hide_their_updates_is_refused_and_they_send_none(
    tmp_path: Path,
) -> None:
    federation = Federation(tmp_path, app=client_app([secaggplus_mod]))
    grid = federation.grid()
    with pytest.raises(ConfigError, match="rounds under secure aggregation cannot be recorded"):
        federation.train(1, grid=grid)
    assert grid.bytes_up == 0
    assert federation.store.last() is None
