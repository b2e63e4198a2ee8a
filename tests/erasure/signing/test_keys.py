from __future__ import annotations

import os
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from secede.erasure.signing.keys import (
    Keyring,
    generate_key_pair,
    load_private_key,
    load_public_key,
)
from secede.errors import ConfigError, StorageError


def test_a_pair_is_written_and_belongs_together(tmp_path: Path) -> None:
    private, public = generate_key_pair(tmp_path / "new", "north")
    assert (private.name, public.name) == ("north.key", "north.pub")
    assert load_private_key(private).public_key == load_public_key(public)
    assert len(load_public_key(public).keyid) == 64
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["north.key", "north.pub"]


def test_a_private_key_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        private, public = generate_key_pair(tmp_path, "north")
    finally:
        os.umask(before)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(public.stat().st_mode) == 0o644


def test_the_file_is_never_open_to_others_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    opened = os.open

    def spy(path: str, flags: int, mode: int = 0o777, **more: int) -> int:
        descriptor = opened(path, flags, mode, **more)
        if flags & os.O_CREAT:
            seen.append((str(path), stat.S_IMODE(os.fstat(descriptor).st_mode)))
        return descriptor

    monkeypatch.setattr(os, "open", spy)
    generate_key_pair(tmp_path, "north")
    assert [mode for path, mode in seen if ".key" in path] == [0o600]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610, 0o601, 0o700, 0o666])
def test_wider_permissions_are_refused_also_behind_a_link(tmp_path: Path, mode: int) -> None:
    private, _ = generate_key_pair(tmp_path, "north")
    link = tmp_path / "link.key"
    link.symlink_to(private)
    assert load_private_key(link).public_key == load_private_key(private).public_key
    private.chmod(mode)
    for path in (private, link):
        with pytest.raises(ConfigError, match=f"permissions {mode:04o}, expected 0600.*chmod 600"):
            load_private_key(path)
    private.chmod(0o400)
    load_private_key(link)


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    private, public = generate_key_pair(tmp_path, "north")
    before = private.read_bytes(), public.read_bytes()
    with pytest.raises(ConfigError, match=r"north\.key exists and is not replaced"):
        generate_key_pair(tmp_path, "north")
    private.unlink()
    with pytest.raises(ConfigError, match=r"north\.pub exists"):
        generate_key_pair(tmp_path, "north")
    assert not private.exists()
    assert public.read_bytes() == before[1]
    private.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="exists"):
        generate_key_pair(tmp_path, "north")


def test_two_processes_that_make_the_same_key_leave_one_pair(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from secede.erasure.signing.keys import generate_key_pair\n"
        "from secede.errors import ConfigError\nsys.stdin.read(1)\n"
        f"try: generate_key_pair(Path({str(tmp_path)!r}), 'north')\n"
        "except ConfigError: sys.exit(3)\n"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) for _ in range(2)
    ]
    for process in both:
        process.communicate(b"x")
    assert sorted(process.returncode for process in both) == [0, 3]
    assert load_private_key(tmp_path / "north.key").public_key == load_public_key(
        tmp_path / "north.pub"
    )


