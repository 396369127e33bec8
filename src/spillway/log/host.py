"""What the system holds of an embedded PostgreSQL: its processes, an account, the owner's lock.

Paths and process ids in, facts out; imports core only. Linux first; macOS works as non-root.
"""

import fcntl
import os
import pwd
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from spillway.core.errors import EmbeddedPostgresError

ACCOUNT = "spillway"
_CAP_DAC_READ_SEARCH = 2


@dataclass(frozen=True, slots=True)
class Postmaster:
    """What postmaster.pid says; the file may be stale."""

    pid: int
    socket_dir: str
    status: str

    @classmethod
    def read(cls, cluster: Path) -> Self | None:
        """The file's content; None if there is none, or it is still being written."""
        try:
            lines = (cluster / "postmaster.pid").read_text().splitlines()
            pid = int(lines[0])
        except (FileNotFoundError, IndexError, ValueError):
            return None
        rest = [line.strip() for line in lines] + [""] * 8
        return cls(pid=pid, socket_dir=rest[4], status=rest[7])

    @property
    def socket(self) -> Path:
        return Path(self.socket_dir, ".s.PGSQL.5432")

    def serves(self, cluster: Path) -> bool:
        """Whether that process lives and is not a stranger who got its number."""
        return command_line(self.pid).endswith(f"postgres -D {cluster}")


class OwnerLock:
    """At most one process owns a data folder; the kernel forgets the lock when its holder dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def acquire(self) -> None:
        """Take the lock, or say who has it."""
        if self.held:
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise
            raise EmbeddedPostgresError(
                f"process {holder} already runs the PostgreSQL of {self._path.parent}",
                hint="stop that process, or choose another data folder",
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the folder free; harmless when it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@dataclass(frozen=True, slots=True)
class Account:
    """Who runs PostgreSQL when we are root: it refuses to run as root itself."""

    name: str
    uid: int
    gid: int

    @classmethod
    def for_cluster(cls, cluster: Path) -> Self | None:
        """The cluster's owner, or an account of our own, or `nobody`; None if we are not root."""
        if os.geteuid() != 0:
            return None
        owner = cluster.stat().st_uid if cluster.exists() else 0
        entry = _entry(owner) if owner else None
        entry = entry or _named(ACCOUNT) or _made(ACCOUNT) or _named("nobody")
        if entry is None:
            raise EmbeddedPostgresError(
                "PostgreSQL refuses to run as root, and there is no other account to run it",
                hint=f"make one (useradd --system {ACCOUNT}), or run Spillway as an ordinary user",
            )
        return cls(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid)

    def command(self, command: Sequence[str], needs: Sequence[Path]) -> list[str]:
        """The command, to be started by root, run by this account, with access to `needs`.

        Where a parent is closed to the account (a folder under /root, a 0700 temp folder), it gets
        the one capability to look through closed folders. The alternative, to open the parents to
        everybody, would outlive us.
        """
        become = ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups"]
        capability = "dac_read_search" if _has_capability(_CAP_DAC_READ_SEARCH) else "dac_override"
        # Without the secure bit, access(2) would ignore the capability.
        see = [f"--inh-caps=+{capability}", f"--ambient-caps=+{capability}"]
        see.append("--securebits=+no_setuid_fixup")
        checks: list[str] = []
        for path in needs:
            checks += ["-a", "-x", str(path)]
        for prefix in ([*become, "--"], [*become, *see, "--"]):
            try:
                probe = subprocess.run(
                    [*prefix, "test", *checks[1:]], check=False, capture_output=True, cwd="/"
                )
            except FileNotFoundError as error:
                raise EmbeddedPostgresError(
                    "PostgreSQL refuses to run as root, and setpriv is missing to become another",
                    hint="install util-linux, or run Spillway as an ordinary user",
                ) from error
            if probe.returncode == 0:
                return [*prefix, *command]
        raise EmbeddedPostgresError(
            f"PostgreSQL refuses to run as root, and user {self.name} may not enter all of: "
            + ", ".join(str(path) for path in needs),
            hint="choose a data folder that others may enter (chmod o+x on its parents), "
            "install Spillway outside of /root, or run it as an ordinary user",
        )


def processes() -> Iterator[tuple[int, str]]:
    """Each live process with its command line; a zombie has none and is left out."""
    if Path("/proc/self/cmdline").exists():
        for name in os.listdir("/proc"):  # noqa: PTH208 (hundreds of Paths for nothing)
            if name.isdigit() and (line := command_line(int(name))):
                yield int(name), line
        return
    listing = subprocess.run(
        ["ps", "-axww", "-o", "pid=,command="], check=True, capture_output=True, text=True
    )
    for row in listing.stdout.splitlines():
        pid, _, line = row.strip().partition(" ")
        yield int(pid), line.strip()


def command_line(pid: int) -> str:
    """How the process was started, or the title it gave itself; empty if it is dead."""
    if Path("/proc/self/cmdline").exists():
        try:
            content = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return content.replace(b"\0", b" ").decode(errors="replace").strip()
    return dict(processes()).get(pid, "")


def user_name(uid: int) -> str:
    entry = _entry(uid)
    return entry.pw_name if entry else str(uid)


def give(path: Path, account: Account | None) -> None:
    """Make the account own the path."""
    if account is not None:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def give_tree(top: Path, account: Account | None) -> None:
    """Make the account own a folder restored or copied by root; cheap when it does already."""
    if account is None or top.stat().st_uid == account.uid:
        return
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            give(Path(folder, name), account)
    give(top, account)


def sync_folder(path: Path) -> None:
    """Make a rename inside the folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entry(uid: int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return None


def _named(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _made(name: str) -> pwd.struct_passwd | None:
    """A new system account; None where that cannot be (a read-only /etc, no useradd)."""
    command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", name]
    try:
        subprocess.run(command, check=False, capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _named(name)


def _has_capability(number: int) -> bool:
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        return False
    for line in status.splitlines():
        if line.startswith("CapPrm:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False
