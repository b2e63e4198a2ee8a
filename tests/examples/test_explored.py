"""What was tried for second choice: its configs are sound, and the second step is what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import servers
from harness.paths import ROOT
from secede import state as states
from secede.data import catalog
from secede.errors import ConfigError
from secede.experiments import presets
from secede.experiments.arms import arms
from secede.experiments.setup import federate
from secede.unlearning.method import LocalResult, LocalTask, Method, TakeStep, average_round
from secede.unlearning.methods.second_choice import SecondChoice
from secede.unlearning.post_training_hold import without_return
from secede.unlearning.registry import METHODS, base_name, create

EXPLORED = ROOT / "examples" / "explored"
OF_OTHERS = ("regimes", "negated-early")  # methods of others in their own settings


def needs_history(method: str) -> bool:
    entry = METHODS.get(base_name(method))
    return entry is not None and entry.needs.history


def twice(**settings: object) -> Method:
    return create("twice:Twice", settings, search=EXPLORED)[1]


@pytest.mark.parametrize("path", sorted(EXPLORED.glob("*.toml")), ids=lambda path: path.stem)
def test_every_config_can_be_set_up_on_the_embedded_images(path: Path) -> None:
    config = presets.load(str(path))
    assert config.methods[0] == "second-choice" or path.stem in OF_OTHERS
    assert not catalog.entry(config.data).needs_network
    small = config.model_copy(update={"device": "cpu", "executor": "loop"})
    dataset = catalog.load(config.data)
    federation = federate(small, dataset, 0, search=EXPLORED)
    # Those that need a history want to see what was kept.
    without_history = [name for name in config.methods if not needs_history(name)]
    shown = small.model_copy(update={"methods": tuple(without_history)})
    found = arms(shown, federation, search=EXPLORED)
    assert [arm.name for arm in found] == ["fedavg", "retrain", "retrain-again", *without_history]


def test_a_second_step_is_taken_once_and_costs_a_model_each_way() -> None:
    server = servers.server()
    method, plain = twice(before=3, again=1), SecondChoice()
    start = method.start(server)
    assert states.digest(start.state) == states.digest(plain.start(server).state)
    state, memory = start.state, start.memory
    for number in (1, 2, 3, 4):
        found, expected = (m.recover(server, state, memory, number) for m in (method, plain))
        if number == 3:
            assert states.digest(found.state) != states.digest(expected.state)
            size = sum(value.numel() * 4 for value in found.state.values())
            assert found.cost.upload_bytes == expected.cost.upload_bytes + size
            assert found.cost.download_bytes == expected.cost.download_bytes + size
            assert found.cost.gradient_samples > expected.cost.gradient_samples
        else:
            assert states.digest(found.state) == states.digest(expected.state)
        state, memory = found.state, found.memory


def test_a_round_follows_from_where_the_second_step_ends_and_holds_what_leads_back_from_there() -> (
    None
):
    server = servers.server()
    plain = SecondChoice()
    start = plain.start(server)
    first = plain.recover(server, start.state, start.memory, 1)

    class Again:
        def unlearn(self, task: LocalTask) -> LocalResult:
            return plain.unlearn_again(task, first.state, max_steps=3)

    asked = TakeStep(Again())
    step, _ = server.engine.ask(0, asked, global_state=server.global_state, number=2)
    assert step.report.steps >= 1
    movable = {name: server.global_state[name] for name in first.memory.keys() & step.state.keys()}
    back = states.difference(movable, {name: step.state[name] for name in movable})
    after = average_round(server, step.state, {}, 2).state
    expected = without_return(after, step.state, back=back, by="neuron")
    found = twice(again=3).recover(server, first.state, first.memory, 2)
    assert states.digest(found.state) == states.digest(expected)
    free = twice(again=3, hold=0.0, hold_first=0.0).recover(server, first.state, {}, 2)
    assert states.digest(free.state) == states.digest(after)


def test_the_same_seed_gives_the_same_digest() -> None:
    digests = {
        states.digest(servers.erase(twice(), servers.server(), rounds=2)[1]) for _ in range(2)
    }
    assert len(digests) == 1


@pytest.mark.parametrize("wrong", [{"before": 1}, {"again": 0}, {"epochs": 0}])
def test_settings_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must be"):
        twice(**wrong)
