"""Retained clients that spoil every round, so that somebody cannot be erased.

Before, one of three ended every rung with a single update, and the request with it; other options
could only be given with a new request, which a leaver that is gone cannot sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harness.erasure import small
from harness.erasure.small import Hostile
from harness.lines import passed_to
from secede import state as states
from secede.erasure.defences.gate import Counts, Tally
from secede.erasure.planning.options import EraseOptions
from secede.erasure.storage.home import Home
from secede.erasure.storage.transition_details import PlanDetails
from secede.erasure.workflow.measurement import ACCEPTED, LOST
from secede.errors import LossError
from secede.federation.engine import Update
from secede.simulation.backend import SimulatedBackend
from secede.state import State

LOSING = EraseOptions(max_rounds=1, max_server_rounds=0)


class Double(nn.Module):
    """A network that computes in 64 bits."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 16).double()
        self.last = nn.Linear(16, classes).double()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.relu(self.hidden(x.flatten(1).double())))
        return out


def build_double(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Double(classes)


def build_normalised(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a model that cannot be trained with one sample."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes)
    )


def huge(update: Update, start: State) -> State:
    """Send finite values with which the next round's training has none."""
    return {name: torch.full_like(value, 3e38) for name, value in update.state.items()}


def turned(update: Update, start: State) -> State:
    return states.shifted(start, states.difference(update.state, start), -50)


def plans(home: Home) -> list[PlanDetails]:
    return [d for t in small.course(home).transitions if isinstance(d := t.details, PlanDetails)]


def test_one_client_that_lets_every_round_diverge_keeps_nobody_in(home: Home) -> None:
    before, entry = small.serving(home), small.receive(home)
    outcome = small.erase(home, entry.id, ground=Hostile(home, retained=huge), how=EraseOptions())
    assert [(f.rung, f.outcome) for f in outcome.failures] == [
        ("local-step", "broken"),
        ("server-side", "broken"),
        ("retraining", "broken"),
    ]
    assert (outcome.state, outcome.rung) == ("promoted", "local-step")
    first, second = plans(home)
    assert (first.options["mean"], second.options["mean"]) == ("mean", "median")
    assert second.reason is not None
    assert "begun again with their updates joined by the median" in second.reason
    assert small.told(home)["method"]["mean"] == "median"
    assert not home.model_path(before).exists()


def test_a_majority_that_spoils_every_round_leaves_the_end_to_a_person(home: Home) -> None:
    entry, ground = small.receive(home), Hostile(home, retained=huge, malicious=2)
    with pytest.raises(LossError, match=r"fell from 100.0% to 0.0%"):
        small.erase(home, entry.id, ground=ground, how=LOSING)
    # A model that answers nothing was measured again and again, and then no command went on.
    accepting = EraseOptions(accept_loss="x")
    outcome = small.erase(home, entry.id, ground=ground, how=accepting)
    assert outcome.state == "rolled-back"
    assert "outputs are not finite" in outcome.failures[2].reason
    assert len(plans(home)) == 2


def test_hidden_updates_have_no_median_and_the_request_is_rolled_back(tmp_path: Path) -> None:
    home = small.make(tmp_path, small.CONFIG + "situation = { secure_aggregation = true }\n")
    ground = Hostile(home, retained=huge)
    outcome = small.erase(home, small.receive(home).id, ground=ground, how=EraseOptions())
    assert outcome.state == "rolled-back"
    assert outcome.failures[-1].outcome == "broken"
    assert len(plans(home)) == 1


def test_an_undecided_request_is_planned_again_with_other_options(home: Home) -> None:
    entry, ground, lines = small.receive(home), Hostile(home, retained=turned), list[str]()
    for how in (LOSING, LOSING, EraseOptions()):  # the same options plan nothing
        with pytest.raises(LossError, match="other options, such as --aggregation median"):
            small.erase(home, entry.id, ground=ground, how=how)
        assert small.way(home)[-1] == "undecided"
    assert len(plans(home)) == 1
    with passed_to(lines.append):
        robust = small.erase(home, entry.id, ground=ground, how=EraseOptions(mean="median"))
    assert (robust.state, robust.rung) == ("promoted", "local-step")
    assert [plan.options["mean"] for plan in plans(home)] == ["mean", "median"]
    assert not any("are ignored" in line for line in lines)


def test_an_accepted_loss_promotes_after_a_kill_though_the_command_no_longer_says_so(
    home: Home,
) -> None:
    entry, ground = small.receive(home), Hostile(home, retained=turned)
    with pytest.raises(LossError):
        small.erase(home, entry.id, ground=ground, how=LOSING)
    small.receive(home, "site-1")  # another request, which waits

    def killed(line: str) -> None:
        if line.startswith("verified"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small.erase(home, entry.id, ground=ground, how=EraseOptions(accept_loss="x"), tell=killed)
    assert small.way(home)[-1] == "verified"
    outcome = small.erase(home, entry.id, how=EraseOptions())
    assert (outcome.state, outcome.rung) == ("promoted", "retraining")
    assert ACCEPTED.format(reason="x") in small.told(home)["limits"]


def test_doubles_too_large_to_be_squared_do_not_stop_the_command(tmp_path: Path) -> None:
    name = f"{__name__}:build_double"
    home = small.make(tmp_path, small.CONFIG.replace("harness.erasure.small:build", name))

    def sent(update: Update, start: State) -> State:
        draw = torch.Generator().manual_seed(update.client)
        state = dict[str, Tensor]()
        for entry, value in update.state.items():
            signs = torch.randint(2, value.shape, generator=draw) * 2 - 1
            state[entry] = 1e200 * signs.to(value.dtype)
        return state

    ground = Hostile(home, retained=sent)
    outcome = small.erase(home, small.receive(home).id, ground=ground, how=EraseOptions())
    assert outcome.state == "promoted"
    assert outcome.failures[0].outcome == "broken"
    assert "too far apart in size" in outcome.failures[0].reason


def test_a_network_with_batch_normalisation_can_be_erased_from(tmp_path: Path) -> None:
    name = f"{__name__}:build_normalised"
    sizes = 'count = 4, partition = "sizes", sizes = [32, 32, 32, 32]'  # no batch of one
    config = small.CONFIG.replace("harness.erasure.small:build", name)
    home = small.make(tmp_path, config.replace("clients.count = 4", f"clients = {{ {sizes} }}"))
    assert small.erase(home, small.receive(home).id, how=EraseOptions()).state == "promoted"


def test_fewer_samples_than_the_gate_asks_for_can_be_erased_by_a_person(tmp_path: Path) -> None:
    sizes = 'count = 4, partition = "sizes", sizes = [6, 6, 6, 6]'
    config = small.CONFIG.replace("clients.count = 4", f"clients = {{ {sizes} }}")
    home = small.make(tmp_path, config)
    entry = small.receive(home)
    with pytest.raises(LossError, match="18 samples were counted, expected 30 or more"):
        small.erase(home, entry.id, how=LOSING)
    assert small.erase(home, entry.id, how=EraseOptions(accept_loss="x")).state == "promoted"
    told = small.told(home)
    assert LOST.format(reason="18 samples were counted, expected 30 or more") in told["limits"]


class Claiming(SimulatedBackend):
    """Clients whose counts nobody pinned; the last one says that its samples change class."""

    def __init__(self, home: Home) -> None:
        super().__init__(home)
        self.asked = 0

    def samples(self, client: str) -> int | None:
        return None

    def tally(self, clients: Sequence[int], state: State, before: State | None = None) -> Tally:
        plain, self.asked = super().tally(clients, state), self.asked + 1
        counts = dict(plain.counts)
        if 3 in counts:
            total = sum(counts[3].samples)
            some = self.asked % total
            counts[3] = Counts((0,) * len(counts[3].samples), (some, total - some, 0))
        return Tally(counts, plain.left_out, plain.cost)


def test_numbers_that_change_from_one_count_to_the_next_are_left_out(home: Home) -> None:
    ground = Claiming(home)
    outcome = small.erase(home, small.receive(home).id, ground=ground, how=EraseOptions())
    assert outcome.state == "promoted"
    assert small.left_out(home) == {("site-3", "wrong-samples")}


def test_a_client_that_sends_the_leavers_last_update_is_left_out(home: Home) -> None:
    leavers, _ = states.load(home.path / "sites" / "site-0.safetensors")

    def replayed(update: Update, start: State) -> State:
        return leavers if update.client == 3 else update.state

    ground = Hostile(home, retained=replayed)
    outcome = small.erase(home, small.receive(home).id, ground=ground, how=EraseOptions())
    assert outcome.state == "promoted"
    assert small.left_out(home) == {("site-3", "refused")}


def test_other_plans_in_between_do_not_count_as_damage(home: Home) -> None:
    # Every plan counted, so that the fourth one with a damaged state stopped the command for good.
    entry, hostile = small.receive(home), Hostile(home, retained=turned)
    for rounds in (1, 2, 3):
        how = EraseOptions(max_rounds=rounds, max_server_rounds=0)
        with pytest.raises(LossError):
            small.erase(home, entry.id, ground=hostile, how=how)

    def damage(line: str) -> None:
        if line.startswith("post training round 0") and len(plans(home)) == 4:
            for path in home.work_folder(entry.id).glob("*.safetensors"):
                path.unlink()

    how = EraseOptions(mean="median")
    assert small.erase(home, entry.id, ground=hostile, how=how, tell=damage).state == "promoted"
    assert len(plans(home)) == 5


def test_one_client_that_claims_most_samples_and_stays_away_keeps_nobody_in(
    tmp_path: Path,
) -> None:
    sizes = 'clients = { count = 4, partition = "sizes", sizes = [20, 20, 20, 90] }'
    home = small.make(tmp_path, small.CONFIG.replace("clients.count = 4", sizes))
    before, entry = small.serving(home), small.receive(home)
    away = SimulatedBackend(home, gone=["site-3"])
    for accept in ("", "x"):  # there is nothing to accept
        with pytest.raises(LossError, match=r"2 of 3 .* 31% of the samples.* a lower --quorum"):
            small.erase(home, entry.id, ground=away, how=EraseOptions(accept_loss=accept))
        assert small.way(home)[-2:] == ["escalated", "undecided"]
        assert small.serving(home) == before
    other = small.copy(home, tmp_path / "other")
    few = small.erase(home, entry.id, ground=away, how=small.options(quorum=0.3))
    assert few.state == "promoted"
    assert small.told(home)["method"]["settings"]["quorum"] == 0.3
    assert small.left_out(home) >= {("site-3", "silent")}
    assert small.erase(other, entry.id).state == "promoted"  # it came back


def test_a_majority_of_the_clients_that_stays_away_ends_it(home: Home) -> None:
    ground = SimulatedBackend(home, gone=["site-2", "site-3"])
    outcome = small.erase(home, small.receive(home).id, ground=ground)
    assert (outcome.state, small.way(home)[-1]) == ("rolled-back", "rolled-back")
