"""Who may take part in a round: all but the erased, each under the name that it is recorded by.

A client is known by its identity (nodes.py), so that one with a key stays itself, and stays out
once it was erased, whatever it is called by then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from secede.flower.protocol.nodes import Node


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