@pytest.mark.parametrize("name", ["", "a" * 65, "a/b", "a b", "ä", "a\n", "../up"])
def test_names_are_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 64 of"):
        generate_key_pair(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_key_is_refused_without_quoting_it(tmp_path: Path) -> None:
    private, public = generate_key_pair(tmp_path, "north")
    secret = private.read_text().splitlines()[1]
    wrong = tmp_path / "wrong"
    plain = Ed25519PrivateKey.generate()
    curve = generate_private_key(SECP256R1())
    pem, pkcs8 = Encoding.PEM, PrivateFormat.PKCS8
    for content in (
        b"",
        b"\xff" * 300,
        b"x" * 100_000,
        private.read_bytes()[:60],
        private.read_bytes().replace(b"PRIVATE", b"PUBLIC"),
        private.read_text().replace(secret, secret[:-6] + "!!!!!!").encode(),
        public.read_bytes(),
        plain.private_bytes(pem, pkcs8, BestAvailableEncryption(b"word")),
        curve.private_bytes(pem, pkcs8, NoEncryption()),
    ):
        wrong.write_bytes(content)
        wrong.chmod(0o600)
        with pytest.raises(ConfigError) as caught:
            load_private_key(wrong)
        assert secret[10:40] not in str(caught.value)
    wrong.write_bytes(
        curve.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    for path in (wrong, private, tmp_path, tmp_path / "absent"):
        with pytest.raises(ConfigError):
            load_public_key(path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        load_private_key(tmp_path / "pipe")


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot write"):
        generate_key_pair(tmp_path / "file", "north")


def test_a_keyring_is_a_folder_of_public_keys(tmp_path: Path) -> None:
    for name in ("north", "south:1"):
        generate_key_pair(tmp_path, name)
    (tmp_path / "notes.txt").write_text("not a key")
    ring = Keyring.load(tmp_path)
    assert list(ring) == ["north", "south:1"]
    assert len(ring) == 2
    assert ring["north"] == load_public_key(tmp_path / "north.pub")


def test_a_keyring_refuses_shared_damaged_and_misnamed_keys(tmp_path: Path) -> None:
    _, public = generate_key_pair(tmp_path, "north")
    other = tmp_path / "other.pub"
    other.write_bytes(public.read_bytes())
    with pytest.raises(ConfigError, match="'north' and 'other' have the same public key"):
        Keyring.load(tmp_path)
    other.write_bytes(b"no key")
    with pytest.raises(ConfigError, match=r"other\.pub is not"):
        Keyring.load(tmp_path)
    other.unlink()
    generate_key_pair(tmp_path / "more", "south")[1].rename(tmp_path / "so uth.pub")
    with pytest.raises(ConfigError, match="so uth"):
        Keyring.load(tmp_path)
    with pytest.raises(ConfigError, match="cannot read the keys"):
        Keyring.load(tmp_path / "absent")


@pytest.mark.parametrize(
    "module",
    ["signing.keys", "signing.dsse", "documents.request", "storage.journal", "canonical_json"],
)
def test_torch_stays_out(module: str) -> None:
    program = f"import sys, secede.erasure.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_public_key_given_as_the_private_one_is_told_so(tmp_path: Path, mode: int) -> None:
    _, public = generate_key_pair(tmp_path, "north")
    public.chmod(mode)
    with pytest.raises(ConfigError, match=r"is a public key, expected the private.*north\.key"):
        load_private_key(public)


def test_the_two_keys_of_a_pair_may_lie_in_different_folders(tmp_path: Path) -> None:
    private, public = generate_key_pair(tmp_path / "own", "north", public_folder=tmp_path / "all")
    assert (private, public) == (tmp_path / "own" / "north.key", tmp_path / "all" / "north.pub")
    assert load_private_key(private).public_key.keyid == load_public_key(public).keyid
    with pytest.raises(ConfigError, match="exists and is not replaced"):
        generate_key_pair(tmp_path / "other", "north", public_folder=tmp_path / "all")


PRIME = 2**255 - 19
OF_ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
WEAK = [
    (y + turns * PRIME) | sign << 255
    for y in (0, 1, PRIME - 1, OF_ORDER_8, PRIME - OF_ORDER_8)
    for turns in (0, 1)
    for sign in (0, 1)
    if y + turns * PRIME < 2**255
]


@pytest.mark.parametrize("point", [*WEAK, PRIME + 3], ids=lambda point: f"{point:064x}"[-8:])
def test_a_key_for_which_anybody_can_sign_is_refused(tmp_path: Path, point: int) -> None:
    key = Ed25519PublicKey.from_public_bytes(point.to_bytes(32, "little"))
    path = tmp_path / "auditor.pub"
    path.write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(ConfigError, match="small order or not in its one encoding"):
        load_public_key(path)


@pytest.mark.parametrize("point", WEAK, ids=lambda point: f"{point:064x}"[-8:])
def test_the_refused_keys_need_no_private_one(point: int) -> None:
    key = Ed25519PublicKey.from_public_bytes(point.to_bytes(32, "little"))
    constant, held = (1).to_bytes(32, "little") + bytes(32), 0
    for number in range(400):
        with suppress(InvalidSignature):
            key.verify(constant, str(number).encode())
            held += 1
    assert held
