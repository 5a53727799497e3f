"""Numbers from the device to the host.

On the CPU there is nothing to wait for. On CUDA the numbers of a step are packed into one tensor
and copied to pinned memory behind the step's own work; the host picks them up `LAG` steps later. It
picks up exactly those, no sooner even if they are there: what the brake knows at a step must not
depend on timing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

LAG = 1
"""Steps between a number's birth on CUDA and its use: meanwhile the device has a whole forward and
backward pass queued. No more: a bad step is to be looked into before the weights move on."""

Readings = Mapping[str, list[float]]


class Taker(Protocol):
    """Who gets the numbers, in order."""

    def __call__(self, note: Any, readings: Readings) -> None: ...


class HostTransfer:
    """For the CPU: delivered as sent."""

    lag = 0

    def __init__(self, take: Taker) -> None:
        self._take = take

    def send(self, note: Any, tensors: Mapping[str, Tensor]) -> None:
        """Hand over a step's tensors together with what the host knows of it."""
        self._take(note, {name: tensor.reshape(-1).tolist() for name, tensor in tensors.items()})

    def collect(self) -> None:
        """Deliver what is due before the next step."""

    def flush(self) -> None:
        """Deliver everything."""


class DeviceTransfer:
    """For CUDA: packed, copied asynchronously, delivered `LAG` steps later."""

    lag = LAG

    def __init__(self, take: Taker, device: torch.device) -> None:
        self._take = take
        self._device = device
        self._pending: deque[_Parcel] = deque()
        self._spare: list[Tensor] = []

    def send(self, note: Any, tensors: Mapping[str, Tensor]) -> None:
        parts = [tensor.reshape(-1) for tensor in tensors.values()]
        packed = torch.cat(
            [part if part.dtype is torch.float32 else part.float() for part in parts]
        )
        count = packed.numel()
        target = self._pinned(count)
        target[:count].copy_(packed, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        sizes = {name: part.numel() for name, part in zip(tensors, parts, strict=True)}
        self._pending.append(_Parcel(note, sizes, target, event))

    def collect(self) -> None:
        while len(self._pending) >= LAG:
            self._deliver()

    def flush(self) -> None:
        while self._pending:
            self._deliver()

    def _pinned(self, count: int) -> Tensor:
        for position, spare in enumerate(self._spare):
            if spare.numel() >= count:
                return self._spare.pop(position)
        # A growing model needs larger slots; round up so that sampled steps reuse them too.
        return torch.empty(2 * count + 64, dtype=torch.float32, device="cpu", pin_memory=True)

    def _deliver(self) -> None:
        parcel = self._pending.popleft()
        if not parcel.event.query():
            parcel.event.synchronize()
        values = parcel.memory[: sum(parcel.sizes.values())].tolist()
        self._spare.append(parcel.memory)
        if len(self._spare) > LAG + 2:
            self._spare.pop(0)
        readings, at = {}, 0
        for name, size in parcel.sizes.items():
            readings[name] = values[at : at + size]
            at += size
        self._take(parcel.note, readings)


class _Parcel:
    __slots__ = ("event", "memory", "note", "sizes")

    def __init__(
        self, note: Any, sizes: Mapping[str, int], memory: Tensor, event: torch.cuda.Event
    ) -> None:
        self.note = note
        self.sizes = sizes
        self.memory = memory
        self.event = event
