from __future__ import annotations

import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from secede.errors import ConfigError
from secede.flower.deploy.project import check_host
from secede.flower.deploy.scaffold import (
    LOOPBACK,
    SERVER_DAYS,
    write_certificates,
    write_node_key,
)


def shake_hands(folder: Path, trusted: Path, host: str) -> None:
    """Let a server with the folder's certificate and a client that trusts `trusted` meet."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    client = ssl.create_default_context(cafile=str(trusted))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    theirs.settimeout(10)

    def serve() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(ours, server_hostname=host).close()
    finally:
        ours.close()
        thread.join()


def test_the_server_is_trusted_under_each_of_its_names_and_no_other(tmp_path: Path) -> None:
    write_certificates(tmp_path, ["fl.example.org", "192.0.2.7", "::1", *LOOPBACK])
    for host in ("127.0.0.1", "localhost", "fl.example.org", "192.0.2.7", "::1"):
        shake_hands(tmp_path, tmp_path / "ca.crt", host)
    for host in ("example.org", "192.0.2.8"):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(tmp_path, tmp_path / "ca.crt", host)


def test_another_authority_is_not_trusted(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_certificates(tmp_path / name, LOOPBACK)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tmp_path / "a", tmp_path / "b" / "ca.crt", "127.0.0.1")


def test_a_server_cannot_act_as_an_authority_and_its_certificate_ends(tmp_path: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    write_certificates(tmp_path, LOOPBACK, now)
    served = x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())
    constraints = served.extensions.get_extension_for_class(x509.BasicConstraints)
    assert not constraints.value.ca
    assert served.not_valid_after_utc == now + timedelta(days=SERVER_DAYS)


def test_private_files_are_their_owners_and_none_is_replaced(tmp_path: Path) -> None:
    write_certificates(tmp_path, LOOPBACK)
    write_node_key(tmp_path, "site-1")
    for path in tmp_path.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        write_certificates(tmp_path, LOOPBACK)
    with pytest.raises(FileExistsError):
        write_node_key(tmp_path, "site-1")


def test_a_nodes_keys_are_a_pair_on_the_curve_that_flower_takes(tmp_path: Path) -> None:
    write_node_key(tmp_path, "site-1")
    private = load_ssh_private_key((tmp_path / "site-1.key").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "site-1.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    assert private.public_key() == public


@pytest.mark.parametrize("host", ["", "a b", "fl.example.org:9092", 'x"y', "-a", "a" * 254, "a/b"])
def test_hosts_that_cannot_be_used_are_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        check_host(host)
