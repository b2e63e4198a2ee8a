"""A real deployment: SuperLink and SuperNodes with TLS and node authentication.

Train, stop everything, start it again, erase in a second run, verify the receipt.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.flower import deployed
from secede.cli.app import app
from secede.erasure.receipts.verify import verify_receipt
from secede.erasure.signing.keys import Keyring
from secede.erasure.storage.home import Home
from secede.erasure.storage.ledger import Ledger
from secede.flower.client.consent import Release, release
from secede.flower.deploy import port_guard, processes, server_home, supervisor
from secede.flower.deploy.project import MARK, Project
from secede.flower.deploy.scaffold import (
    LOOPBACK,
    write_certificates,
    write_node_key,
    write_project,
)
from secede.flower.storage.round_log import RoundLog

ROUNDS = 4  # that canaries are seen after
ASK = """
import encodings.idna, os, socket, ssl, sys
host, port, path, forwarded, *account = sys.argv[1:]
for number in account:
    os.setgid(int(number)), os.setuid(int(number))
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
connection = context.wrap_socket(socket.create_connection((host, int(port)), timeout=10))
connection.sendall(
    f"GET {path} HTTP/1.0\\r\\nX-Forwarded-For: 127.0.0.1:{forwarded}\\r\\n\\r\\n".encode()
)
print(connection.recv(1000).split()[1].decode())
"""


@pytest.fixture
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Project]:
    """Yield a project with the fast app, or with its own one where the test says so."""
    sites = [f"site-{n}" for n in (1, 2, 3)]
    own = getattr(request, "param", "") == "own app"
    folder = tmp_path / "north"
    project = write_project(folder, sites=sites) if own else deployed.make(folder, sites=3)
    if own:
        changed(
            project.app / "quickstart" / "server_app.py", "FedAvg()", "FedAvg(fraction_evaluate=0)"
        )
        changed(project.app / "quickstart" / "task.py", "PASSES = 3", "PASSES = 6")
    try:
        yield project
    finally:
        supervisor.down(Project.load(project.folder))
        assert processes.with_environment(MARK, str(project.folder)) == []


def changed(path: Path, old: str, new: str) -> None:
    """Change one thing in a file: rounds cost Flower's processes more than the training in them."""
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def secede(*arguments: str) -> Any:
    """Call a command and return what it tells in JSON."""
    shown = CliRunner().invoke(app, ["flower", *arguments, "--json"])
    assert shown.exit_code == 0, f"{shown.exception}: {shown.stderr}"
    return json.loads(shown.stdout)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("project", ["own app"], indirect=True)
def test_train_restart_and_erase_in_a_second_run(project: Project) -> None:
    begun = time.monotonic()
    folder = str(project.folder)
    assert {row["online"] for row in secede("up", folder)["processes"]} == {"yes"}
    secede("train", folder, "--rounds", str(ROUNDS), "--timeout", "420")
    log = RoundLog(project.home / "rounds.jsonl")
    first, second, *_ = log.rounds()
    assert {each.client for each in second.clients} == set(project.sites)
    assert all(each.key for each in second.clients)  # known by their keys
    assert first.model == second.start
    assert log.canaries().keys() == set(project.sites)  # all committed, before they had trained

    supervisor.down(project)  # months later
    secede("up", folder)
    leaving = ("name:site-2", "--trigger", "contract-ended")
    plan = secede("erase", folder, "name:site-2", "--dry-run", "--leaver-gone")
    assert [step["rung"] for step in plan["ladder"]] == ["server-side", "retraining"]
    (disk,) = (project.folder / "sites" / "site-2").iterdir()
    release(disk, Release(federation="north"))
    told = secede("erase", folder, *leaving, "--timeout", "300")
    seconds = time.monotonic() - begun
    print(f"deployment test: {seconds:.0f} seconds")
    erased = server_home.verified_result(project.home, "name:site-2")
    assert told["receipt"] == erased.receipt
    assert erased.client == "site-2"
    assert erased.rung in ("local-step", "server-side")  # by chance, one model in a hundred
    after = RoundLog(project.home / "rounds.jsonl").rounds()[-1]
    assert (after.erased, after.model) == ("site-2", erased.model)
    assert {each.client for each in after.clients} == {"site-1", "site-3"}
    with Ledger(Home(project.home).ledger, read_only=True) as ledger:
        assert ledger.verify().number > 0
    assert "site-2" in Path(erased.page).read_text()
    check_canaries(project, Path(erased.receipt))


def check_canaries(project: Project, path: Path) -> None:
    """Verify a receipt offline, and that its canaries showed before, and show no more."""
    keys = Keyring.load(project.home / "keys")
    found = verify_receipt(path.read_bytes(), keys).statement.predicate
    assert found.verification.forgotten == "no-trace-found"
    judged = found.verification.canaries.judgement(found.models.after)
    print(f"canaries: p {judged.p_before:.2g} before, {judged.p_after:.2g} after")
    assert judged.p_before is not None
    assert judged.p_before < 1e-3
    shown = CliRunner().invoke(app, ["verify", str(path), "--keys", str(project.home / "keys")])
    assert shown.exit_code == 0, shown.output
    assert "canaries showed before the erasure" in " ".join(shown.output.split())


@pytest.mark.slow
def test_strangers_are_turned_away(project: Project, tmp_path: Path) -> None:
    supervisor.up(project)
    known = supervisor.node_statuses(project)
    write_node_key(project.folder / "nodes", "stranger")
    said = deployed.knock(replace(project, sites=(*project.sites, "stranger")), "stranger")
    assert "SuperNode ID" not in said
    assert supervisor.node_statuses(project).keys() == known.keys()
    write_certificates(tmp_path / "other", LOOPBACK)  # an authority that is not the project's
    context = ssl.create_default_context(cafile=str(tmp_path / "other" / "ca.crt"))
    with (
        socket.create_connection((project.address, project.port), timeout=10) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        context.wrap_socket(plain, server_hostname=project.address)
    with (
        socket.create_connection((project.address, project.port), timeout=10) as plain,
        plain.makefile("rwb") as http,
    ):
        http.write(b"GET /health HTTP/1.0\r\n\r\n")
        http.flush()
        assert not http.read(20).startswith(b"HTTP/1.1 200")  # nothing without TLS
    assert not any("--insecure" in each.command for each in of(project))  # sites' ports have TLS
    own = answers(project, None)
    assert own
    assert "403" not in own
    if port_guard.names_peers() and os.geteuid() == 0:  # only root can act as another account
        assert set(answers(project, 65534)) == {"403"}


def of(project: Project) -> list[processes.Process]:
    return processes.with_environment(MARK, str(project.folder))


def answers(project: Project, account: int | None) -> list[str]:
    """Return what an account is answered on paths of operators and apps."""
    site = processes.running(project, project.sites[0])
    assert site is not None
    port = site.command.split("--port ")[1].split()[0]
    own = [] if account is None else [str(account)]
    shown = []
    for to in (str(project.port), port):
        with socket.create_connection(("127.0.0.1", int(to))) as known:  # of this account
            end = str(known.getsockname()[1])
            for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/docs"):
                command = [sys.executable, "-I", "-c", ASK, "127.0.0.1", to, path, end, *own]
                asked = subprocess.run(command, check=True, capture_output=True, text=True)
                shown.append(asked.stdout.strip())
    return [status for status in shown if status != "404"]  # a site has no paths for operators
