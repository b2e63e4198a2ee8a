from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from secede.canaries import CanaryOptions
from secede.errors import ConfigError, RecordError
from secede.flower.client import own_canaries
from secede.flower.client.own_canaries import COMMITMENT, SALT, SECRET, OwnCanaries

OPTIONS = CanaryOptions(count=8, copies=2, max_share=0.2)
CPU = torch.device("cpu")


def data(count: int = 200, seed: int = 0, shape: tuple[int, ...] = (6,)) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.rand((count, *shape), generator=draw), torch.arange(count) % 5


def net() -> nn.Module:
    return nn.Linear(6, 5)


@pytest.fixture
def own(tmp_path: Path) -> OwnCanaries:
    return OwnCanaries(tmp_path / "site", OPTIONS)


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_same_canaries_come_in_every_round_and_process(own: OwnCanaries) -> None:
    first = own.plant(data(), None)
    assert len(first.source[1]) == first.samples == 216
    again = OwnCanaries(own.folder, OPTIONS).plant(data(), None)
    assert same(first.source, again.source)
    committed = own.commitment()
    assert committed is not None
    assert (committed.commitment.samples, committed.copies, committed.kind) == (8, 2, "made-up")
    assert committed.share == pytest.approx(16 / 216)


def test_salt_and_canaries_are_for_their_owner_alone(own: OwnCanaries) -> None:
    own.plant(data(), None)
    for name in (SALT, SECRET, COMMITMENT):
        assert stat.S_IMODE((own.folder / name).stat().st_mode) == 0o600
    assert len((own.folder / SALT).read_bytes()) == 32
    assert stat.S_IMODE(own.folder.stat().st_mode) == 0o700


def test_what_an_erasure_uses_is_what_was_trained_on(own: OwnCanaries) -> None:
    assert own.replant(data(), None) is not None
    assert not own.folder.exists()  # nothing is planted by an erasure
    trained = own.plant(data(), None).source
    assert same(own.replant(data(), None), trained)
    loader = DataLoader(TensorDataset(*data()), batch_size=50, shuffle=True)
    assert same(own.replant(loader, None).dataset.tensors, trained)


@pytest.mark.parametrize("new", [data(150, seed=3), data(400, seed=4)])
def test_other_data_and_settings_keep_the_canaries_that_were_committed_to(
    own: OwnCanaries, new: tuple[Tensor, Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    own.plant(data(), None)
    before = (own.folder / SECRET).read_bytes()
    other = OwnCanaries(own.folder, replace(OPTIONS, count=20))
    for _ in range(3):
        planted = other.plant(new, None)
    assert planted.samples == len(new[1]) + 16
    assert (own.folder / SECRET).read_bytes() == before
    assert caplog.text.count("its settings were changed since") == 1


def test_inputs_of_another_form_are_trained_on_without_canaries_and_once_a_line_says_so(
    own: OwnCanaries, caplog: pytest.LogCaptureFixture
) -> None:
    own.plant(data(), None)
    other = data(shape=(7,))
    for _ in range(3):
        planted = own.plant(other, None)
    assert planted.source is other
    assert planted.reason.startswith("no canaries were planted this time: canaries: the client's")
    assert caplog.text.count("no canaries were planted this time") == 1


def test_samples_of_its_own_are_not_replaced_by_others(own: OwnCanaries) -> None:
    options = replace(OPTIONS, kind="mislabelled", copies=1)
    mislabelled = OwnCanaries(own.folder, options)
    first, again = (mislabelled.plant(data(), None).source for _ in range(2))
    assert same(first, again)
    changed = mislabelled.plant(data(seed=9), None)
    assert changed.canaries is None
    assert "canaries of kind 'mislabelled' are among it" in changed.reason


def test_a_client_that_is_too_small_gets_its_data_back_and_hears_it_once(
    own: OwnCanaries, caplog: pytest.LogCaptureFixture
) -> None:
    few = data(30)
    for _ in range(3):
        planted = own.plant(few, None)
    assert planted.source is few
    assert own.commitment() is None
    assert caplog.text.count("the client has 30 samples, and 7 canaries within 20 % need 35") == 1
    with pytest.raises(ConfigError, match="this client planted no canaries"):
        own.load()
    assert own.plant(data(), None).canaries is not None  # it has grown


def test_what_cannot_be_planted_in_is_refused_while_somebody_is_there(own: OwnCanaries) -> None:
    with pytest.raises(ConfigError, match="canaries: found int"):
        own.plant(5, None)
    own.plant(data(), None)
    assert own.replant(5, None) == 5  # an erasure is not stopped by it


@pytest.mark.parametrize("damage", [b"", b"secede-canaries-v1\n", None])
def test_damaged_canaries_are_not_read(own: OwnCanaries, damage: bytes | None) -> None:
    own.plant(data(), None)
    if damage is None:
        other = OwnCanaries(own.folder.with_name("other"), OPTIONS)
        other.plant(data(), None)
        damage = (other.folder / SECRET).read_bytes()  # sound ones, of another salt
    (own.folder / SECRET).write_bytes(damage)
    with pytest.raises(RecordError, match=r"canaries\.secret"):
        own.load()


def test_a_model_is_read_without_a_change_to_random_numbers(own: OwnCanaries) -> None:
    own.plant(data(), None)
    canaries, _ = own.load()
    torch.manual_seed(5)
    counts = own_canaries.read(net, dict(net().state_dict()), canaries, CPU)
    after = torch.rand(3)
    assert counts.count == 8
    torch.manual_seed(5)
    net()
    assert torch.equal(after, torch.rand(3))


def test_a_network_that_takes_no_such_input_is_said_in_a_line(own: OwnCanaries) -> None:
    own.plant(data(), None)
    canaries, _ = own.load()

    def other() -> nn.Module:
        return nn.Linear(7, 5)

    with pytest.raises(ConfigError, match="canaries cannot be read: RuntimeError: mat1"):
        own_canaries.read(other, dict(other().state_dict()), canaries, CPU)
