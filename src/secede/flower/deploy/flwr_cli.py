"""How Flower's programs are called: the SuperLink, a SuperNode, and the operator's `flwr`."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from secede.errors import SecedeError, SilentError
from secede.flower.deploy.project import CONNECTION, OPERATOR, SUPERLINK, Project, program

SECONDS = 60.0  # that a call of flwr may take


def superlink(project: Project) -> list[str]:
    """Return the command that starts the SuperLink: TLS, node authentication, no installs."""
    tls = project.certificates
    return [
        program("flower-superlink", project.environment(SUPERLINK)),
        *("--ssl-ca-certfile", str(project.authority)),
        *("--ssl-certfile", str(tls / "server.crt")),
        *("--ssl-keyfile", str(tls / "server.key")),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--host", project.listen),
        *("--port", str(project.port)),
        *("--database", str(project.database)),
    ]


def supernode(project: Project, site: str, port: int) -> list[str]:
    """Return the command that starts a site's SuperNode; `port` is for its own processes."""
    return [
        program("flower-supernode", project.environment(site)),
        *("--root-certificates", str(project.authority)),
        *("--superlink", project.reached),
        *("--auth-supernode-private-key", str(project.key(site))),
        *("--port", str(port)),
        *("--node-config", node_config(project, site)),
    ]


def node_config(project: Project, site: str) -> str:
    """Return what the app finds in `context.node_config` at a site."""
    kept = str(project.kept(site)).replace("\\", "\\\\").replace('"', '\\"')
    number, total = project.sites.index(site), len(project.sites)
    return f'partition-id={number} num-partitions={total} site="{site}" secede-folder="{kept}"'


def flwr(project: Project, *arguments: str, seconds: float = SECONDS) -> dict[str, Any]:
    """Call `flwr` as the operator, for JSON; an answer that says no, or none in time, raises."""
    environment = project.environment(OPERATOR)
    command = [program("flwr", environment), *arguments, CONNECTION, "--format", "json"]
    name = f"flwr {' '.join(arguments[:2])}"
    try:
        ended = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise SilentError(f"{name} got no answer within {seconds:g} seconds") from None
    answer = _json(ended.stdout)
    if answer is None or not answer.get("success", ended.returncode == 0):
        told = (answer or {}).get("error-message") or ended.stderr or ended.stdout
        raise SecedeError(f"{name}: {_last_line(str(told))}")
    return answer


def register(project: Project, site: str) -> str | None:
    """Make a site's public key and name known; return its node, None if it was known before."""
    key = str(project.key(site).with_suffix(".pub"))
    try:
        return str(flwr(project, "supernode", "register", "--name", site, key)["node-id"])
    except SilentError:
        raise
    except SecedeError as error:
        if "already in use" in str(error):
            return None
        raise


def nodes(project: Project) -> dict[str, str]:
    """Return the known nodes and their status, such as online."""
    found = flwr(project, "supernode", "list")["nodes"]
    return {str(node["node-id"]): str(node["status"]) for node in found}


def _json(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text[text.index("{") :])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no answer"
