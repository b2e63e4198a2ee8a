"""Sites in accounts of their own: a run's code there reads its site's folders, and no `home/`.

Only root can give a program another account, and only root's own folder is handed out: nobody else
can then swap what is given away for a link. Each site owns its key, its updates and its Flower
folder. Everything else in the project is closed to others but the authority's certificate.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from secede import files
from secede.errors import ConfigError, SecedeError, StorageError
from secede.flower.deploy.project import MARK, Project, program

_IN_ACCOUNT = Path(__file__).with_name("in_account.py")
_PASSED = ("certificates", "nodes", "sites", "flower")  # a site passes through them to its own
_TIMEOUT = 60.0
# What a site inherits: the rest of root's environment may hold passwords.
_KEPT = re.compile(
    rf"PATH|PYTHONPATH|LD_LIBRARY_PATH|LANG|LANGUAGE|LC_\w+|TZ|(FLWR|OMP|CUDA|NVIDIA)_\w+|{MARK}"
    "|RAY_USAGE_STATS_ENABLED|SECEDE_DATA|SECEDE_TRUST_LOCAL_ACCOUNTS"
)
# Prints the first of the paths for which a test such as `-r` holds.
_FIRST = 'for p; do if [ $TEST "$p" ]; then printf %s "$p"; exit 0; fi; done'


@dataclass(frozen=True)
class Account:
    """An account of this machine that is not root's."""

    name: str
    user: int
    group: int

    def command(self, folder: Path, command: Sequence[str]) -> list[str]:
        """Return the command that runs another one in this account and in a folder."""
        ids = (str(self.user), str(self.group))
        return [sys.executable, "-I", str(_IN_ACCOUNT), *ids, str(folder), *command]


def parse(texts: Iterable[str], sites: Sequence[str]) -> dict[str, str]:
    """Read ACCOUNT, for all sites, or SITE=ACCOUNT for each; return the account of each site."""
    shared, own = list[str](), dict[str, str]()
    for text in texts:
        if not sites:
            raise ConfigError(f"--site-account {text!r}: no site has its private key here")
        site, _, name = text.rpartition("=")
        if site and (site not in sites or site in own):
            raise ConfigError(
                f"--site-account {text!r} cannot be used: expected one account for each of "
                f"{', '.join(sites)}"
            )
        shared += [] if site else [name]
        own |= {site: name} if site else {}
    if len(shared) > 1:
        raise ConfigError(f"--site-account is given {len(shared)} times: which site has which?")
    every = {site: own.get(site, *shared) for site in sites if site in own or shared}
    if own and len(every) < len(sites):
        missing = ", ".join(site for site in sites if site not in every)
        raise ConfigError(f"no account for {missing}: give --site-account SITE=ACCOUNT for each")
    return every


def find(name: str) -> Account:
    """Return an account; ConfigError if there is none of that name, or if it is root's."""
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):
        raise ConfigError(
            f"no account {name!r} on this machine: make one that can log in nowhere, such as with "
            "useradd --system --shell /usr/sbin/nologin NAME"
        ) from None
    if entry.pw_uid == 0 or entry.pw_gid == 0:
        raise ConfigError(
            f"account {name!r} is root's or in its group, which reads all: give another"
        )
    return Account(name, entry.pw_uid, entry.pw_gid)


def of(project: Project, site: str) -> Account | None:
    """Return a site's account; None if it runs in the project's own."""
    name = project.accounts.get(site)
    return None if name is None else find(name)


def environment(values: Mapping[str, str], account: Account) -> dict[str, str]:
    """Return what of an environment a site in another account gets."""
    kept = {name: value for name, value in values.items() if _KEPT.fullmatch(name)}
    return {**kept, "HOME": kept["FLWR_HOME"], "USER": account.name, "LOGNAME": account.name}


def prepare(project: Project) -> None:
    """Give each site what is its own and close the rest; ConfigError if that cannot work."""
    _check_folder(project)
    if missing := set(project.local_sites) - set(project.accounts):
        raise ConfigError(f"no account for {min(missing)}: give --site-account for all sites again")
    accounts = {site: find(project.accounts[site]) for site in project.local_sites}
    for site in {account: site for site, account in accounts.items()}.values():
        _check_way(accounts[site], [str(project.folder.parent)], "the project's folder")
        _check_python(project, site, accounts[site])
    try:
        for site, account in accounts.items():
            _hand_over(project, site, account)
        _close(project)
    except OSError as error:
        raise StorageError(f"cannot give the sites their folders: {error}") from error
    for site, account in accounts.items():
        _check_site(project, site, account)


def _check_folder(project: Project) -> None:
    if os.geteuid() != 0:
        raise ConfigError(
            "--site-account is for root alone, who may start programs in other accounts: without "
            "it, start each site in its own account with site.sh"
        )
    for path in (project.folder, project.home, *(project.folder / name for name in _PASSED)):
        found = path.lstat() if os.path.lexists(path) else None
        if found is not None and (found.st_uid != 0 or not stat.S_ISDIR(found.st_mode)):
            raise ConfigError(
                f"{path} is not root's own folder, so its owner could put links where sites get "
                f"their files: chown -R root {project.folder}"
            )


