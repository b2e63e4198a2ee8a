"""Write `constraints*.txt`: all that `make` installs, by version and SHA-256.

    .venv/bin/python .ci/constraints.py [--upgrade | --upgrade-package NAME]

Versions stay as they are where pyproject.toml allows it, unless an option for uv says otherwise.
The hashes are those of each file on the package index: of each Python and system.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
LIBRARY, TORCH, CPU, DEV = (
    ROOT / f"constraints{part}.txt" for part in ("", "-torch", "-torch-cpu", "-dev")
)
HEADS = {
    LIBRARY: "what secede runs on, and what builds it",
    TORCH: "PyTorch from the package index, and what its build for CUDA runs on",
    CPU: "PyTorch's smaller build for the CPU alone, where pip is configured to find it",
    DEV: "what tests, linters and the audit need besides",
}
# What hatchling asks for when it is to install a checkout.
BUILD = (
    *tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"],
    "editables",
    "setuptools",  # for packages that have no wheel
)
PARTS_OF_TORCH = re.compile("(nvidia-|cuda-).*|triton|torch")


def blocks(text: str) -> dict[str, str]:
    """Return the lines of each package by its name."""
    found: dict[str, str] = {}
    for block in re.finditer(r"^([\w.-]+)==.+(\n +--hash=.+)+\n", text, re.MULTILINE):
        found[block[1]] = found.get(block[1], "") + block[0]  # one for each range of Pythons
    return found


def compiled(pins: Path, options: Collection[str]) -> dict[str, str]:
    """Return what uv resolves to; `pins` has the versions to prefer, and then the new ones."""
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version=3.11"]
    command += ["--fork-strategy=fewest"]
    command += ["--generate-hashes", "--no-annotate", "--no-header", f"--output-file={pins}"]
    subprocess.run(
        [*command, *options, "pyproject.toml", "-"],
        cwd=ROOT,
        input="\n".join(BUILD),
        text=True,
        check=True,
    )
    return blocks(pins.read_text())


def cpu_build(version: str) -> str:
    """Return the pin of PyTorch's build for the CPU that pip finds on this machine.

    It is on no public index but PyTorch's own. What was admitted before stays, for other Pythons.
    """
    pin = f"torch=={version}+cpu"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps"]
    command += ["--ignore-installed", "--report=-", pin]
    found = subprocess.run(command, stdout=subprocess.PIPE)
    hashes = {
        item["download_info"]["archive_info"]["hashes"]["sha256"]
        for item in (json.loads(found.stdout)["install"] if found.returncode == 0 else ())
    }
    before = blocks(CPU.read_text() if CPU.exists() else "").get("torch", "")
    if before.startswith(f"{pin} "):
        hashes |= set(re.findall("sha256:([0-9a-f]{64})", before))
    return " \\\n".join([pin, *(f"    --hash=sha256:{each}" for each in sorted(hashes))]) + "\n"


def main() -> None:
    """Write the three files."""
    with TemporaryDirectory() as name:
        pins = Path(name) / "pins.txt"
        before = (path.read_text() for path in (LIBRARY, TORCH, DEV) if path.exists())
        pins.write_text("".join(before))
        everything = compiled(pins, ["--extra=dev", *sys.argv[1:]])
        needed = compiled(pins, [])
    torch = {name for name in needed if PARTS_OF_TORCH.fullmatch(name)}
    # The tests compile kernels where PyTorch's CPU build is, which brings no triton.
    more = (everything.keys() - needed.keys()) | {"triton"}
    parts = {LIBRARY: needed.keys() - torch, TORCH: torch, DEV: more}
    texts = {
        path: "".join(everything[name] for name in sorted(names)) for path, names in parts.items()
    }
    texts[CPU] = cpu_build(everything["torch"].split()[0].removeprefix("torch=="))
    for path, head in HEADS.items():
        path.write_text(f"# By `make constraints`: {head}.\n{texts[path]}")


if __name__ == "__main__":
    main()
