"""Commands of Flower's programs: the SuperLink, a SuperNode, and the operator's `flwr`."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from secede.errors import SecedeError, SilentError
from secede.flower.deploy.project import CONNECTION, OPERATOR, SUPERLINK, Project, program

TIMEOUT = 60.0  # seconds that a call of flwr may take


def superlink(project: Project) -> list[str]:
    """Return the command that starts the SuperLink, with TLS and node authentication."""
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
    """Return the command that starts a site's SuperNode; its own processes use `port`."""
    return [
        program("flower-supernode", project.environment(site)),
        *("--root-certificates", str(project.authority)),
        *("--superlink", project.superlink_address),
        *("--auth-supernode-private-key", str(project.key(site))),
        *("--port", str(port)),
        *("--node-config", node_config(project, site)),
    ]


def node_config(project: Project, site: str) -> str:
    """Return the node config that the app at a site gets."""
    folder = str(project.updates_folder(site)).replace("\\", "\\\\").replace('"', '\\"')
    number, total = project.sites.index(site), len(project.sites)
    return f'partition-id={number} num-partitions={total} site="{site}" secede-folder="{folder}"'


def flwr(project: Project, *arguments: str, timeout: float = TIMEOUT) -> dict[str, Any]:
    """Call `flwr` as the operator and return its JSON; raise at an error, or without an answer."""
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
            timeout=timeout,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise SilentError(f"{name} got no answer within {timeout:g} seconds") from None
    answer = _json(ended.stdout)
    if answer is None or not answer.get("success", ended.returncode == 0):
        error = (answer or {}).get("error-message") or ended.stderr or ended.stdout
        raise SecedeError(f"{name}: {_last_line(str(error))}")
    return answer


def register(project: Project, site: str) -> str | None:
    """Register a site's public key and name; return its node id, None if it was registered."""
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
    """Return the status of each registered node, such as online."""
    listed = flwr(project, "supernode", "list")["nodes"]
    return {str(node["node-id"]): str(node["status"]) for node in listed}


def _json(text: str) -> dict[str, Any] | None:
    try:
        answer = json.loads(text[text.index("{") :])
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no answer"