def _check_python(project: Project, site: str, account: Account) -> None:
    """Raise unless an account can use this Python, and cannot change what root runs."""
    values = environment(project.environment(site), account)
    used = _programs(values)
    _check_way(account, used, "Python and its packages")
    tried = [used[0], "-c", "import flwr, secede.flower.deploy.port_guard"]
    ended = _run(account, tried, values)
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(
            f"account {account.name!r} cannot use {used[0]}: {last}; install it for all "
            "accounts, such as under /opt with umask 022"
        )
    firm = [path for path in _with_parents(used) if not os.stat(path).st_mode & stat.S_ISVTX]
    if changed := _first(account, "-w", firm):
        raise ConfigError(
            f"account {account.name!r} can change {changed}, which root runs: chmod go-w {changed}"
        )


def _programs(values: Mapping[str, str]) -> list[str]:
    """Return the files of Python, of this package and of Flower that a site runs."""
    python = (sys.executable, os.path.realpath(sys.executable))
    return [*python, str(Path(__file__)), program("flower-supernode", values)]


def _check_way(account: Account, paths: Sequence[str], what: str) -> None:
    """Raise if an account cannot get to paths, which it must read, too, if they are files."""
    shut = _first(account, "! -x", [p for p in _with_parents(paths) if os.path.isdir(p)])
    shut = shut or _first(account, "! -r", [p for p in paths if os.path.isfile(p)])
    if shut:
        raise ConfigError(
            f"account {account.name!r} cannot get to {what}: {shut} is closed to it; open it "
            f"(chmod o+x {shut}) or move them to where all accounts get, such as /srv or /opt"
        )


def _with_parents(paths: Iterable[str]) -> list[str]:
    return [str(step) for path in paths for step in (*reversed(Path(path).parents), Path(path))]


def _first(account: Account, test: str, paths: Sequence[str]) -> str:
    """Return the first path for which a shell's test holds in an account, '' if for none."""
    ended = _run(account, ["/bin/sh", "-c", _FIRST, "sh", *paths], {"TEST": test})
    if ended.returncode:
        raise SecedeError(f"cannot act as account {account.name!r}: {ended.stderr.strip()[-300:]}")
    return ended.stdout


def _run(
    account: Account, command: Sequence[str], values: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        account.command(Path("/"), command),
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        env=dict(values),
    )


def _hand_over(project: Project, site: str, account: Account) -> None:
    folders = (project.updates_folder(site), project.folder / "flower" / site)
    for folder in folders:
        with files.private():
            files.make_folder(folder)
    for path in (*folders, project.key(site)):
        _give(path, account)


def _give(path: Path, account: Account) -> None:
    """Give away what is root's, the top last: until then nobody else gets to what is below."""
    found = path.lstat()
    if found.st_uid == account.user:
        return
    if found.st_uid != 0 or stat.S_ISLNK(found.st_mode):
        raise ConfigError(
            f"{path} is a link or of account number {found.st_uid}, and not of {account.name!r}: "
            f"stop what runs there, look at it, then chown -hR {account.name} {path}"
        )
    ids = (account.user, account.group)
    for _, folders, names, descriptor in os.fwalk(path, topdown=False):
        for name in (*folders, *names):
            os.chown(name, *ids, dir_fd=descriptor, follow_symlinks=False)
    os.chown(path, *ids, follow_symlinks=False)


def _close(project: Project) -> None:
    """Take from others all rights in the project's folder but the way to what is the sites'."""
    passed = [project.folder / name for name in _PASSED]
    for folder in (project.folder, *passed):
        for path in folder.iterdir():
            if not path.is_symlink() and path not in (project.authority, *passed):
                path.chmod(path.stat().st_mode & 0o700)
    project.authority.chmod(0o644)
    for folder in (*passed, project.folder):
        folder.chmod(0o711)


def _check_site(project: Project, site: str, account: Account) -> None:
    """Raise unless a site gets to its own, and to nobody else's."""
    signer = project.updates_folder(site) / f"{site}.key"
    own = [project.authority, project.key(site), *([signer] if signer.exists() else [])]
    folders = [project.updates_folder(site), project.folder / "flower" / site]
    _check_way(account, [str(path) for path in (*own, *folders)], f"what {site} needs")
    tls = project.certificates
    secret = [project.home, project.state, project.app, tls / "ca.key", tls / "server.key"]
    for other in project.sites:
        if project.accounts.get(other) != account.name:
            secret += [project.key(other), project.updates_folder(other)]
    if open_ := _first(account, "-r", [str(path) for path in secret]):
        raise ConfigError(
            f"account {account.name!r} can read {open_}: expected that {site} cannot; take that "
            f"right away (getfacl {open_} shows who has it)"
        )
