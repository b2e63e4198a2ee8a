"""Rounds in the open on a live Flower federation, behind the same methods as the simulator's.

A round goes out as ordinary `train` messages, so that the user's own function trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp.strategy import FedAvg

from secede.errors import GuardError
from secede.federation.engine import Update
from secede.flower.client.mod import group
from secede.flower.protocol import arrays, messages
from secede.flower.rounds import supported_strategies
from secede.flower.rounds.grid import Awaiting, Only
from secede.flower.rounds.live import Came, LiveEngine
from secede.flower.rounds.recording import to_config
from secede.state import State


@dataclass(frozen=True, kw_only=True)
class FlowerEngine(LiveEngine):
    """An engine over the nodes of a grid; `clients` gives each its number."""

    strategy: FedAvg

    def _exchanged(
        self,
        state: State,
        at: Mapping[int, int],
        names: Mapping[int, str],
        *,
        phase: str,
        number: int,
    ) -> Came:
        # The strategy's own sampling would wait for ever if all of them went away by now.
        grid = Awaiting(Only(self.exchange.grid, at), self.gather_seconds, self.exchange.tell)
        # In the model's order, as while training: clients and mods may go by place.
        record = arrays.to_record({name: state[name] for name in self.like})
        config = to_config(self.config)
        made = supported_strategies.messages(
            self.strategy, record, config, grid, self.first_round + number
        )
        for message in made:
            serving = self.own.get(at[message.metadata.dst_node_id])
            message.metadata.group_id = group(phase, number)
            messages.tell_home(message, self.home, serving.digest if serving else None)
            message.metadata.ttl = self.round_seconds
        replies = self.exchange.send(made, names, self.round_seconds)
        updates, faults = list[Update](), {**replies.failed, **replies.lost}
        for node, reply in replies.sound.items():
            try:
                updates.append(self._update(at[node], reply))
            except GuardError as error:
                faults[node] = str(error)
        return Came(
            updates=updates,
            digests={update.client: update.digest for update in updates},
            faults=faults,
            up=sum(arrays.size_bytes(reply) for reply in replies.sound.values()),
            down=sum(arrays.size_bytes(message) for message in made),
        )

    def _update(self, client: int, message: Message) -> Update:
        state = supported_strategies.state_of(message, self.like)
        weight = supported_strategies.weight_of(message, self.strategy)
        if weight > self.heaviest.get(client, weight):
            raise GuardError(f"its weight {weight:g} is far beyond what was recorded of it")
        if state is None or not weight or weight != int(weight):
            raise GuardError(
                f"no update with one record of arrays and a whole {self.strategy.weighted_by_key!r}"
            )
        return Update(client, state, int(weight))
