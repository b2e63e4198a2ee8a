"""Who is there, who was: Flower's nodes as clients with one name each.

A node with a key (node authentication) is known by its key, one without by its name, one with
neither by its id, which a simulation draws anew in each run. A selector names its kind and must
match exactly one client; anything looser could erase the wrong one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from flwr.serverapp import Grid

from secede.erasure.types import is_name
from secede.errors import ConfigError
from secede.flower._flwr import NodeInfo

SELECTORS = ("name", "key", "node")


@dataclass(frozen=True, kw_only=True)
class Node:
    """A client as the federation knows it."""

    name: str
    node: int  # its id, which may change between runs where nodes have no keys
    key: str = ""  # SHA-256 of its public key, "" without node authentication

    @property
    def named(self) -> bool:
        """Whether somebody gave it its name; one without gets it from its id."""
        return self.name != f"node-{self.node}"

    @property
    def identity(self) -> str:
        """What it is known by: its key, else its name, else its id."""
        if self.key:
            return f"key:{self.key}"
        return f"name:{self.name}" if self.named else f"node:{self.node}"

    def same(self, other: Node) -> bool:
        """Return whether both are the same client."""
        return self.identity == other.identity

    def words(self) -> str:
        """Return all that it can be selected by."""
        key = f", key:{self.key}" if self.key else ""
        return f"name:{self.name}, node:{self.node}{key}"


def online_nodes(grid: Grid) -> tuple[Node, ...]:
    """Return the nodes that are there now, by name; two with one name are refused."""
    found = sorted((node_of(info) for info in grid.get_nodes()), key=lambda node: node.name)
    check_names(found)
    return tuple(found)


def node_of(info: NodeInfo) -> Node:
    """Return a node as the grid tells of it."""
    told = str(getattr(info, "name", "") or "")
    public = bytes(getattr(info, "public_key", b"") or b"")
    return Node(
        name=told if is_name(told) else f"node-{info.node_id}",
        node=int(info.node_id),
        key=hashlib.sha256(public).hexdigest() if public else "",
    )


def check_names(nodes: Iterable[Node]) -> None:
    """Raise if two different clients have the same name, or one has two."""
    names, identities = dict[str, Node](), dict[str, Node]()
    for node in nodes:
        other = names.setdefault(node.name, node)
        if not other.same(node):
            raise ConfigError(
                f"two clients are called {node.name!r} ({other.words()}; {node.words()}): a client "
                "with a new key needs a new name"
            )
        other = identities.setdefault(node.identity, node)
        if other.name != node.name:
            raise ConfigError(
                f"{other.name!r} and {node.name!r} are one client ({node.identity}): it must keep "
                "its first name"
            )


def select(selector: str, nodes: Sequence[Node]) -> Node:
    """Return the one client that `selector` names: `name:NAME`, `key:SHA-256` or `node:ID`."""
    kind, mark, value = selector.partition(":")
    listed = "; ".join(node.words() for node in nodes) or "none"
    if not mark or kind not in SELECTORS or not value:
        meant = selector in {node.name for node in nodes}
        hint = f"did you mean name:{selector}? " if meant else ""
        raise ConfigError(
            f"leaver {selector[:100]!r}: expected name:NAME, key:SHA-256 or node:ID; {hint}the "
            f"clients are {listed}"
        )
    found = [node for node in nodes if str(getattr(node, kind)) == value]
    if len(found) != 1:
        raise ConfigError(
            f"leaver {selector[:100]!r} matches {len(found)} clients, expected exactly one of "
            f"{listed}"
        )
    return found[0]


class Roster:
    """Who has contributed so far, and the names of those who were erased."""

    def __init__(self, known: Iterable[Node], erased: Collection[str]) -> None:
        self.erased = frozenset(erased)
        self._names, self._by_identity = set(self.erased), dict[str, Node]()
        self._nameless = False  # whether one that only its id tells was erased
        for node in known:
            self._names.add(node.name)
            self._by_identity[node.identity] = node
            self._nameless |= node.name in self.erased and node.identity.startswith("node:")

    def named(self, node: Node) -> Node:
        """Return a node under the name that it is recorded by."""
        first = self._by_identity.get(node.identity)
        return node if first is None else replace(node, name=first.name)

    def coming(self, there: Iterable[Node]) -> int:
        """Return how many take part at most: those who are there, and the known who may come.

        One that only its id tells comes under another next time.
        """
        here = {node.identity for node in there}
        known = {
            identity
            for identity, node in self._by_identity.items()
            if node.name not in self.erased and not identity.startswith("node:")
        }
        return len(here | known)

    def refusal(self, node: Node) -> str | None:
        """Return why a node must stay out; None if it may take part."""
        if node.identity in self._by_identity:
            return "it was erased" if self.named(node).name in self.erased else None
        if node.name in self._names:
            return "it has the name of another client: register it under a new one"
        if self._nameless and node.identity.startswith("node:"):
            return (
                "a client with neither name nor key was erased, and this may be it: give nodes "
                "names or keys"
            )
        return None
