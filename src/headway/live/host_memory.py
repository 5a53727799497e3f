"""How much memory the host still has, for those who want to take some of it."""

from __future__ import annotations

from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Memory that can be taken without swapping or being killed; None where unknown.

    A container is killed at its own limit, however much the host has.
    """
    known = [found for found in (_of_host(), _of_container()) if found is not None]
    return min(known, default=None)


def _of_host() -> int | None:
    try:
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _of_container() -> int | None:
    try:
        limit = int((CGROUP / "memory.max").read_text())  # "max" where there is none
        return max(limit - int((CGROUP / "memory.current").read_text()), 0)
    except (OSError, ValueError):
        return None
