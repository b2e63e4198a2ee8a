"""A grid whose server is killed in the middle of a training."""

from __future__ import annotations

from flwr.app import Message

from harness.flower.inprocess import InProcess
from harness.flower.small import Federation


def dying(federation: Federation, number: int, *, empty: int = 0) -> InProcess:
    """Return a grid that is killed in a round, after one in which nobody answers."""

    def die(message: Message) -> None:
        told = message.content["config"]["server-round"]
        for site in federation.sites:
            site.vanishes = told == empty
        if told == number:
            raise KeyboardInterrupt

    grid = federation.grid()
    grid.before = die
    return grid
