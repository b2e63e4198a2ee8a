"""An engine inside of NVFlare's simulator, as a test sees it."""

from __future__ import annotations

import pickle
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from harness.nvflare.small import start, stop
from harness.paths import TESTS
from secede.federation.engine import ClientSide, Cost, ReplyT, RoundReply
from secede.state import State

SECONDS = 300.0


@dataclass(frozen=True)
class Remote:
    """The two methods of an engine, called over a socket."""

    connection: Connection

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        found = self.call("train_round", state, clients, phase=phase, number=number)
        return cast("RoundReply", found)

    def ask(
        self,
        client: int,
        task: Callable[[ClientSide], ReplyT],
        *,
        global_state: State,
        number: int = 0,
    ) -> tuple[ReplyT, Cost]:
        found = self.call("ask", client, task, global_state=global_state, number=number)
        return cast("tuple[ReplyT, Cost]", found)

    def call(self, method: str, *arguments: Any, **options: Any) -> object:
        # Not `send`, which would hand tensors over by reference to this process.
        self.connection.send_bytes(pickle.dumps((method, arguments, options)))
        if not self.connection.poll(SECONDS):
            raise TimeoutError(f"no answer to {method} for {SECONDS:g} seconds")
        found, error = pickle.loads(self.connection.recv_bytes())
        if error is not None:
            raise error
        return cast("object", found)


@contextmanager
def simulated() -> Iterator[Callable[[], Remote]]:
    """Run a job; what is given makes a new engine in it, with clients that remember nothing."""
    folder = Path(tempfile.mkdtemp(prefix="flare-"))  # sockets' paths must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
        listening.listen(1)
        command = ("-m", "harness.nvflare.job", str(folder), str(folder / "socket"))
        process = start(folder, *command, PYTHONPATH=str(TESTS))
        try:
            remote = Remote(_accept(listening, process.poll, folder))

            def renew() -> Remote:
                shutil.rmtree(folder / "disks", ignore_errors=True)
                remote.call("renew")
                return remote

            yield renew
            remote.connection.close()
            assert process.wait(SECONDS) == 0
        finally:
            stop(process)
            shutil.rmtree(folder, ignore_errors=True)


def _accept(listening: socket.socket, ended: Callable[[], object], folder: Path) -> Connection:
    listening.settimeout(1.0)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and ended() is None:
        with suppress(TimeoutError):
            made, _ = listening.accept()
            made.setblocking(True)
            return Connection(made.detach())
    log = (folder / "job.log").read_text(errors="replace")[-2000:]
    raise TimeoutError(f"the job did not start:\n{log}")
