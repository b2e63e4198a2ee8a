"""A job in one process: real grid, controller and client scripts, tasks copied as on a wire.

Sites can be offline, silent, fail, or send something else. NVFlare itself is in the slow tests.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from harness.flower.repeatable import CLOCK
from harness.flower.small import SEED
from harness.lines import Lines
from harness.nvflare.small import MODEL, OPTIONS, SITES, erasing, serve
from secede.nvflare.controller import FederationController, Store
from secede.nvflare.tasks import TaskGrid

Change = Callable[[FLModel], FLModel]


@dataclass
class Site:
    """A client: how it behaves, and which tasks it was given."""

    name: str
    online: bool = True
    silent: bool = False
    code: str = ReturnCode.OK
    change: Change | None = None  # what a filter does to its results
    seen: list[str] = field(default_factory=list)


class Flare:
    """NVFlare's functions as a client's script finds them, for one task at a time."""

    def __init__(self) -> None:
        self.site, self.model = "", None
        self.sent: FLModel | None = None

    def get_site_name(self) -> str:
        return self.site

    def receive(self, timeout: float | None = None) -> FLModel | None:
        found, self.model = self.model, None
        return found

    def send(self, model: FLModel) -> None:
        self.sent = model


class Job:
    """Sites in one folder, and what a controller needs of NVFlare to reach them."""

    def __init__(self, folder: Path, flare: Flare) -> None:
        self.folder, self.told, self._flare = folder, Lines(), flare
        self.sites = {name: Site(name) for name in SITES}
        self.tasks, self.abort = list[Task](), Signal()
        self.consent = True  # of all sites' owners to a local step

    def site(self, name: str) -> Site:
        return self.sites[name]

    @property
    def store(self) -> Store:
        from harness.flower.small import load_model

        return Store(self.folder / "home", load_model)

    def grid(self) -> TaskGrid:
        return TaskGrid(self, self, self.abort)

    def run(self, **settings: Any) -> None:
        """Run a controller's work to its end."""
        given = {
            "home": str(self.folder / "home"),
            "model": MODEL,
            "seed": SEED,
            "online_timeout": 0.3,
            "erasure_online_timeout": 0.2,
            "round_timeout": 0.4,
            "pause": 0.01,
            **settings,
        }
        FederationController(**given).work(self.grid())

    def erase(self, leaver: str = "name:site-1", **options: Any) -> None:
        waits = {"leaver_timeout": 0.3, "client_timeout": 0.3}
        self.run(leaver=leaver, trigger="other", options={**OPTIONS, **waits, **options})

    # A controller's side of NVFlare, and its context's

    def broadcast(self, task: Task, fl_ctx: Any, targets: Sequence[str], min_responses: int) -> Any:
        self.tasks.append(task)
        (name,) = targets
        site = self.sites[name]
        site.seen.append(task.name)
        assert site.online
        if site.silent:
            return
        given = ClientTask(SimpleNamespace(name=name), task)
        with CLOCK.standing_still():
            given.result = self._do(site, copy.deepcopy(task.data))
        given.result_received_time = 1.0
        task.client_tasks.append(given)
        task.result_received_cb(given, fl_ctx)
        self.end(task, TaskCompletionStatus.OK)

    def end(self, task: Task, status: TaskCompletionStatus) -> None:
        task.completion_status = status
        task.task_done_cb(task, self)

    def get_client_disconnect_time(self, name: str) -> float | None:
        return None if self.sites[name].online else 1.0

    def get_engine(self) -> Any:
        clients = [SimpleNamespace(name=name) for name in self.sites]
        return SimpleNamespace(get_clients=lambda: clients)

    def get_job_id(self) -> str:
        return "job"

    def _do(self, site: Site, data: Any) -> Any:
        if site.code != ReturnCode.OK:
            return make_reply(site.code)
        self._flare.site, self._flare.model = site.name, FLModelUtils.from_shareable(data)
        serve(erasing(self.folder / "disks", consent=self.consent), site.name)
        assert self._flare.sent is not None
        sent = site.change(self._flare.sent) if site.change else self._flare.sent
        return copy.deepcopy(FLModelUtils.to_shareable(sent))


def make(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    from secede.nvflare import client

    flare = Flare()
    monkeypatch.setattr(client, "flare", flare)
    return Job(folder, flare)
