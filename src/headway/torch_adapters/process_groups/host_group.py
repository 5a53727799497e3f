"""A process group through the host, in addition to the user's own."""

from __future__ import annotations

import os
import re
from typing import Any, ClassVar

import torch.distributed as dist

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

ProcessGroup = Any
"""A torch process group."""
SPARE_DESCRIPTORS = 24
"""File descriptors for what gloo opens beside the sockets, and for the script's next files."""


class HostGroup:
    """A gloo group next to the user's own, shared by all guards of a process over the same ranks.

    It has a socket to every other rank, so it is created when it is first needed (a bad step that
    is run again, a sharded snapshot) and destroyed with the last guard that uses it.
    """

    _of_ranks: ClassVar[dict[tuple[int, ...], HostGroup]] = {}

    def __init__(self, members: tuple[int, ...]) -> None:
        self._members = members
        self._users = 0
        self.group: ProcessGroup = None

    @classmethod
    def state(cls, members: tuple[int, ...]) -> int:
        """0: this process has none for these ranks; 1: one without sockets yet; 2: an open one."""
        held = cls._of_ranks.get(members)
        if held is None or (held.group is not None and not _is_open(held.group)):
            return 0
        return 1 if held.group is None else 2

    @classmethod
    def share(cls, members: tuple[int, ...], *, existing: bool) -> HostGroup:
        """The one of these ranks; a new one unless all ranks have an `existing` one alike."""
        if not existing or members not in cls._of_ranks:
            cls._of_ranks[members] = HostGroup(members)
        held = cls._of_ranks[members]
        held._users += 1
        return held

    @classmethod
    def missing_descriptors(cls, members: tuple[int, ...]) -> int:
        """How many more file descriptors this process needs for a socket to each; 0: enough."""
        if resource is None:
            return 0
        if cls.state(members) == 2:
            return 0
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            used = len(os.listdir("/dev/fd"))
        except OSError:
            return 0
        lacking = used + len(members) + SPARE_DESCRIPTORS - limit
        return 0 if limit == resource.RLIM_INFINITY else max(lacking, 0)

    def open(self) -> ProcessGroup:
        """The process group. All ranks must come here together, the first time."""
        if self.group is None:
            self.group = dist.new_group(
                list(self._members),
                backend="gloo",
                use_local_synchronization=not _are_all_ranks(self._members),
            )
        return self.group

    def release(self) -> None:
        """One user less; the last one closes all sockets."""
        self._users -= 1
        # torch names a group of some of the ranks by their numbers. A second one of that name would
        # find the addresses of the first in the store, so it stays open for the next guard.
        if self._users > 0 or (self.group is not None and not _are_all_ranks(self._members)):
            return
        if self._of_ranks.get(self._members) is self:
            del self._of_ranks[self._members]
        group, self.group = self.group, None
        if group is not None and _is_open(group):
            dist.destroy_process_group(group)


def _are_all_ranks(members: tuple[int, ...]) -> bool:
    return dist.is_initialized() and len(members) == dist.get_world_size()


def _is_open(group: ProcessGroup) -> bool:
    """Whether a group belongs to the process group that is initialized now."""
    try:
        return dist.is_initialized() and dist.get_world_size(group) > 0
    except (ValueError, RuntimeError):
        return False


def first_sentence(error: Exception) -> str:
    """What gloo or NCCL says, without the line of its source and its advice."""
    text = re.sub(r"^\[[^\]]*\]\s*", "", str(error).strip())
    return re.split(r"\.\s|\n", text)[0].rstrip(". ") or type(error).__name__
