"""Runs the small federation's job, which serves a test, in NVFlare's simulator: FOLDER SOCKET."""

from __future__ import annotations

import sys
from pathlib import Path

from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner

from harness.nvflare.serving import Serving
from harness.nvflare.small import SITES

if __name__ == "__main__":
    folder, socket = sys.argv[1:]
    job = FedJob(name="serving")
    job.set_app_packages(["secede", "flare", "flower"])
    job.to_server(Serving(socket))
    job.to_server({"server": {"task_request_interval": 0.05}})
    script = str(Path(__file__).with_name("site.py"))
    for site in SITES:
        job.to(ScriptRunner(script=script, script_args=f"{folder}/disks"), site)
    sys.exit(job.simulator_run(f"{folder}/workspace", threads=len(SITES)))
