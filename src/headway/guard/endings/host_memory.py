"""Reads the memory of the host, of a container and of a tree of processes.

From /proc and the control groups of Linux; on other systems from psutil, which is installed there.

A process that the kernel kills leaves nothing behind, so a supervisor reads these facts before and
after, and `judge_kill` compares them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60
"""Version 1 writes a number above this for "no limit"."""
NEAR_LIMIT = 0.9
"""Share of the limit above which a SIGKILL is likely the kernel's."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes, each None where it is not known."""

    total: int | None = None
    """Memory of the host."""
    available: int | None = None
    limit: int | None = None
    """Limit of the container (cgroup), if it has one."""
    used: int | None = None
    """Memory of the container in use."""
    peak: int | None = None
    oom_kills: int | None = None
    """Processes of the container, or of the host, that the kernel has killed for memory."""
    rss: int | None = None
    """Resident memory of the process."""
    tree: int | None = None
    """Resident memory of the process and its children, DataLoader workers among them."""
    children: int = 0

    @classmethod
    def read(cls, pid: int | None = None) -> HostMemory:
        """The facts now, for a process (this one) and its children."""
        pid = os.getpid() if pid is None else pid
        host = read_meminfo()
        group = _cgroup(pid)
        tree = dict(_tree(pid))
        kills = group.get("oom_kills")
        return cls(
            total=host.get("MemTotal"),
            available=host.get("MemAvailable"),
            limit=group.get("limit"),
            used=group.get("used"),
            peak=group.get("peak"),
            oom_kills=_kernel_kills() if kills is None else kills,
            rss=tree.get(pid),
            tree=sum(tree.values()) if tree else None,
            children=max(len(tree) - 1, 0),
        )

    @property
    def bound(self) -> int | None:
        """The smaller of the container's limit and the host's memory."""
        return min((size for size in (self.limit, self.total) if size), default=None)

    def to_dict(self) -> dict[str, Any]:
        """What is known, for an event."""
        found = {**asdict(self), "bound": self.bound}
        return {name: value for name, value in found.items() if value is not None}


def judge_kill(before: HostMemory, after: HostMemory) -> str | None:
    """Whether the kernel's OOM killer ended a process that received SIGKILL.

    `certain`: its counter has grown; `likely`: the memory was nearly full; None: neither.
    `before` are the last facts while the process lived, `after` those when it was gone.
    """
    if before.oom_kills is not None and after.oom_kills is not None:
        if after.oom_kills > before.oom_kills:
            return "certain"
        if before.limit is not None:  # the counter of the container itself: it knows
            return None
    bound = before.bound
    if bound and before.tree and before.tree >= NEAR_LIMIT * bound:
        return "likely"
    if before.total and before.available is not None:
        return "likely" if before.available <= (1 - NEAR_LIMIT) / 2 * before.total else None
    return None


def read_meminfo() -> dict[str, int]:
    """`MemTotal` and `MemAvailable` of the host, in bytes; empty where they are not known."""
    found = {}
    with suppress(OSError, ValueError, IndexError):
        for line in (PROC / "meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                found[name] = int(rest.split()[0]) * 1024
    return found or portable_memory()


def _cgroup(pid: int) -> dict[str, int]:
    """Limit, use and kills of the control group of a process, of either version."""
    for folder, names in _group_folders(pid):
        found = {
            key: value
            for key, name in names.items()
            if (value := _number(folder / name)) is not None and value < UNLIMITED
        }
        for events in ("memory.events", "memory.oom_control"):
            kills = _field(folder / events, "oom_kill")
            if kills is not None:
                found["oom_kills"] = kills
        if found:
            return found
    return {}


_V2 = {"limit": "memory.max", "used": "memory.current", "peak": "memory.peak"}
_V1 = {
    "limit": "memory.limit_in_bytes",
    "used": "memory.usage_in_bytes",
    "peak": "memory.max_usage_in_bytes",
}


def _group_folders(pid: int) -> Iterator[tuple[Path, dict[str, str]]]:
    """Where the counters may be: within a container, the root of the mount is its own group."""
    with suppress(OSError):
        for line in (PROC / str(pid) / "cgroup").read_text().splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number == "0" and not controllers:
                yield CGROUP / path.lstrip("/"), _V2
            elif "memory" in controllers.split(","):
                yield CGROUP / "memory" / path.lstrip("/"), _V1
    yield CGROUP, _V2
    yield CGROUP / "memory", _V1


def _kernel_kills() -> int | None:
    """Kills on the whole host since it started."""
    return _field(PROC / "vmstat", "oom_kill")


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None


def _field(file: Path, name: str) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in file.read_text().splitlines():
            if line.split()[0] == name:
                return int(line.split()[1])
    return None


def _tree(pid: int) -> Iterator[tuple[int, int]]:
    """(process, resident bytes) of a process and its descendants."""
    resident = _field_in_kilobytes(PROC / str(pid) / "status", "VmRSS:")
    if resident is None:
        yield from _portable_tree(pid)
        return
    yield pid, resident
    with suppress(OSError):
        for task in (PROC / str(pid) / "task").iterdir():
            with suppress(OSError, ValueError):
                for child in (task / "children").read_text().split():
                    yield from _tree(int(child))


def _field_in_kilobytes(file: Path, name: str) -> int | None:
    found = _field(file, name)
    return None if found is None else found * 1024


# Systems without /proc.


def _psutil() -> Any:
    if os.path.exists("/proc/self"):
        return None  # what /proc does not say of a process is not there
    try:
        import psutil
    except ImportError:
        return None
    return psutil


def portable_memory() -> dict[str, int]:
    """`MemTotal` and `MemAvailable` in bytes; empty on Linux and without psutil."""
    psutil = _psutil()
    if psutil is None:
        return {}
    memory = psutil.virtual_memory()
    return {"MemTotal": int(memory.total), "MemAvailable": int(memory.available)}


def portable_rss(pid: int) -> int | None:
    """Resident memory of a process; None on Linux, without psutil, or without such a process."""
    return dict(_portable_tree(pid, children=False)).get(pid)


def _portable_tree(pid: int, *, children: bool = True) -> Iterator[tuple[int, int]]:
    psutil = _psutil()
    if psutil is None:
        return
    with suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        found = [process, *(process.children(recursive=True) if children else ())]
        for item in found:
            with suppress(psutil.Error, OSError):
                yield item.pid, int(item.memory_info().rss)
