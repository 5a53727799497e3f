"""One process at a time records into a run directory: `run.lock`."""

from __future__ import annotations

import json
import os
import socket
import time
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from headway.errors import RunDirInUse

try:
    import fcntl
except ImportError:  # Windows: only the content of the file is compared
    fcntl = None  # type: ignore[assignment]

# A POSIX lock disappears with its process, even after kill -9, and a forked data loader worker does
# not inherit it, as it would inherit an `flock`. It is lost when the process closes any other
# descriptor of the file, and some network file systems have no locks, so the file also names its
# holder: a live process of this host keeps the directory, whatever the file system says.

LOCK_FILE = "run.lock"


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that records into a run directory."""

    pid: int
    host: str
    start_ticks: int
    """Start of the process in clock ticks since boot; 0 where the system does not say."""
    since: float
    """Time of the lock, in seconds since 1970."""

    @classmethod
    def this_process(cls) -> LockHolder:
        pid = os.getpid()
        return cls(pid, socket.gethostname(), start_ticks(pid), time.time())

    @classmethod
    def parse(cls, content: bytes) -> LockHolder | None:
        """The holder named in a lock file; None if it names none."""
        try:
            data = json.loads(content)
            return cls(
                int(data["pid"]),
                str(data["host"]),
                int(data["start_ticks"]),
                float(data["since"]),
            )
        except (ValueError, TypeError, KeyError):
            return None

    @property
    def here(self) -> bool:
        """Whether it runs, or ran, on this host."""
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """Whether it is a process of this host that still runs."""
        if not self.here or fcntl is None:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # of another user
            return True
        # The number may belong to another process by now.
        return not self.start_ticks or start_ticks(self.pid) in (0, self.start_ticks)

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host} (since {when})"


class WritesFiles(Protocol):
    """A writer of a run directory."""

    def let_go(self) -> None:
        """Write nothing any more."""


_writing: weakref.WeakSet[Any] = weakref.WeakSet()


def release_in_children(writer: WritesFiles) -> None:
    """Disable this writer in children forked from now on: the run is that of the parent."""
    _writing.add(writer)


def _let_all_go() -> None:
    for writer in list(_writing):
        writer.let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_all_go)


class RunLock:
    """The lock of one run directory, shared by all guards of this process."""

    _held: ClassVar[dict[Path, RunLock]] = {}

    def __init__(self, path: Path, descriptor: int, doubt: LockHolder | None) -> None:
        self.path = path
        self.doubt = doubt
        """A process on another host that may still record here: this file system has no locks."""
        self._descriptor = descriptor
        self._users = 1
        self._pid = os.getpid()

    @classmethod
    def acquire(cls, folder: Path) -> RunLock:
        """Lock an existing folder. Raises `RunDirInUse` if another process has locked it."""
        path = folder.resolve() / LOCK_FILE
        held = cls._held.get(path)
        if held is not None and held._pid == os.getpid():
            held._users += 1
            return held
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                lock = cls._try(folder, path, descriptor)
            except BaseException:  # Ctrl-C too: an open descriptor would keep the lock
                os.close(descriptor)
                raise
            if lock is not None:
                cls._held[path] = lock
                return lock
            os.close(descriptor)

    @classmethod
    def _try(cls, folder: Path, path: Path, descriptor: int) -> RunLock | None:
        """The lock; None if its last holder has just removed the file."""
        state = _lock(descriptor)
        previous = LockHolder.parse(os.pread(descriptor, 4096, 0))
        if state == "held" or (previous is not None and previous.alive):
            raise RunDirInUse(
                f"the run directory {folder} is in use by {previous or 'another process'}. "
                "Stop that process, or choose another directory"
            )
        if not _same_file(descriptor, path):
            return None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(LockHolder.this_process())).encode() + b"\n", 0)
        doubt = previous if state == "unsupported" and previous and not previous.here else None
        return cls(path, descriptor, doubt)

    def release(self) -> None:
        """Release the directory when its last user has released it."""
        self._users -= 1
        if self._users > 0 or self._pid != os.getpid():  # a forked child holds nothing
            return
        self._held.pop(self.path, None)
        with suppress(OSError):
            if _same_file(self._descriptor, self.path):
                self.path.unlink()
        with suppress(OSError):
            os.close(self._descriptor)


def _lock(descriptor: int) -> Literal["locked", "held", "unsupported"]:
    if fcntl is None:
        return "unsupported"
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return "held"
    except OSError:  # a file system without locks
        return "unsupported"
    return "locked"


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        here, there = os.fstat(descriptor), os.stat(path)
    except OSError:
        return False
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def start_ticks(pid: int) -> int:
    """When a process of this host started, in clock ticks since boot; 0 if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return int(stat.rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def start_time(pid: int) -> float | None:
    """When a process of this host started, in seconds since 1970; None if unknown."""
    ticks = start_ticks(pid)
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        boot = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        return boot + ticks / os.sysconf("SC_CLK_TCK") if ticks else None
    except (OSError, ValueError, StopIteration):
        return None
