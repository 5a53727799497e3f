"""Tensors described in numbers, who owns their memory (parameter, buffer, batch), and which ops
wrote it. A tensor may be filled piece by piece (`out[i] = …`), so every write since the last one
that covered the whole storage counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from headway.explain.explanation import Operand
from headway.explain.failing_step import FailingStep
from headway.torch_adapters.module_stack import unwrap_model, user_path
from headway.torch_adapters.tensor_values import (
    as_real,
    fills_its_span,
    plain_tensor,
    storage_address,
    storage_span,
)

# Tensors described in numbers, and whose they are.


def describe_tensor(tensor: Tensor, name: str, role: str) -> Operand:
    """A plain tensor in numbers."""
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if tensor.numel() == 0:
        return Operand(name, role, shape, dtype)
    if not (tensor.is_floating_point() or tensor.is_complex()):
        low, high = torch.aminmax(tensor.int() if tensor.dtype == torch.bool else tensor)
        zero = int((tensor == 0).sum())
        return Operand(name, role, shape, dtype, float(low), float(high), zero=zero)
    numbers = as_real(tensor)
    finite = numbers.isfinite()
    nan, inf, zero, good = torch.stack(
        [numbers.isnan().sum(), numbers.isinf().sum(), (numbers == 0).sum(), finite.sum()]
    ).tolist()
    range_: tuple[float | None, float | None] = (None, None)
    if good:
        low = torch.where(finite, numbers, math.inf).amin()
        high = torch.where(finite, numbers, -math.inf).amax()
        range_ = (float(low), float(high))
    return Operand(name, role, shape, dtype, *range_, nan=nan, inf=inf, zero=zero)


class MemoryOwners:
    """Whose memory it is: a parameter's, a buffer's, the batch's."""

    def __init__(self, scene: FailingStep) -> None:
        self._of: dict[int, tuple[str, str]] = {}
        self._at: dict[int, tuple[str, str]] = {}
        """By the place in the host's memory: arrays that become tensors in the step."""
        self._given: list[tuple[str, Tensor]] = []
        for position, batch in enumerate(scene.batches):
            prefix = f"batch {position}" if len(scene.batches) > 1 else "batch"
            for keys, tensor in batch_tensors(batch):
                name = prefix + "".join(f"[{key!r}]" for key in keys)
                self._own(tensor, "batch", name)
                self._given.append((name, tensor))
                if tensor.device.type == "cpu" and tensor.layout is torch.strided:
                    self._at[tensor.untyped_storage().data_ptr()] = ("batch", name)
        for name, tensor in scene.data.items():
            self._own(tensor, "data", name)
        for number, model in enumerate(scene.models):
            prefix = f"model{number}." if len(scene.models) > 1 else ""
            for path, buffer in unwrap_model(model).named_buffers():
                self._own(buffer, "buffer", prefix + user_path(path))
            for path, parameter in unwrap_model(model).named_parameters():
                name = scene.names.get(id(parameter), prefix + user_path(path))
                self._own(parameter, "weight", name)
        for optimizer in scene.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) in scene.names:
                        self._own(parameter, "weight", scene.names[id(parameter)])

    def of(self, tensor: Tensor) -> tuple[str, str] | None:
        """(role, name) of what a plain tensor shares its memory with."""
        known = self._of.get(storage_address(tensor))
        if known is None and tensor.device.type == "cpu":
            known = self._at.get(tensor.untyped_storage().data_ptr())
        return known

    def original(self, tensor: Tensor) -> str | None:
        """The name of what is bad at the very same places in the batch: the tensor is a copy."""
        for name, given in self._given:
            if given.shape == tensor.shape and given.is_floating_point():
                alike = (torch.isnan, torch.isinf)
                if all(torch.equal(what(given).cpu(), what(tensor).cpu()) for what in alike):
                    return name
        return None

    def _own(self, tensor: Tensor, role: str, name: str) -> None:
        local = None if is_lazy(tensor) else plain_tensor(tensor.detach())
        if local is not None and local.numel():
            self._of[storage_address(local)] = (role, name)


def batch_tensors(batch: Any) -> list[tuple[tuple[Any, ...], Tensor]]:
    """The tensors of a batch, and its arrays as such; of one that is an object, its attributes."""
    found = list(_numbers_in(batch))
    if not found and hasattr(batch, "__dict__"):
        found = list(_numbers_in(vars(batch)))
    return found


def _numbers_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, np.ndarray):
        with suppress(TypeError, ValueError):  # of a dtype torch has not, or read backwards
            if value.flags.writeable:
                yield path, torch.from_numpy(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers_in(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from _numbers_in(item, (*path, position))


# Which ops wrote the memory a tensor lies in, by storage.

# A tensor may be filled piece by piece (`out[i] = …`), so every write since the last one that
# covered the whole storage counts.


class MemoryWrite(NamedTuple):
    """An op wrote into a storage."""

    order: int
    """Which op."""
    flags: int
    """What of it was non-finite."""
    first: int
    last: int
    """Where, in bytes."""


class MemoryWrites:
    """The writes into every storage that are still to be seen."""

    def __init__(self) -> None:
        self._into: dict[int, list[MemoryWrite]] = {}
        self._shared: set[int] = set()

    def note(self, tensor: Tensor, order: int, flags: int) -> None:
        first, last = storage_span(tensor)
        storage = tensor.untyped_storage()
        write = MemoryWrite(order, flags, first, last)
        where = storage_address(tensor)
        if last - first >= storage.nbytes() and fills_its_span(tensor):
            self._into[where] = [write]
        else:
            self._into.setdefault(where, []).append(write)

    def begin(self, tensor: Tensor, order: int, flags: int) -> None:
        """The same for memory that is new: what had this address before is gone.

        Holding addresses by weak references instead would pin a few bytes behind every block of
        memory, and the C library's allocator then does not reuse the blocks.
        """
        first, last = storage_span(tensor)
        where = storage_address(tensor)
        self._into[where] = [MemoryWrite(order, flags, first, last)]
        self._shared.discard(where)

    def know(self, tensor: Tensor) -> bool:
        """Whether something was written there, or into what had the address before."""
        return storage_address(tensor) in self._into

    def share(self, tensor: Tensor) -> None:
        """Other ranks write into this memory, too; when, and what, is not to be seen."""
        self._shared.add(storage_address(tensor))

    def shared(self, tensor: Tensor) -> bool:
        return storage_address(tensor) in self._shared

    def forget(self) -> None:
        """The pass is over."""
        self._into.clear()
        self._shared.clear()

    def into(self, tensor: Tensor) -> list[MemoryWrite]:
        """The writes into the memory of a tensor, newest first."""
        first, last = storage_span(tensor)
        found = self._into.get(storage_address(tensor), ())
        return [write for write in reversed(found) if write.first < last and first < write.last]
