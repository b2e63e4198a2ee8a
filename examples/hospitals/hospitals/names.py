"""Names for a simulation's nodes, which have none: each is asked once who it is."""

from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from secede.flower.rounds.grid import ForwardingGrid


class Named(ForwardingGrid):
    """A grid whose nodes have the names that they tell; those with a name keep it."""

    def __init__(self, inner: Grid) -> None:
        super().__init__(inner)
        self._names: dict[int, str] = {}

    def get_nodes(self) -> Iterable[Any]:
        """Return the nodes, with names."""
        found = list(self.inner.get_nodes())
        unknown = [n for n in found if not n.name and n.node_id not in self._names]
        asked = [Message(RecordDict(), n.node_id, "query.name") for n in unknown]
        for reply in self.inner.send_and_receive(asked, timeout=120) if asked else ():
            if reply.has_content():
                told = reply.content.config_records["told"]["name"]
                self._names[reply.metadata.src_node_id] = str(told)
        for node in found:
            node.name = node.name or self._names.get(node.node_id, "")
        return found
