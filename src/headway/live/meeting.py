"""Nobody waits for a rank that will not come.

While a step is run again, one rank's may raise where the others' does not, and they would wait for
it in their next collective. So every rank asks the others before each of them, whoever starts it:
FSDP, DistributedDataParallel, SyncBatchNorm, the user. Where one has failed, or they are not all at
the same place, every rank's step ends where it is.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from headway.errors import RankLost
from headway.live.ranks import LOST

_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
_WAITING = "wait_tensor"
_BETWEEN_TWO = ("send", "recv_", "recv_any_source_")


class StepEnded(RuntimeError):
    """This rank's step is not run to its end, because another's is not."""


class Place(IntEnum):
    """Where a rank is; what the highest one says goes for all."""

    TOGETHER = 0
    """Before a collective."""
    OVER = 1
    FAILED = 2


class Rounds:
    """The questions of one rank to all, each answered by all."""

    def __init__(self, group: Any) -> None:
        """`group`: a process group of all ranks that nobody else uses."""
        self._group = group

    def ask(self, place: Place, what: str = "") -> Place:
        """Where the ranks are; FAILED where they are not all there, or ask another thing."""
        mark = zlib.crc32(what.encode())
        said = torch.tensor([place, -place, mark, -mark], dtype=torch.int64)
        try:
            dist.all_reduce(said, op=dist.ReduceOp.MAX, group=self._group)
        except RuntimeError as error:
            raise RankLost(f"while a bad step was run again: {LOST}") from error
        highest, lowest, most, least = said.tolist()
        alike = highest == -lowest and most == -least
        return Place(highest) if alike else Place.FAILED


class Meeting(TorchDispatchMode):
    """One run of a step on every rank."""

    def __init__(self, rounds: Rounds) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rounds = rounds
        self._ended = False
        """Whether all ranks know that the step is over, well or not."""
        self.parted = False
        """Whether it ended on some rank before it was over."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in _NAMESPACES and _name(func) != _WAITING:
            self._before(func, args)
        return func(*args, **(kwargs or {}))

    def end(self, *, failed: bool) -> None:
        """This rank's step is over. Returns when every rank's is."""
        if not self._ended:
            self._ended = True
            place = self._rounds.ask(Place.FAILED if failed else Place.OVER)
            self.parted = place is not Place.OVER

    def _before(self, func: Any, args: Any) -> None:
        """A collective is about to begin on this rank."""
        if self._ended:
            raise StepEnded("another rank's step ended early")
        alone = _name(func) in _BETWEEN_TWO  # a pipeline: its ranks do different things
        place = self._rounds.ask(Place.FAILED if alone else Place.TOGETHER, _what(func, args))
        if place is not Place.TOGETHER:
            self._ended = self.parted = True
            raise StepEnded(
                "ranks that send to one another cannot be run again together"
                if alone
                else "another rank's step ended early"
            )


def _name(func: Any) -> str:
    name: str = func._schema.name
    return name.rpartition("::")[2]


def _what(func: Any, args: Any) -> str:
    """The same for collectives that go together."""
    return repr((_name(func), [size for item in args if (size := _size(item))]))


def _size(item: Any) -> int | None:
    if not isinstance(item, torch.ScriptObject):
        return None
    try:
        return int(dist.ProcessGroup.unbox(item).size())
    except (RuntimeError, AttributeError):  # a reduction, or a torch that does not tell
        return None
