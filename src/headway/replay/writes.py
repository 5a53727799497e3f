"""Which ops wrote the memory a tensor lies in, by storage.

A tensor may be filled piece by piece (`out[i] = …`), so every write since the last one that
covered the whole storage counts.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Write(NamedTuple):
    """An op wrote into a storage."""

    order: int
    """Which op."""
    flags: int
    """What of it was non-finite."""
    first: int
    last: int
    """Where, in bytes."""


class Writes:
    """The writes into every storage that are still to be seen."""

    def __init__(self) -> None:
        self._into: dict[int, list[Write]] = {}
        self._shared: set[int] = set()

    def note(self, tensor: Tensor, order: int, flags: int) -> None:
        first, last = span(tensor)
        storage = tensor.untyped_storage()
        write = Write(order, flags, first, last)
        if last - first >= storage.nbytes() and _dense(tensor):
            self._into[storage._cdata] = [write]
        else:
            self._into.setdefault(storage._cdata, []).append(write)

    def begin(self, tensor: Tensor, order: int, flags: int) -> None:
        """The same for memory that is new: what had this address before is gone.

        Holding addresses by weak references instead would pin a few bytes behind every block of
        memory, and the C library's allocator then does not reuse the blocks.
        """
        first, last = span(tensor)
        where = address(tensor)
        self._into[where] = [Write(order, flags, first, last)]
        self._shared.discard(where)

    def know(self, tensor: Tensor) -> bool:
        """Whether something was written there, or into what had the address before."""
        return address(tensor) in self._into

    def share(self, tensor: Tensor) -> None:
        """Other ranks write into this memory, too; when, and what, is not to be seen."""
        self._shared.add(address(tensor))

    def shared(self, tensor: Tensor) -> bool:
        return address(tensor) in self._shared

    def forget(self) -> None:
        """The pass is over."""
        self._into.clear()
        self._shared.clear()

    def into(self, tensor: Tensor) -> list[Write]:
        """The writes into the memory of a tensor, newest first."""
        first, last = span(tensor)
        found = self._into.get(address(tensor), ())
        return [write for write in reversed(found) if write.first < last and first < write.last]


def address(tensor: Tensor) -> int:
    """What tensors that share memory have in common."""
    return int(tensor.untyped_storage()._cdata)


def span(tensor: Tensor) -> tuple[int, int]:
    """The bytes of its storage between which a tensor lies."""
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    reach = sum((length - 1) * step for length, step in steps if length > 0)
    return first, first + (int(reach) + 1) * size


def _dense(tensor: Tensor) -> bool:
    """Whether a tensor leaves no gaps in what it spans."""
    first, last = span(tensor)
    return tensor.numel() * tensor.element_size() >= last - first
