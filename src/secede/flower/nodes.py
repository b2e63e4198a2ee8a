"""Who is there, who was: Flower's nodes as clients with one name each.

A node with a key (node authentication) is known by its key, one without by its name, one with
neither by its id, which a simulation draws anew in each run. A selector names its kind and must
match exactly one client; anything looser could erase the wrong one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flwr.serverapp import Grid

from secede.erasure.keys import is_name
from secede.errors import ConfigError

KINDS = ("name", "key", "node")


@dataclass(frozen=True, kw_only=True)
class Node:
    """A client as the federation knows it."""

    name: str
    node: int  # its id, which may change between runs where nodes have no keys
    key: str = ""  # SHA-256 of its public key, "" without node authentication

    def same(self, other: Node) -> bool:
        """Return whether both are the same client."""
        if self.key or other.key:
            return self.key == other.key
        named = not self.name.startswith("node-")
        return self.name == other.name if named else self.node == other.node

    def words(self) -> str:
        """Return all that it can be selected by."""
        key = f", key:{self.key}" if self.key else ""
        return f"name:{self.name}, node:{self.node}{key}"


def online(grid: Grid) -> tuple[Node, ...]:
    """Return the nodes that are there now, by name; two with one name are refused."""
    found = list[Node]()
    for info in grid.get_nodes():
        told = str(getattr(info, "name", "") or "")
        public = bytes(getattr(info, "public_key", b"") or b"")
        found.append(
            Node(
                name=told if is_name(told) else f"node-{info.node_id}",
                node=int(info.node_id),
                key=hashlib.sha256(public).hexdigest() if public else "",
            )
        )
    found.sort(key=lambda node: node.name)
    check_names(found)
    return tuple(found)


def check_names(nodes: Iterable[Node]) -> None:
    """Raise if two different clients have the same name."""
    first = dict[str, Node]()
    for node in nodes:
        other = first.setdefault(node.name, node)
        if not other.same(node):
            raise ConfigError(
                f"two clients are called {node.name!r} ({other.words()}; {node.words()}): a client "
                "with a new key needs a new name"
            )


def select(selector: str, nodes: Sequence[Node]) -> Node:
    """Return the one client that `selector` names: `name:NAME`, `key:SHA-256` or `node:ID`."""
    kind, mark, value = selector.partition(":")
    listed = "; ".join(node.words() for node in nodes) or "none"
    if not mark or kind not in KINDS or not value:
        raise ConfigError(
            f"leaver {selector[:100]!r}: expected name:NAME, key:SHA-256 or node:ID; the clients "
            f"are {listed}"
        )
    found = [node for node in nodes if str(getattr(node, kind)) == value]
    if len(found) != 1:
        raise ConfigError(
            f"leaver {selector[:100]!r} matches {len(found)} clients, expected exactly one of "
            f"{listed}"
        )
    return found[0]
