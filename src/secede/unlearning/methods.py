"""The table of methods: what each is, where it runs and what it needs. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What must be there for a method to run."""

    leaver_online: bool = False
    history: bool = False
    server_data: bool = False
    single_updates: bool = False  # so it does not work under secure aggregation

    def words(self) -> tuple[str, ...]:
        """Return what is needed, in words."""
        wanted = {
            "the leaver online": self.leaver_online,
            "stored history": self.history,
            "data at the server": self.server_data,
            "single updates": self.single_updates,
        }
        return tuple(word for word, needed in wanted.items() if needed)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One method: registry name, where it runs, one line about it, its paper and its needs."""

    name: str
    runs_at: Literal["leaver", "server"]
    summary: str
    source: str
    needs: Needs


METHODS = {
    entry.name: entry
    for entry in (
        Entry(
            name="projected-ascent",
            runs_at="leaver",
            summary="climb the leaver's loss in a ball around the others' mean, then post-train",
            source="Halimi et al. 2022, Algorithm 1",
            needs=Needs(leaver_online=True),
        ),
        Entry(
            name="reference",
            runs_at="leaver",
            summary="the others' mean, then post-train (ablation: the ascent left out)",
            source="Halimi et al. 2022, w_ref",
            needs=Needs(leaver_online=True),
        ),
        Entry(
            name="fine-tune",
            runs_at="server",
            summary="post-train the global model without the leaver (ablation: forgets little)",
            source="baseline",
            needs=Needs(),
        ),
        Entry(
            name="retrain",
            runs_at="server",
            summary="train from scratch without the leaver: exact and expensive",
            source="gold standard",
            needs=Needs(),
        ),
    )
}
