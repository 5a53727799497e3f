"""Rare agreements among ranks, and the process group through the host that they use."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from headway.errors import RankLost
from headway.torch_adapters.patching import allow_device_sync
from headway.torch_adapters.private_parts import private_part

if TYPE_CHECKING:
    from headway.torch_adapters.process_groups.rank_group import RankGroup

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

ProcessGroup = Any
"""A torch process group."""
SPARE_DESCRIPTORS = 24
"""File descriptors for what gloo opens beside the sockets, and for the script's next files."""
LOST = (
    "a rank died, hangs or left the loop: check the last output of the other ranks. This rank took "
    "no step without them; start the run again"
)

T = TypeVar("T")


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
            everyone = _are_all_ranks(self._members)
            with _numbered_apart() if everyone else nullcontext():
                self.group = dist.new_group(
                    list(self._members), backend="gloo", use_local_synchronization=not everyone
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


_world: Any = private_part(
    "torch.distributed.distributed_c10d._world",
    None,
    without="the ranks cannot agree on anything after the script made a group on some of them only",
)
_FIRST_NUMBER = 1_000_000
_opened = 0
"""Groups of all ranks that were opened here: as many on every rank."""


@contextmanager
def _numbered_apart() -> Iterator[None]:
    """Within: the name of a new group does not depend on how many the script has made.

    torch names a group by the number of those before it. A script that makes one on some ranks only
    runs well; the next group of all ranks would wait for ever, because its name differs.
    """
    global _opened
    _opened += 1
    before = getattr(_world, "group_count", None)
    if before is None:
        yield
        return
    _world.group_count = _FIRST_NUMBER + _opened
    try:
        yield
    finally:
        _world.group_count = before


def _are_all_ranks(members: tuple[int, ...]) -> bool:
    return dist.is_initialized() and len(members) == dist.get_world_size()


def _is_open(group: ProcessGroup) -> bool:
    """Whether a group belongs to the process group that is initialized now."""
    try:
        return dist.is_initialized() and dist.get_world_size(group) > 0
    except (ValueError, RuntimeError):
        return False


def first_sentence(error: Exception) -> str:
    """The message of gloo or NCCL, without the line of its source and its advice."""
    text = re.sub(r"^\[[^\]]*\]\s*", "", str(error).strip())
    return re.split(r"\.\s|\n", text)[0].rstrip(". ") or type(error).__name__


# Agreements about which snapshot, which number, whether all is well.

# The verdict about a step travels in a reduction of its own (`rank_vote.py`); this is for what
# happens once in a hundred steps or less, always at the same step on every rank. An answer that is
# the same on all ranks costs one all-reduce of a few numbers, another one all-gather more.


class SingleProcess:
    """A training of one process."""

    rank = 0
    count = 1

    def __init__(self, number: int = 0) -> None:
        """`number` distinguishes it from other processes that train separately."""
        self.folder = f"snapshots.rank{number}" if number else "snapshots"
        """Where its snapshots go in the run directory."""
        self.can_meet = True
        """Whether ranks can make requests once training has begun."""

    def from_rank_zero(self, value: T) -> T:
        """What rank 0 says."""
        return value

    def all_agree(self, value: bool) -> bool:
        """Whether every rank says yes."""
        return value

    def gather(self, value: T) -> list[T]:
        """What every rank says, in their order."""
        return [value]

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Fill host tensors with those of rank 0, which every rank names in the same order."""

    def close(self) -> None:
        """No rank makes another request."""


class Agreement(SingleProcess):
    """A training of several processes. Every rank must ask the same questions in the same order."""

    def __init__(self, ranks: RankGroup) -> None:
        super().__init__()
        self._ranks = ranks
        self.rank = ranks.rank
        self.count = ranks.size
        self._host = HostGroup.share(ranks.members, existing=ranks.shares_host_group)
        self.can_meet = not ranks.missing_descriptors
        self._closed = False

    def from_rank_zero(self, value: T) -> T:
        return self.gather(value)[0]

    def all_agree(self, value: bool) -> bool:
        return all(self.gather(value))

    def gather(self, value: T) -> list[T]:
        _, _, values = self.vote((), value)
        return values()

    def vote(
        self, numbers: Sequence[int], value: T
    ) -> tuple[list[int], list[int], Callable[[], list[T]]]:
        """(the highest numbers of all ranks, the lowest, what every rank says if all ask)."""
        group, device = self._meet()
        data = pickle.dumps(value)
        mark = int.from_bytes(hashlib.sha256(data).digest()[:7], "big")
        sent = [*numbers, mark, len(data)]
        message = torch.tensor([*sent, *(-n for n in sent)], dtype=torch.int64, device=device)
        self._run(dist.all_reduce, message, op=dist.ReduceOp.MAX, group=group)
        with allow_device_sync():
            found = message.tolist()
        high, low = found[: len(sent)], [-n for n in found[len(sent) :]]

        def values() -> list[T]:
            if high[-2:] == low[-2:]:
                return [value] * self.count
            padded = data.ljust(high[-1], b"\0")
            own = torch.frombuffer(bytearray(padded), dtype=torch.uint8).to(device)
            each = [torch.empty_like(own) for _ in range(self.count)]
            self._run(dist.all_gather, each, own, group=group)
            with allow_device_sync():
                return [pickle.loads(bytes(item.tolist())) for item in each]

        return high[:-2], low[:-2], values

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        group, device = self._meet()
        for tensor in tensors:
            sent = tensor.to(device)
            self._run(dist.broadcast, sent, src=self._ranks.members[0], group=group)
            if sent is not tensor:
                with allow_device_sync():
                    tensor.copy_(sent)

    def _meet(self) -> tuple[ProcessGroup, torch.device]:
        """The group and the device through which ranks talk: before the first step the user's own,
        so that a healthy run needs no other."""
        if self._ranks.training:
            return self._host.open(), torch.device("cpu")
        return self._ranks.group, self._ranks.reduction_device()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._host.release()

    def _run(self, collective: Callable[..., Any], *args: Any, **how: Any) -> None:
        try:
            collective(*args, **how)
        except RuntimeError as error:
            raise RankLost(f"rank {self.rank} of {self.count} lost the others: {LOST}") from error


# Ranks whose guards do not know each other, because no wrapper shows that they train together.

_default_store: Callable[[], Any] | None = private_part(
    "torch.distributed.distributed_c10d._get_default_store",
    None,
    without="a rank does not learn the origin of a bad number that another one sent to it",
)


def leave_note(topic: str, text: str) -> None:
    """Let the other ranks of the process group read this; nobody waits."""
    with suppress(RuntimeError, ValueError):  # no process group, or its store is gone
        if _default_store is not None:
            _default_store().set(f"headway/{topic}/{dist.get_rank()}", text)


def read_notes(topic: str, seconds: float) -> dict[int, str]:
    """What other ranks have left under this topic, by rank; waits so long for the first one."""
    until = time.monotonic() + seconds
    with suppress(RuntimeError, ValueError):
        while _default_store is not None:
            store, own = _default_store(), dist.get_rank()
            others = (rank for rank in range(dist.get_world_size()) if rank != own)
            keys = {rank: f"headway/{topic}/{rank}" for rank in others}
            found = {
                rank: store.get(key).decode() for rank, key in keys.items() if store.check([key])
            }
            if found or time.monotonic() >= until:
                return found
            time.sleep(0.05)
    return {}
