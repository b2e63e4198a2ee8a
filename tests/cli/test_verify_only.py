"""`cli/verify_only.py`, and the distribution secede-verify that brings it without torch."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from random import Random

import pytest
from packaging.requirements import Requirement

from harness.erasure.verifiable import verifiable
from harness.paths import ROOT
from secede.erasure.receipts.verify import verify_receipt
from secede.erasure.signing.keys import Keyring
from secede.errors import TrustError

PACKAGE = ROOT / "packaging" / "verify"
PROJECT = tomllib.loads((PACKAGE / "pyproject.toml").read_text())
SHIPPED = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
HEAVY = ("torch", "numpy", "scipy", "safetensors", "matplotlib", "sklearn")
# Runs where secede-verify is installed: whom it accepts, and what it has loaded.
PROGRAM = """
import json, sys
from importlib.util import find_spec
from pathlib import Path
from secede.erasure import Signers, verify_receipt
from secede.errors import TrustError

def accepts(path):
    try:
        verify_receipt(path.read_bytes(), keys)
    except TrustError:
        return False
    return True

folder = Path(sys.argv[1])
keys = Signers.load(folder / "keys").keys
found = {path.name: accepts(path) for path in sorted((folder / "many").iterdir())}
heavy = [name for name in sys.argv[2:] if find_spec(name)]
print(json.dumps({"accepted": found, "importable": heavy}))
"""


def loaded(folder: Path) -> set[str]:
    """Return the modules of secede that `secede-verify` loads with all of its options."""
    receipt, keys = folder / "receipt.json", folder / "keys"
    options = f"'--keys={keys}', '--ledger={folder / 'ledger.db'}', '--page', '--json'"
    program = (
        "import sys\nfrom secede.cli.verify_only import main\n"
        f"sys.argv = ['secede-verify', '{receipt}', '--model={folder / 'model.safetensors'}', "
        f"{options}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print('modules', *sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(ended.stdout.splitlines()[-1].split()[1:])


def test_it_loads_no_torch_and_nothing_that_is_not_shipped(tmp_path: Path) -> None:
    modules = loaded(verifiable(tmp_path))
    assert not modules & set(HEAVY)
    sources = tuple(path.removeprefix("../../src/") for path in SHIPPED)
    for module in (name for name in modules if name.partition(".")[0] == "secede"):
        path = module.replace(".", "/")
        files = (f"{path}.py", f"{path}/__init__.py")
        assert any(file == s or file.startswith(f"{s}/") for file in files for s in sources), module


def test_what_it_ships_is_there_under_its_own_name() -> None:
    for source, name in SHIPPED.items():
        assert source == f"../../src/{name}"
        assert (PACKAGE / source).exists()


def test_it_asks_for_what_secede_asks_for_and_less() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(PROJECT["project"]["dependencies"]) < set(project["dependencies"])
    assert PROJECT["project"]["version"] == project["version"]


def pinned(needed: list[str]) -> Iterator[str]:
    """Yield the pins, with hashes, of requirements and all that they need."""
    pins = (ROOT / "constraints.txt").read_text()
    blocks = {m[1]: m[0] for m in re.finditer(r"^([\w.-]+)==.+(\n +--hash=.+)+\n", pins, re.M)}
    seen = set[str]()
    waiting = [Requirement(text) for text in needed]
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        extras = requirement.extras or {""}
        if name in seen or not any(
            requirement.marker is None or requirement.marker.evaluate({"extra": extra})
            for extra in extras
        ):
            continue
        seen.add(name)
        yield blocks[name]
        for text in metadata.requires(name) or ():
            inner = Requirement(text)
            if any(
                inner.marker is None or inner.marker.evaluate({"extra": extra}) for extra in extras
            ):
                inner.marker = None
                waiting.append(inner)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build secede-verify and install it into an empty environment; return its programs."""
    folder = tmp_path_factory.mktemp("verifier")
    # Built here, with the hatchling that is pinned; a copy, so that nothing is written to ours.
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(PACKAGE, folder / "packaging" / "verify")
    pip = ("pip", "--disable-pip-version-check", "--quiet")
    wheel: list[str | Path] = [sys.executable, "-m", *pip, "wheel", "--no-deps"]
    subprocess.run(
        [*wheel, "--no-build-isolation", "-w", folder, folder / "packaging" / "verify"], check=True
    )
    venv.create(folder / "env", with_pip=True)
    (folder / "pins.txt").write_text("".join(pinned(PROJECT["project"]["dependencies"])))
    python = folder / "env" / "bin" / "python"
    install: list[str | Path] = [python, "-m", *pip, "install", "--no-deps"]
    subprocess.run([*install, "--require-hashes", "-r", folder / "pins.txt"], check=True)
    (built,) = folder.glob("secede_verify-*.whl")
    subprocess.run([*install, "--no-index", built], check=True)
    subprocess.run([python, "-m", *pip, "check"], check=True)
    return folder / "env" / "bin"


@pytest.mark.slow
def test_an_empty_environment_verifies_a_receipt_without_torch(
    programs: Path, tmp_path: Path
) -> None:
    folder = verifiable(tmp_path)
    command: list[str | Path] = [
        programs / "secede-verify",
        folder / "receipt.json",
        f"--keys={folder / 'keys'}",
        f"--ledger={folder / 'ledger.jsonl'}",
        f"--model={folder / 'model.safetensors'}",
    ]
    ended = subprocess.run([*command, "--page"], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "signature valid" in ended.stdout
    assert re.search("^model +matches$", ended.stdout, re.MULTILINE)
    assert re.search("^forgotten +no trace found: The canaries showed", ended.stdout, re.MULTILINE)
    assert "No trace found" in (folder / "receipt.html").read_text()
    there = folder / "model.safetensors"
    there.write_bytes(there.read_bytes()[:-1] + b"\x01")
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 8
    assert "it is another model, or it was altered" in ended.stderr


@pytest.mark.slow
def test_it_accepts_and_refuses_what_the_library_does(programs: Path, tmp_path: Path) -> None:
    folder, draw = verifiable(tmp_path), Random(5)
    keys, many = Keyring.load(folder / "keys"), folder / "many"
    many.mkdir()
    valid = (folder / "receipt.json").read_bytes()
    (many / "valid").write_bytes(valid)
    for number in range(200):
        spoilt = bytearray(valid)
        for _ in range(draw.choice((1, 1, 2, 20))):
            spoilt[draw.randrange(len(spoilt))] ^= draw.randrange(256)  # now and then the same
        (many / f"{number:03}").write_bytes(bytes(spoilt))
    ended = subprocess.run(
        [programs / "python", "-c", PROGRAM, folder, *HEAVY], capture_output=True, check=True
    )
    told = json.loads(ended.stdout)
    assert told["importable"] == []
    for path in many.iterdir():
        try:
            verify_receipt(path.read_bytes(), keys)
        except TrustError:
            assert not told["accepted"][path.name]
        else:
            assert told["accepted"][path.name]
    assert told["accepted"]["valid"]
    assert sum(told["accepted"].values()) < 20
