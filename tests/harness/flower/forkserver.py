"""A server that has imported Flower and torch, and forks: its programs start at once.

In its folder lies, under the name of each program, a shim that asks for a child of the server with
the shim's arguments, environment, folder and output. When the shim is killed, the child is killed.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLOWER = {
    "flower-superlink": "flwr.superlink.cli:flower_superlink",
    "flower-supernode": "flwr.supernode.cli:flower_supernode",
    "flower-superexec": "flwr.supercore.cli:flower_superexec",
    "flwr-serverapp": "flwr.superlink.cli:flwr_serverapp",
    "flwr-clientapp": "flwr.supernode.cli:flwr_clientapp",
    "flwr": "flwr.cli.app:app",
}
APPS = ("torch", "torch._dynamo", "secede.flower")  # what apps import
HEARTBEATS = {  # seconds; where Flower takes 30, so that a killed process counts as gone sooner
    "HEARTBEAT_DEFAULT_INTERVAL": 5,
    "HEARTBEAT_MIN_INTERVAL": 5,
    "HEARTBEAT_CALL_TIMEOUT": 2,
}
HURRY = 5  # times as often a SuperNode looks for messages
START_SECONDS, STOP_TIMEOUT = 180.0, 10.0


@contextmanager
def serving(
    environment: Mapping[str, str],
    log: Path,
    programs: Mapping[str, str] = FLOWER,
    apps: tuple[str, ...] = APPS,
) -> Iterator[Path]:
    """Have programs served; yield the folder that is to come first on the PATH."""
    with tempfile.TemporaryDirectory(prefix="forks-") as name, log.open("ab") as output:
        folder = Path(name)
        shim = Path(__file__).with_name("shim.py").read_text(encoding="utf-8")
        for program in programs:
            (folder / program).write_text(f"#!{sys.executable} -IS\n{shim}", encoding="utf-8")
            (folder / program).chmod(0o700)
        server = subprocess.Popen(  # its command names no program that a test may look for
            [sys.executable, "-u", "-P", __file__, name],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
        assert server.stdin is not None
        with server.stdin:
            server.stdin.write(json.dumps({"programs": dict(programs), "apps": apps}).encode())
        try:
            deadline = time.monotonic() + START_SECONDS
            while not (folder / "socket").exists():
                assert server.poll() is None, f"the fork server ended: see {log}"
                assert time.monotonic() < deadline, "the fork server does not start"
                time.sleep(0.05)
            yield folder
        finally:
            server.terminate()
            try:
                server.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                server.kill()
                raise


@dataclass(frozen=True)
class Request:
    """What a shim was called with."""

    argv: list[str]
    cwd: str
    environment: dict[str, str]
    descriptors: list[int]


@dataclass(frozen=True)
class Child:
    """A program that runs, and the shim that waits for it."""

    pid: int
    descriptor: int  # readable once it has ended
    shim: socket.socket


class Server:
    """Takes requests and forks."""

    def __init__(self, path: str) -> None:
        self.children: set[Child] = set()
        self.selector = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(f"{path}.new")
        self.listener.listen(64)
        self.selector.register(self.listener, selectors.EVENT_READ)
        os.rename(f"{path}.new", path)

    def serve(self) -> Request:
        """Return only in a child, with what it was asked for."""
        try:
            while True:
                for key, _ in self.selector.select():
                    if key.data is not None:
                        self.end(key.data)
                    elif (found := self.accept()) is not None:
                        return found
        except SystemExit:
            for child in list(self.children):
                self.end(child)
            raise

    def accept(self) -> Request | None:
        """Fork for the next request; return it in the child."""
        shim, _ = self.listener.accept()
        if (request := receive(shim)) is None:
            shim.close()
            return None
        if (pid := os.fork()) == 0:
            shim.close()
            self.forget()
            return request
        for descriptor in request.descriptors:
            os.close(descriptor)
        child = Child(pid, os.pidfd_open(pid), shim)
        self.children.add(child)
        self.selector.register(child.shim, selectors.EVENT_READ, child)
        self.selector.register(child.descriptor, selectors.EVENT_READ, child)
        return None

    def forget(self) -> None:
        """Close in a child what is the server's.

        Each by its owner: an object that is collected after its descriptor was closed behind its
        back closes whatever has that number by then, such as a module that is being imported.
        """
        self.selector.close()
        self.listener.close()
        for child in self.children:
            child.shim.close()
            os.close(child.descriptor)
        self.children.clear()

    def end(self, child: Child) -> None:
        """Kill a child whose shim is gone, or tell the shim how the child ended."""
        if child not in self.children:
            return
        self.children.remove(child)
        os.kill(child.pid, signal.SIGKILL)  # nothing happens if it has ended
        code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        with suppress(OSError):
            child.shim.sendall(bytes([code if code >= 0 else 128 - code]))
        self.selector.unregister(child.shim)
        self.selector.unregister(child.descriptor)
        child.shim.close()
        os.close(child.descriptor)


def receive(shim: socket.socket) -> Request | None:
    """Read a request; None if the shim was killed meanwhile."""
    head, descriptors, _, _ = socket.recv_fds(shim, 8, 3)
    message, size = b"", int.from_bytes(head, "big")
    while len(message) < size:
        if not (part := shim.recv(size - len(message))):
            break
        message += part
    if len(head) < 8 or len(message) < size:
        for descriptor in descriptors:
            os.close(descriptor)
        return None
    return Request(**json.loads(message), descriptors=list(descriptors))


def become(request: Request) -> None:
    """Make a child of the server into the process that was asked for."""
    for target, descriptor in enumerate(request.descriptors):
        os.dup2(descriptor, target)
    for descriptor in request.descriptors:
        if descriptor > 2:
            os.close(descriptor)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv[:] = request.argv
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # each process draws its own


def hurry() -> None:
    """Shorten Flower's waits in all that is forked; they stay in proportion."""
    constants = importlib.import_module("flwr.common.constant")
    assert all(hasattr(constants, name) for name in HEARTBEATS), "Flower calls them otherwise"
    for name, module in list(sys.modules.items()):
        for constant, seconds in HEARTBEATS.items():
            if name.startswith("flwr.") and hasattr(module, constant):
                setattr(module, constant, seconds)
    supernode: Any = importlib.import_module("flwr.supernode.start_client_internal")
    supernode.time = Hurried()


class Hurried:
    """The module time, with shorter sleeps."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / HURRY)


def load(reference: str) -> Callable[[], int | None]:
    """Return the function that a program calls."""
    module, _, name = reference.partition(":")
    found: Callable[[], int | None] = getattr(importlib.import_module(module), name)
    return found


def main() -> None:
    folder, told = sys.argv[1], json.load(sys.stdin)
    programs = {name: load(reference) for name, reference in told["programs"].items()}
    for app in told["apps"]:
        module = importlib.import_module(app)
        for name in getattr(module, "__all__", ()):
            getattr(module, name)  # where a package imports its parts on demand
    if "flwr" in sys.modules:
        hurry()
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{len(threads)} threads: a child would have only one of them"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    gc.freeze()
    request = Server(os.path.join(folder, "socket")).serve()
    become(request)
    leave(programs[os.path.basename(sys.argv[0])])


def leave(program: Callable[[], int | None]) -> None:
    """Run a program and end as it does, without tidying up torch's libraries."""
    code: Any = 1
    try:
        code = program()
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
