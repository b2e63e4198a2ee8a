from __future__ import annotations

import copy

import torch
from torch import nn

from secede.federation.executors.executor import pool_before_relu


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 1, padding=1)),
        nn.Flatten(),
        nn.Linear(64, 3),
    )


def kinds(model: nn.Module) -> list[type[nn.Module]]:
    return [type(layer) for layer in model.children()]


def test_swapping_changes_no_output_and_no_gradient_by_a_bit() -> None:
    torch.manual_seed(0)
    plain = network()
    swapped = copy.deepcopy(plain)
    pool_before_relu(swapped)
    assert kinds(swapped)[1:3] == [nn.MaxPool2d, nn.ReLU]
    assert kinds(swapped[3])[1:] == [nn.MaxPool2d, nn.ReLU]
    # Blank patches, as images have them: ties between equal values.
    x = torch.randn(6, 1, 8, 8).relu() * (torch.rand(6, 1, 8, 8) > 0.5)
    for model in (plain, swapped):
        nn.functional.cross_entropy(model(x), torch.arange(6) % 3).backward()
    assert torch.equal(plain(x), swapped(x))
    assert list(plain.state_dict()) == list(swapped.state_dict())
    for one, other in zip(plain.parameters(), swapped.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)  # type: ignore[arg-type]


def test_modules_that_somebody_listens_to_and_other_containers_stay_as_they_are() -> None:
    heard = network()
    heard[1].register_forward_hook(lambda *_: None)
    pool_before_relu(heard)
    assert kinds(heard)[1:3] == [nn.ReLU, nn.MaxPool2d]

    class Own(nn.Sequential):
        pass

    own = Own(nn.ReLU(), nn.MaxPool2d(2))
    pool_before_relu(own)
    assert type(own[0]) is nn.ReLU
    indices = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, return_indices=True))
    pool_before_relu(indices)
    assert type(indices[0]) is nn.ReLU
