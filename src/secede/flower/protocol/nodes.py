"""Flower's nodes as clients with one name each, and selectors of a client.

A node that was registered by name (node authentication) is identified by its key, or by its name if
it has none, one without a name by its id. Its key says nothing: Flower gives a node that nobody
registered a new one whenever it starts. A selector says what it selects by and
must match exactly one client: anything looser could erase the wrong one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from flwr.serverapp import Grid

from secede.erasure import is_name
from secede.errors import ConfigError
from secede.flower._flwr import NodeInfo
from secede.text import list_first

SELECTORS = ("name", "key", "node")


@dataclass(frozen=True, kw_only=True)
class Node:
    """A client's node."""

    name: str
    node: int  # its id, which changes between runs where nodes have no keys
    key: str = ""  # SHA-256 of its public key, "" unless it was registered by name

    @property
    def named(self) -> bool:
        """Whether the node has a name of its own, not one made of its id."""
        return self.name != f"node-{self.node}"

    @property
    def identity(self) -> str:
        """The key, else the name, else the id: whatever identifies the client across runs."""
        if self.key:
            return f"key:{self.key}"
        return f"name:{self.name}" if self.named else f"node:{self.node}"

    def same(self, other: Node) -> bool:
        """Return whether both are nodes of the same client."""
        return self.identity == other.identity

    def selectors(self) -> str:
        """Return every selector of the client, for messages."""
        key = f", key:{self.key}" if self.key else ""
        return f"name:{self.name}, node:{self.node}{key}"


def online_nodes(grid: Grid) -> tuple[Node, ...]:
    """Return the nodes that are online, sorted by name; ConfigError if two share a name."""
    nodes = sorted((node_of(info) for info in grid.get_nodes()), key=lambda node: node.name)
    check_names(nodes)
    return tuple(nodes)


def node_of(info: NodeInfo) -> Node:
    """Return the node that a grid describes."""
    name = str(getattr(info, "name", "") or "")
    public = bytes(getattr(info, "public_key", b"") or b"")
    return Node(
        name=name if is_name(name) else f"node-{info.node_id}",
        node=int(info.node_id),
        key=hashlib.sha256(public).hexdigest() if public and name else "",
    )


def check_names(nodes: Iterable[Node]) -> None:
    """Raise if two clients have the same name, or one client has two names."""
    names, identities = dict[str, Node](), dict[str, Node]()
    for node in nodes:
        other = names.setdefault(node.name, node)
        if not other.same(node):
            raise ConfigError(
                f"two clients are called {node.name!r} ({other.selectors()}; {node.selectors()}): "
                "a client with a new key needs a new name"
            )
        other = identities.setdefault(node.identity, node)
        if other.name != node.name:
            raise ConfigError(
                f"{other.name!r} and {node.name!r} are one client ({node.identity}): it must keep "
                "its first name"
            )


def select(selector: str, nodes: Sequence[Node]) -> Node:
    """Return the one client that `selector` names: `name:NAME`, `key:SHA-256` or `node:ID`."""
    kind, colon, value = selector.partition(":")
    listed = "; ".join(node.selectors() for node in nodes) or "none"
    if not colon or kind not in SELECTORS or not value:
        is_name_alone = selector in {node.name for node in nodes}
        hint = f"did you mean name:{selector}? " if is_name_alone else ""
        raise ConfigError(
            f"leaver {selector[:100]!r}: expected name:NAME, key:SHA-256 or node:ID; {hint}the "
            f"clients are {listed}"
        )
    matches = [node for node in nodes if str(getattr(node, kind)) == value]
    if len(matches) != 1:
        raise ConfigError(
            f"leaver {selector[:100]!r} matches {len(matches)} clients, expected exactly one of "
            f"{listed}"
        )
    return matches[0]


class Roster:
    """The clients that contributed so far, and the names of the erased ones."""

    def __init__(self, known: Iterable[Node], erased: Collection[str]) -> None:
        self.erased = frozenset(erased)
        self._names, self._by_identity = set(self.erased), dict[str, Node]()
        for node in known:
            self._names.add(node.name)
            self._by_identity[node.identity] = node

    def named(self, node: Node) -> Node:
        """Return a node under the name that its client is recorded by."""
        first = self._by_identity.get(node.identity)
        return node if first is None else replace(node, name=first.name)

    def max_participants(self, online: Iterable[Node]) -> int:
        """Return how many clients can take part: those online, and the recorded ones that may come.

        A client with neither name nor key comes back under another id.
        """
        present = {node.identity for node in online}
        known = {
            identity
            for identity, node in self._by_identity.items()
            if node.name not in self.erased and not identity.startswith("node:")
        }
        return len(present | known)

    def refusal(self, node: Node) -> str | None:
        """Return why a node is not admitted; None if it is."""
        if node.identity in self._by_identity:
            return "it was erased" if self.named(node).name in self.erased else None
        if node.name in self._names:
            return "it has the name of another client: register it under a new one"
        if self.erased and node.identity.startswith("node:"):
            return (
                f"it has neither name nor key that it was registered by, and may be "
                f"{list_first(sorted(self.erased), 3)}, which was erased: give nodes names or keys "
                "(secede flower init, or flwr supernode register --name)"
            )
        return None
