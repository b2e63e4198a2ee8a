"""Five hospitals train, one leaves, a receipt remains: in a simulation, or as real processes.

python examples/hospitals/run.py simulation
python examples/hospitals/run.py processes
"""

import argparse
import os
import shutil
import sys
import time
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def main() -> None:
    """Run one of the two ways and say where receipt and page are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("way", choices=("simulation", "processes"))
    parser.add_argument("--folder", type=Path, help="a new folder for all that is kept")
    parser.add_argument("--rounds", type=int, help="of training")
    chosen = parser.parse_args()
    folder = (chosen.folder or Path(f"hospitals-{chosen.way}")).absolute()
    if folder.exists():
        sys.exit(f"{folder} exists: remove it, or take another --folder")
    if chosen.way == "simulation" and find_spec("ray") is None:
        # Flower would say so only after it had made the folder.
        sys.exit(
            "a simulation needs Ray, which is not installed: "
            "pip install 'flwr[simulation]>=1.41,<1.42'"
        )
    os.environ.update(QUIET)  # before Flower is imported
    sys.path.insert(0, str(HERE))
    begun = time.monotonic()
    if chosen.way == "simulation":
        simulate(folder, chosen.rounds or 5)
    else:
        deploy(folder, chosen.rounds or 3)
    show(folder / "home", time.monotonic() - begun)


def simulate(folder: Path, rounds: int) -> None:
    """Train and erase in one run of Flower's simulation."""
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation
    from hospitals import client_app, server_app, task

    os.environ["FLWR_HOME"] = str(folder / "flower")
    os.environ["SECEDE_FOLDER"] = str(folder / "sites")  # where simulated clients keep updates
    os.environ["PYTHONPATH"] = str(HERE)  # for the workers
    leaver = f"name:{task.LEAVER}"
    config = {
        "num-server-rounds": rounds,
        "erasure.home": str(folder / "home"),
        "erasure.leaver": leaver,
        "erasure.trigger": "contract-ended",
    }
    app = ServerApp()

    @app.main()
    def configured(grid: Grid, context: Context) -> None:
        context.run_config = config
        server_app.main(grid, context)

    run_simulation(
        app,
        client_app.app,
        num_supernodes=len(task.SITES),
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}},
    )


def deploy(folder: Path, rounds: int) -> None:
    """Train in one run on real processes, restart them, and erase in a second run."""
    from hospitals import task

    from secede.flower.deploy import runs, supervisor
    from secede.flower.deploy.scaffold import write_project

    project = write_project(folder, sites=task.SITES)
    shutil.rmtree(project.app)
    unwanted = shutil.ignore_patterns("__pycache__", "run.py", "README.md")
    shutil.copytree(HERE, project.app, ignore=unwanted)

    def run(changes: runs.Config) -> None:
        home = {"erasure.home": str(project.home)}
        runs.run(project, {**home, **changes}, timeout=1800, show=print)

    try:
        project = supervisor.up(project)
        run({"num-server-rounds": rounds})
        supervisor.down(project)
        project = supervisor.up(project)
        run({"num-server-rounds": 0, "erasure.leaver": f"name:{task.LEAVER}"})
    finally:
        supervisor.down(project)


def show(home: Path, seconds: float) -> None:
    """Verify the receipt and say where things are."""
    from hospitals.task import LEAVER

    from secede.flower.deploy import server_home

    erased = server_home.verified_result(home, f"name:{LEAVER}")
    print(f"{erased.client} is erased by {erased.method} ({erased.rung}), {seconds:.0f} seconds")
    print(f"{erased.receipt}  receipt, verified")
    print(f"{erased.page}  its page")


if __name__ == "__main__":
    main()
