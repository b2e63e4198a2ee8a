"""Weight negation: the server negates the first layer, and post-training repairs the model.

Khalil, Brunswic, Lamghari, Li, Beitollahi, Chen 2025, "NoT: Federated Unlearning via Weight
Negation". It asks no client and stores nothing. A layer is a module with a trainable weight of two
dimensions or more, so no normalisation layer; the first is the one that the model defines first.
The paper negates a layer's parameters and argues with negated pre-activations, so the bias is
negated, too; known re-implementations keep it (`bias=False`). `layers` selects other layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from secede import state as states
from secede.errors import ConfigError
from secede.unlearning.method import Method, Server, Start


@dataclass(frozen=True, kw_only=True)
class WeightNegation(Method):
    """Multiply the first layers, or the named ones, by −1."""

    layers: int | Sequence[str] = 1  # how many from the input on, or names of modules
    bias: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.layers, int):
            if isinstance(self.layers, bool) or self.layers < 1:
                raise ConfigError(f"layers must be 1 or more, or names, got {self.layers}")
        elif isinstance(self.layers, str) or not self.layers:
            raise ConfigError(f"layers must be a number or a list of names, got {self.layers!r}")

    def check_model(self, model: nn.Module) -> None:
        """Raise if the model lacks one of the layers."""
        self._parameters(model)

    def start(self, server: Server) -> Start:
        """Return the global state with the layers negated."""
        names = self._parameters(server.fresh_model())
        state = states.negated(server.global_state, names)
        return Start(state=state, report={"negated": len(names)})

    def _parameters(self, model: nn.Module) -> list[str]:
        """Return the names of the parameters to negate."""
        all_layers = _layers(model)
        if isinstance(self.layers, int):
            if self.layers > len(all_layers):
                raise ConfigError(
                    f"layers is {self.layers}, but the model has {len(all_layers)} layers with "
                    "trainable weights"
                )
            chosen = all_layers[: self.layers]
        else:
            chosen = list(self.layers)
            if unknown := [name for name in chosen if name not in all_layers]:
                raise ConfigError(
                    f"the model has no layer {unknown[0]!r} with trainable weights, "
                    f"expected some of {', '.join(all_layers)}"
                )
        return [
            name
            for name, value in model.named_parameters()
            if value.requires_grad
            and name.rpartition(".")[0] in chosen
            and (self.bias or "weight" in name.rpartition(".")[2])
        ]


def _layers(model: nn.Module) -> list[str]:
    """Return the names of the modules that own a trainable weight matrix, in order."""
    layers: dict[str, None] = {}
    for name, value in model.named_parameters():
        module, _, parameter = name.rpartition(".")
        if value.requires_grad and value.ndim >= 2 and "weight" in parameter:
            layers[module] = None
    return list(layers)
