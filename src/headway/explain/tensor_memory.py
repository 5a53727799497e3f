"""Statistics of tensors, the owner of their memory (parameter, buffer, batch), and the ops that
wrote it."""

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


def describe_tensor(tensor: Tensor, name: str, role: str) -> Operand:
    """Statistics of a plain tensor."""
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
    """The owner of memory: a parameter, a buffer or the batch."""

    def __init__(self, failing_step: FailingStep) -> None:
        self._of: dict[int, tuple[str, str]] = {}
        self._at: dict[int, tuple[str, str]] = {}
        """By CPU address: arrays that become tensors in the step."""
        self._given: list[tuple[str, Tensor]] = []
        for position, batch in enumerate(failing_step.batches):
            prefix = f"batch {position}" if len(failing_step.batches) > 1 else "batch"
            for keys, tensor in batch_tensors(batch):
                name = prefix + "".join(f"[{key!r}]" for key in keys)
                self._own(tensor, "batch", name)
                self._given.append((name, tensor))
                if tensor.device.type == "cpu" and tensor.layout is torch.strided:
                    self._at[tensor.untyped_storage().data_ptr()] = ("batch", name)
        for name, tensor in failing_step.data.items():
            self._own(tensor, "data", name)
        for number, model in enumerate(failing_step.models):
            prefix = f"model{number}." if len(failing_step.models) > 1 else ""
            for path, buffer in unwrap_model(model).named_buffers():
                self._own(buffer, "buffer", prefix + user_path(path))
            for path, parameter in unwrap_model(model).named_parameters():
                name = failing_step.names.get(id(parameter), prefix + user_path(path))
                self._own(parameter, "weight", name)
        for optimizer in failing_step.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) in failing_step.names:
                        self._own(parameter, "weight", failing_step.names[id(parameter)])

    def of(self, tensor: Tensor) -> tuple[str, str] | None:
        """(role, name) of the owner of a plain tensor's memory."""
        known = self._of.get(storage_address(tensor))
        if known is None and tensor.device.type == "cpu":
            known = self._at.get(tensor.untyped_storage().data_ptr())
        return known

    def at(self, address: int) -> tuple[str, str] | None:
        """The same for the address of a storage."""
        return self._of.get(address)

    def original(self, tensor: Tensor) -> str | None:
        """Name of the batch tensor with the same non-finite elements: the tensor is a copy of
        it."""
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
    """The tensors of a batch, and its arrays as tensors; for other objects, their attributes."""
    found = list(_numbers_in(batch))
    if not found and hasattr(batch, "__dict__"):
        found = list(_numbers_in(vars(batch)))
    return found


def _numbers_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, np.ndarray):
        with suppress(TypeError, ValueError):  # a dtype that torch lacks, or negative strides
            if value.flags.writeable:
                yield path, torch.from_numpy(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers_in(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from _numbers_in(item, (*path, position))


# Writes by storage. A tensor may be filled piece by piece (`out[i] = …`), so every write since the
# last one that covered the whole storage counts.


class MemoryWrite(NamedTuple):
    """A write of an op to a storage."""

    order: int
    """Index of the op."""
    flags: int
    """Non-finite flags of the written values."""
    first: int
    last: int
    """Byte range."""


_EVERYTHING = 1 << 62


class MemoryWrites:
    """For each storage, the writes that are not yet overwritten."""

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
        """The same for new memory: the previous owner of this address is gone.

        Weak references would pin a few bytes behind each block, and the C allocator would then not
        reuse the blocks.
        """
        first, last = storage_span(tensor)
        where = storage_address(tensor)
        self._into[where] = [MemoryWrite(order, flags, first, last)]
        self._shared.discard(where)

    def pass_over(self, tensor: Tensor, order: int) -> None:
        """Memory written by an op that was not examined."""
        where = storage_address(tensor)
        self._into[where] = [MemoryWrite(order, 0, 0, _EVERYTHING)]
        self._shared.discard(where)

    def know(self, tensor: Tensor) -> bool:
        """Whether a write to this address is known, possibly by a previous owner."""
        return storage_address(tensor) in self._into

    def share(self, tensor: Tensor) -> None:
        """Other ranks write to this memory too, at unknown times."""
        self._shared.add(storage_address(tensor))

    def shared(self, tensor: Tensor) -> bool:
        return storage_address(tensor) in self._shared

    def forget(self) -> None:
        """Forget all writes at the end of a pass."""
        self._into.clear()
        self._shared.clear()

    def into(self, tensor: Tensor) -> list[MemoryWrite]:
        """The writes to the memory of a tensor, newest first."""
        first, last = storage_span(tensor)
        found = self._into.get(storage_address(tensor), ())
        return [write for write in reversed(found) if write.first < last and first < write.last]
