"""A FedAvg round as the paper's authors write it, rewritten plainly: the baseline of users today.

Data lies on the host and comes through a DataLoader, batch by batch; one client trains after
another on a deep copy of the model; the new model is the mean of their state dicts.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from secede.data.samples import Samples
from secede.federation.engine import LocalTraining
from secede.federation.training import Precision, forward, product_precision


class Authors:
    """A federation of equally large clients that trains one round each time it is called."""

    def __init__(
        self,
        clients: Sequence[Samples],
        model: nn.Module,
        *,
        training: LocalTraining,
        device: str,
        precision: Precision = "float32",
    ) -> None:
        self.model = model.to(device)
        self._loaders = [
            DataLoader(TensorDataset(c.x, c.y), batch_size=training.batch_size, shuffle=True)
            for c in clients
        ]
        self._training, self._device, self._precision = training, device, precision

    def __call__(self) -> None:
        """Train one round."""
        trained = []
        with product_precision(self._precision):
            for loader in self._loaders:
                local = copy.deepcopy(self.model)
                self._train(local, loader)
                trained.append(local.state_dict())
        self.model.load_state_dict(_mean(trained))

    def _train(self, model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> None:
        how = self._training
        optimiser = torch.optim.SGD(model.parameters(), lr=how.learning_rate, momentum=how.momentum)
        criterion = nn.CrossEntropyLoss()
        model.train()
        for _ in range(how.epochs):
            for inputs, labels in loader:
                inputs, labels = inputs.to(self._device), labels.to(self._device)
                optimiser.zero_grad()
                loss = criterion(forward(model, inputs, self._precision), labels)
                loss.backward()
                optimiser.step()


def _mean(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([s[name] for s in states]).mean(dim=0) for name in states[0]}
