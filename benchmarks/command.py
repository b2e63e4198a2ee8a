"""What all benchmarks share on the command line: options, set-up, and how results come out."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from benchmarks.timing import Timing
from secede.errors import ConfigError
from secede.federation import executors
from secede.federation.training import PRECISIONS, Precision
from secede.federation.training import check_precision as check

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The options that every benchmark has, with no default left open."""

    device: str
    precision: Precision
    executors: tuple[str, ...]  # besides the plain loop, which is always there
    repeats: int
    images: int
    quick: bool
    json: Path | None
    command: str

    def pick(self, *, quick: ValueT, cpu: ValueT, cuda: ValueT) -> ValueT:
        """Return the default that fits this run."""
        if self.quick:
            return quick
        return cuda if self.device == "cuda" else cpu


def parser(name: str, about: str | None, example: str) -> argparse.ArgumentParser:
    """Return a parser with the shared options."""
    found = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=about,
        epilog=f"example: python -m benchmarks.{name} {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU if there is one")
    found.add_argument("--precision", choices=PRECISIONS, default="float32")
    found.add_argument(
        "--executors",
        type=_names,
        metavar="A,B",
        help=f"of {', '.join((executors.AUTO, *executors.NAMES))}; loop is always measured",
    )
    found.add_argument("--repeats", type=positive, metavar="N", help="timed turns of each")
    found.add_argument("--images", type=positive, metavar="N", help="in the whole federation")
    found.add_argument("--quick", action="store_true", help="a run of seconds, to see that it runs")
    found.add_argument("--json", type=Path, metavar="FILE", help="also write medians and quartiles")
    return found


def settle(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    *,
    executors: tuple[str, ...] = ("fused", "graphs", "stacked"),
) -> tuple[Setting, argparse.Namespace]:
    """Read the command line and set torch up as secede's own runs do.

    `executors` are the defaults on a GPU; on a CPU it is the CPU's.
    """
    options = parser.parse_args(argv)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda, but torch finds no GPU here")
    try:
        check(options.precision, device)
    except ConfigError as error:
        parser.error(str(error))
    on_gpu = device == "cuda"
    names = options.executors or (executors if on_gpu else ("cpu",))
    told = sys.argv[1:] if argv is None else argv
    setting = Setting(
        device=device,
        precision=options.precision,
        executors=tuple(name for name in names if name != "loop"),
        repeats=options.repeats or (1 if options.quick else 5),
        images=options.images or (100 if options.quick else 60_000 if on_gpu else 6_000),
        quick=options.quick,
        json=options.json,
        command=" ".join([parser.prog, *map(shlex.quote, told)]),
    )
    _make_deterministic(setting.precision)
    return setting, options


def positive(text: str) -> int:
    """Return a whole number above zero."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a number above zero, got {text}")
    return value


def positives(text: str) -> tuple[int, ...]:
    """Return whole numbers above zero, given with commas between them."""
    return tuple(positive(part) for part in text.split(","))


def say(line: str) -> None:
    """Tell how it goes, apart from the result."""
    print(line, file=sys.stderr, flush=True)


def publish(setting: Setting, tables: Sequence[str], timings: Mapping[str, Timing]) -> None:
    """Print the header and the Markdown tables; write the JSON file if one is wanted."""
    header = {
        "device": device_name(setting.device),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "precision": setting.precision,
        "command": setting.command,
    }
    print(
        f"{header['device']}, torch {header['torch']}, {header['threads']} threads, "
        f"{header['precision']}, medians of {setting.repeats}: `{header['command']}`"
    )
    for table in tables:
        print(f"\n{table}")
    if setting.json is not None:
        found = {name: timing.as_dict() for name, timing in timings.items()}
        content = json.dumps({**header, "timings": found}, indent=2) + "\n"
        setting.json.write_text(content)


def device_name(device: str) -> str:
    """Return the device's name as its maker gives it."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        try:
            executors.check_name(name)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return names


def _make_deterministic(precision: Precision) -> None:
    # As experiments.setup does it, which cannot be imported without pydantic.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
