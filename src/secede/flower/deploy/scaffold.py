"""Writes a new project folder, completely or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from secede import files
from secede.errors import ConfigError, StorageError
from secede.flower.deploy import processes
from secede.flower.deploy.certificates import (
    LOOPBACK,
    check_host,
    write_certificates,
    write_node_key,
)
from secede.flower.deploy.project import CONNECTION, Project

_TEMPLATES = Path(__file__).parent / "templates"
APP = _TEMPLATES / "app"  # the one copy of the example app


def write_project(
    folder: Path,
    *,
    sites: Sequence[str],
    hosts: Sequence[str] = (),
    listen: str = "127.0.0.1",
    port: int | None = None,
) -> Project:
    """Write a project; `hosts` are further names of the server, the first of them for the sites."""
    folder = folder.absolute()
    for host in hosts:
        check_host(host)
    project = Project(
        folder=folder,
        listen=listen,
        address=hosts[0] if hosts else "127.0.0.1",
        port=port or processes.free_port(),
        sites=tuple(sites),
    ).checked()
    named = tuple(dict.fromkeys((*hosts, *LOOPBACK)))
    if os.path.lexists(folder) and not _is_empty(folder):
        raise ConfigError(f"{folder} exists and is not empty: choose another folder")
    part = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    try:
        part.mkdir(parents=True, mode=0o700)
        _fill(part, project, named)
        os.rename(part, folder)
    except OSError as error:
        raise StorageError(f"cannot write {folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return project


def _fill(part: Path, project: Project, hosts: Sequence[str]) -> None:
    write_certificates(part / "certificates", hosts)
    for site in project.sites:
        write_node_key(part / "nodes", site)
        (part / "sites" / site).mkdir(parents=True, mode=0o700)
    unwanted = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(APP, part / "app", ignore=unwanted)
    changes = {
        "@SITES@": str(len(project.sites)),
        "@CONNECTION@": CONNECTION,
        "@LISTEN@": project.listen,
        "@HOSTS@": ", ".join(hosts),
    }
    for template in sorted(path for path in _TEMPLATES.iterdir() if path.is_file()):
        text = template.read_text(encoding="utf-8")
        for old, new in changes.items():
            text = text.replace(old, new)
        files.write_text(part / template.name, text)
        if template.suffix == ".sh":
            (part / template.name).chmod(0o755)
    files.write_text(part / ".gitignore", "*.key\n/flower/\n/home/\n/logs/\n/sites/\n/state/\n")
    project.write(part)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())
