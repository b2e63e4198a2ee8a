"""How many classes there are, and which layer is the last one, where nobody says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord
from torch import Tensor, nn

from harness.flower import small
from secede.erasure.defences import unused_weights
from secede.errors import ConfigError
from secede.flower.backend import _outputs
from secede.flower.storage.store import Store


class HeadFirst(nn.Module):
    """Its last layer is registered first."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, small.CLASSES)
        self.body = nn.Linear(small.FEATURES, 16)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.body(x).relu())
        return answer


@pytest.mark.parametrize("told", [None, small.CLASSES])
def test_the_last_layer_does_not_fade_though_it_is_registered_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: int | None
) -> None:
    faded, asked = list[set[str]](), list[int | None]()

    def fade(*given: Any, **how: Any) -> unused_weights.Removal:
        faded.append({*how["weights"]})
        return genuine(*given, **how)

    def weights(model: nn.Module, classes: int | None = None) -> unused_weights.ModelLayers:
        asked.append(classes)
        return found(model, classes)

    def store(federation: small.Federation) -> Store:
        return Store(
            federation.folder / "home",
            HeadFirst,
            name="north",
            clock=lambda: small.NOW,
            classes=told,
        )

    genuine, found = unused_weights.remove_unused_weights, unused_weights.find_layers
    monkeypatch.setattr(unused_weights, "remove_unused_weights", fade)
    monkeypatch.setattr(unused_weights, "find_layers", weights)
    monkeypatch.setattr(small, "load_model", HeadFirst)
    monkeypatch.setattr(small.Federation, "store", property(store))
    federation = small.Federation(tmp_path)
    begin = ArrayRecord(small.initial())
    federation.recording().start(federation.grid(), begin, num_rounds=3, timeout=5)
    outcome = federation.erase()
    assert outcome.state == "promoted"
    assert (faded[0], asked[0]) == ({"body.weight"}, told)


def test_a_network_without_a_linear_layer_must_be_told_its_classes() -> None:
    assert _outputs(HeadFirst()) == small.CLASSES
    with pytest.raises(ConfigError, match=r"no linear layer .* Store\(\.\.\., classes=\)"):
        _outputs(nn.Sequential(nn.Conv1d(1, 3, 1)))
