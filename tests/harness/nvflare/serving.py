"""A controller that does what a test tells it, over a socket: an engine inside of a job."""

from __future__ import annotations

import pickle
import socket
from multiprocessing.connection import Connection

from flwr.serverapp import Grid

from harness.flower.small import load_model, strategy
from secede.errors import SecedeError
from secede.flower.protocol.arrays import template_of
from secede.flower.protocol.nodes import online_nodes
from secede.flower.rounds.engine import FlowerEngine
from secede.flower.rounds.grid import Transport
from secede.nvflare.controller import FederationController


class Serving(FederationController):
    """Serves the one who listens at `socket_path`, until it hangs up."""

    def __init__(self, socket_path: str) -> None:
        super().__init__(home="", model="")
        self.socket_path = socket_path

    def work(self, grid: Grid) -> None:
        with socket.socket(socket.AF_UNIX) as made:
            made.connect(self.socket_path)
            connection = Connection(made.detach())
        engine = _engine(grid)
        while True:
            try:
                method, arguments, options = pickle.loads(connection.recv_bytes())
            except EOFError:
                return
            found, failed = None, None
            try:
                if method == "renew":
                    engine = _engine(grid)
                else:
                    found = getattr(engine, method)(*arguments, **options)
            except SecedeError as error:
                failed = error
            connection.send_bytes(pickle.dumps((found, failed)))


def _engine(grid: Grid) -> FlowerEngine:
    return FlowerEngine(
        transport=Transport(grid=grid, pause=0.05),
        strategy=strategy(),
        clients=dict(enumerate(online_nodes(grid))),
        template=template_of(load_model()),
        round_timeout=240.0,
        online_timeout=10.0,
    )
