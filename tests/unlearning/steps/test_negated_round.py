from __future__ import annotations

from functools import partial

import torch
from torch import nn

from harness import servers
from secede.federation.engine import ClientSide
from secede.unlearning.method import Reply
from secede.unlearning.steps import negated_round, own_change


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


def negate(side: ClientSide, scale: float) -> Reply:
    return own_change(side).negated(side, scale)


def test_the_leaver_keeps_the_global_models_statistics() -> None:
    at = servers.server(rounds=1, make_model=normalised)
    reply, _ = at.engine.ask(0, partial(negate, scale=3.0), global_state=at.global_state)
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(reply.state[name], at.global_state[name])
    assert not torch.equal(reply.state["0.weight"], at.global_state["0.weight"])


def test_a_negated_update_lies_opposite_to_the_update() -> None:
    at = servers.server(rounds=1)
    there, _ = at.engine.ask(0, partial(negate, scale=1.0), global_state=at.global_state)
    back, _ = at.engine.ask(0, partial(negate, scale=-1.0), global_state=at.global_state)
    for name, value in at.global_state.items():
        torch.testing.assert_close((there.state[name] + back.state[name]) / 2, value)


def test_a_reply_that_changes_nothing_leaves_the_retained_clients_share_of_the_round() -> None:
    at = servers.server(rounds=1)
    samples = len(at.engine.clients[at.leaver])  # type: ignore[attr-defined]

    def nothing(side: ClientSide) -> Reply:
        return Reply(state=side.global_state, gradient_samples=0, samples=side.samples)

    start = negated_round(at, nothing, phase="round")
    updates = at.engine.train_round(at.global_state, at.retained, phase="round", number=1).updates
    total = samples + sum(update.samples for update in updates)
    for name, value in at.global_state.items():
        change = sum(u.samples / total * (u.state[name] - value) for u in updates)
        torch.testing.assert_close(start.state[name], value + change)
