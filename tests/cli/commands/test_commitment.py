from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.erasure import small
from secede.cli.commands.commitment import prove, verify, verify_proof
from secede.erasure.storage.home import Home
from secede.errors import ConfigError, TrustError


@pytest.fixture(scope="module")
def erased(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Path]:
    """A home that site-0 was erased from, and the receipt."""
    home = small.make(tmp_path_factory.mktemp("erased"))
    outcome = small.erase(home, small.receive(home).id)
    assert outcome.receipt is not None
    return home, outcome.receipt


def test_a_commitment_is_shown_to_hold_and_another_is_not(
    erased: tuple[Home, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, receipt = small.copy(erased[0], tmp_path / "home"), erased[1]
    verify(home.path, "site-0", receipt, json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["valid"] is True
    assert told["samples"] == small.told(home)["scope"]["commitment"]["samples"]
    with pytest.raises(ConfigError, match="is about 'site-0', not 'site-1'"):
        verify(home.path, "site-1", receipt, json=True)
    salt = home.path / "sites" / "site-1.salt"
    salt.write_bytes(bytes(32))
    with pytest.raises(TrustError, match="not the one committed to"):
        verify(home.path, "site-1", None, json=True)
    salt.unlink()
    with pytest.raises(ConfigError, match="cannot read the salt"):
        verify(home.path, "site-1", None, json=True)


def test_of_a_folder_of_receipts_the_clients_own_is_taken(
    erased: tuple[Home, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, receipt = small.copy(erased[0], tmp_path / "home"), erased[1]
    outcome = small.erase(home, small.receive(home, "site-1").id)
    assert outcome.receipt is not None
    folder = outcome.receipt.parent
    assert len(list(folder.glob("*.json"))) == 2
    for client in ("site-0", "site-1"):
        verify(home.path, client, folder, json=True)
        assert json.loads(capsys.readouterr().out)["client"] == client
    with pytest.raises(ConfigError, match=r"no receipt in .* is about 'site-2'"):
        verify(home.path, "site-2", folder, json=True)
    broken = folder / receipt.name
    broken.write_bytes(broken.read_bytes().replace(b"A", b"B", 1))
    with pytest.raises((ConfigError, TrustError)):  # one that does not hold is not taken for it
        verify(home.path, "site-0", folder, json=True)


@pytest.fixture
def shown(erased: tuple[Home, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Sample 5 of site-0 and its proof."""
    proof, sample = tmp_path / "proof.json", tmp_path / "sample.bin"
    prove(erased[0].path, "site-0", 5, proof, sample)
    return proof, sample


def check(
    erased: tuple[Home, Path], proof: Path, sample: Path, receipt: Path | None = None
) -> None:
    home, own = erased
    verify_proof(proof, sample, receipt or own, home.keys, json=True)


def test_one_sample_is_shown_to_somebody_with_receipt_and_public_keys(
    erased: tuple[Home, Path], shown: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    check(erased, *shown)
    told = json.loads(capsys.readouterr().out)
    stated = small.told(erased[0])["scope"]["commitment"]
    assert told == {"valid": True, "client": "site-0", "index": 5, **stated}
    for path in shown:
        assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="exists and is not replaced"):
        prove(erased[0].path, "site-0", 5, *shown)


def test_every_altered_byte_of_sample_and_proof_is_refused(
    erased: tuple[Home, Path], shown: tuple[Path, Path]
) -> None:
    for path in shown:
        genuine = path.read_bytes()
        step = max(1, len(genuine) // 400)
        for place in range(0, len(genuine), step):
            changed = bytearray(genuine)
            changed[place] ^= 1
            path.write_bytes(changed)
            with pytest.raises((TrustError, ConfigError)):
                check(erased, *shown)
        for other in (genuine + b"\n", genuine[:-1], b""):
            path.write_bytes(other)
            with pytest.raises(TrustError):
                check(erased, *shown)
        path.write_bytes(genuine)
    check(erased, *shown)


def test_another_sample_or_client_is_refused(
    erased: tuple[Home, Path], shown: tuple[Path, Path], tmp_path: Path
) -> None:
    home, receipt = erased
    proof, sample = tmp_path / "6.json", tmp_path / "6.bin"
    prove(home.path, "site-0", 6, proof, sample)
    with pytest.raises(TrustError, match="not shown to be in the set"):
        check(erased, proof, shown[1])
    other = tmp_path / "other.json", tmp_path / "other.bin"
    prove(home.path, "site-1", 5, *other)
    with pytest.raises(ConfigError, match="is about 'site-0', not 'site-1'"):
        check(erased, *other)
    with pytest.raises(ConfigError, match="does not exist: expected one from 0 to"):
        prove(home.path, "site-0", 10**6, tmp_path / "a", tmp_path / "b")
    broken = tmp_path / "receipt.json"
    broken.write_bytes(receipt.read_bytes().replace(b"A", b"B", 1))
    with pytest.raises(TrustError, match=r"receipt\.json"):
        check(erased, *shown, receipt=broken)


def test_checking_needs_no_torch_and_no_home(
    erased: tuple[Home, Path], shown: tuple[Path, Path]
) -> None:
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from secede.cli.commands.commitment import verify_proof\n"
        "paths = map(Path, sys.argv[1:])\n"
        "verify_proof(*paths, json=True)\n"
        "sys.exit('torch' in sys.modules)"
    )
    paths = [*map(str, shown), str(erased[1]), str(erased[0].keys)]
    ended = subprocess.run([sys.executable, "-c", program, *paths], stdout=subprocess.DEVNULL)
    assert ended.returncode == 0


def test_a_receipt_of_another_federation_of_that_name_is_refused(
    erased: tuple[Home, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "anew"
    folder.mkdir()
    other = small.make(folder)
    receipt = small.erase(other, small.receive(other).id).receipt
    home = small.copy(erased[0], tmp_path / "home")
    shutil.copyfile(other.keys / "server.pub", home.keys / "server.pub")
    verify(other.path, "site-0", receipt, json=True)
    home.path.joinpath("federation.json").write_bytes(
        (home.path / "federation.json").read_bytes().replace(b'"name":"north"', b'"name":"south"')
    )
    with pytest.raises(TrustError, match=r"is about federation 'north' .*, this is 'south'"):
        verify(home.path, "site-0", receipt, json=True)
