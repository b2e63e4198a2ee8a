"""What secede adds to Flower: rounds without and with it in turns, one erasure, bytes counted.

In one process, in Flower's simulation, and on real processes with TLS and node authentication; the
same app each time. Our share is measured directly: the time inside our own code at the server and,
where clients work side by side, at one client; one after the other, at all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import command
from benchmarks.table import significant, table
from benchmarks.timing import Timing
from secede.flower.deploy.project import QUIET

APP = Path(__file__).parent / "flowerapp"
WAYS = ("in-process", "simulation", "deployment")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the ways that are asked for."""
    parser = command.parser("flower", __doc__, "--ways in-process,simulation --repeats 5")
    parser.add_argument("--clients", type=command.positive, default=5, metavar="N")
    parser.add_argument(
        "--rounds",
        type=command.positive,
        default=3,
        metavar="N",
        help="of a training that is timed",
    )
    parser.add_argument(
        "--ways", type=_ways, default=WAYS[:1], metavar="A,B", help=f"of {', '.join(WAYS)}"
    )
    setting, options = command.settle(parser, argv)
    os.environ.update(QUIET)
    sys.path.insert(0, str(APP))
    images = max(1, setting.images // options.clients)
    found: dict[str, dict[str, Any]] = {}
    for way in options.ways:
        command.say(f"measuring {way}: {options.clients} clients of {images} images each")
        with tempfile.TemporaryDirectory(prefix="secede-") as folder:
            config: dict[str, Any] = {
                "repeats": setting.repeats,
                "rounds": options.rounds,
                "images": images,
                "home": f"{folder}/home",
                "result": f"{folder}/result.json",
            }
            _RUN[way](Path(folder), options.clients, config)
            found[way] = json.loads(Path(config["result"]).read_text())
    timings = {
        f"{way} {name}": Timing(tuple(row[name] for row in told["rounds"]))
        for way, told in found.items()
        for name in ("plain", "ours")
    }
    command.publish(setting, [_rounds(found), _erasures(found)], timings)


def _in_process(folder: Path, clients: int, config: dict[str, Any]) -> None:
    from flowerapp import client_app, server_app  # type: ignore[import-not-found]
    from flwr.app import Context, RecordDict

    from benchmarks.inprocess import InProcess

    grid = InProcess(client_app.app, clients, folder / "sites", config)
    server_app.main(grid, Context(1, 1, {}, RecordDict(), config))


def _simulation(folder: Path, clients: int, config: dict[str, Any]) -> None:
    from flowerapp import client_app, server_app
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    os.environ["FLWR_HOME"] = str(folder / "flower")
    os.environ["SECEDE_FOLDER"] = str(folder / "sites")
    os.environ["SECEDE_IMAGES"] = str(config["images"])
    os.environ["PYTHONPATH"] = str(APP)
    app = ServerApp()

    @app.main()
    def configured(grid: Grid, context: Context) -> None:
        context.run_config = config
        server_app.main(grid, context)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0}}
    run_simulation(app, client_app.app, num_supernodes=clients, backend_config=resources)  # type: ignore[arg-type]


def _deployment(folder: Path, clients: int, config: dict[str, Any]) -> None:
    from secede import logs
    from secede.flower.deploy import runs, supervisor
    from secede.flower.deploy.scaffold import write_project

    project = write_project(folder / "p", sites=[f"site-{n}" for n in range(1, clients + 1)])
    shutil.rmtree(project.app)
    shutil.copytree(APP, project.app, ignore=shutil.ignore_patterns("__pycache__"))
    logs.add(logs.LineHandler(command.say))
    try:
        project = supervisor.up(project)
        runs.run(project, config, timeout=3600, show=command.say)
    finally:
        supervisor.down(project)


_RUN = {"in-process": _in_process, "simulation": _simulation, "deployment": _deployment}


def _rounds(found: dict[str, dict[str, Any]]) -> str:
    rows = []
    for way, told in found.items():
        rows.append([way, *_row(way, told, "")])
        if way == "in-process":  # elsewhere clients are other processes
            rows.append([f"{way}, processor time", *_row(way, told, "-cpu")])
    columns = (
        *("", "plain, ms a round", "with secede", "ratio (quartiles)", "our own code, ms"),
        "our share (quartiles)",
        *("plain, MB a round", "with secede"),
    )
    return table(columns, rows)


def _row(way: str, told: dict[str, Any], kind: str) -> list[str]:
    each = told["rounds"]
    turns = {"in-process": told["clients"], "simulation": _turns(told["clients"])}.get(way, 1)
    own = [row[f"server-own{kind}"] + turns * row[f"client-own{kind}"] for row in each]
    shares = [mine / row[f"ours{kind}"] for mine, row in zip(own, each, strict=True)]
    ratios = [row[f"ours{kind}"] / row[f"plain{kind}"] for row in each]
    return [
        _milliseconds(row[f"plain{kind}"] for row in each),
        _milliseconds(row[f"ours{kind}"] for row in each),
        _spread(ratios, ".2f", "×"),
        _milliseconds(own),
        _spread([100 * share for share in shares], ".1f", "%"),
        f"{each[0]['plain-bytes'] / 1e6:.1f}",
        f"{each[0]['ours-bytes'] / 1e6:.1f}",
    ]


def _erasures(found: dict[str, dict[str, Any]]) -> str:
    rows = []
    for way, told in found.items():
        model = told["model-bytes"]

        def models(kind: str, told: dict[str, Any] = told, model: int = model) -> str:
            count, down, up = told["erase-by-type"].get(kind, [0, 0, 0])
            return f"{count}: {down / model:.2f} down, {up / model:.2f} up"

        step = models("train.unlearn")
        cells = [step, models("train"), models("query.secede")]
        for failure in told["erase-failures"]:
            command.say(f"{way}: {failure}")
        rows.append([way, f"{told['erase']:.1f}", told["erase-state"], *cells])
    columns = ("", "s", "ended", "local step, models sent", "post-training", "counting")
    return table(columns, rows)


def _spread(values: Sequence[float], form: str, unit: str) -> str:
    """Return median and quartiles."""
    several = values if len(values) > 1 else [*values, *values]
    low, middle, high = statistics.quantiles(several, n=4, method="inclusive")
    return f"{middle:{form}}{unit} ({low:{form}} to {high:{form}})"


def _turns(clients: int) -> int:
    """Return how many clients a core of the simulation computes one after the other."""
    return -(-clients // (os.cpu_count() or 1))


def _milliseconds(values: Any) -> str:
    return significant(1e3 * statistics.median(values))


def _ways(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    for way in chosen:
        if way not in WAYS:
            raise argparse.ArgumentTypeError(f"no way {way!r}: expected some of {', '.join(WAYS)}")
    return chosen


if __name__ == "__main__":
    main()
