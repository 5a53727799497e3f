"""The norms of all gradients in one launch on CUDA, instead of many of `torch._foreach_norm`.

The host hands the device one table of addresses, and only when an address has changed. Where Triton
is missing or cannot compile, or its bits differ from torch's, torch's own operation is used.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from operator import attrgetter, methodcaller
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger("headway")

PROOFS = 3
"""Steps whose norms are computed both ways before the kernels are relied upon."""
FEWEST = 32
"""Tensors from which on one launch is faster than those of torch."""

_ADDRESS = methodcaller("data_ptr")
_SIZE = methodcaller("numel")
_DENSE = methodcaller("is_contiguous")
_DTYPE = attrgetter("dtype")
_DEVICE = attrgetter("device")


@cache
def _kernels() -> Any:
    """The kernels, or None where Triton is missing."""
    try:
        from headway.torch_adapters import fused_norms_kernels
    except Exception:  # an installation of Triton may be broken in any way
        return None
    return fused_norms_kernels if fused_norms_kernels.AVAILABLE else None


@dataclass(frozen=True, slots=True)
class TensorNorms:
    """One number per tensor, on the device."""

    each: Tensor
    largest: Tensor
    """The largest magnitude; NaN does not count."""
    nonfinite: Tensor
    """1 where an element is not finite, else 0."""


class _Layout:
    """The sizes of a list of tensors of one dtype, cut into chunks."""

    def __init__(self, sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        kernels = _kernels()
        self.sizes, self.dtype = sizes, dtype
        pieces = [-(-size // kernels.CHUNK) for size in sizes]
        self.firsts = [0, *accumulate(pieces)]
        owners = [owner for owner, count in enumerate(pieces) for _ in range(count)]
        starts = [piece * kernels.CHUNK for count in pieces for piece in range(count)]
        numbers = [*sizes, *self.firsts, *owners, *starts]
        table = _to_device(numbers, device)
        self.chunks = len(owners)
        counts = (len(sizes), len(self.firsts), len(owners), len(starts))
        self.tables: list[Tensor] = list(table.split(counts))


def _to_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    host = torch.tensor(numbers, dtype=torch.int64)
    if device.type != "cuda":
        return host
    return host.pin_memory().to(device, non_blocking=True)


class FusedNorms:
    """Measures the gradients of one optimizer."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._device = parameters[0].device if parameters else torch.device("cpu")
        on_device = self._device.type == "cuda" and torch.version.cuda is not None
        self._works = on_device and len(parameters) >= FEWEST and _kernels() is not None
        self._layout: _Layout | None = None
        self._addresses: tuple[int, ...] = ()
        self._pointers: Tensor | None = None
        self._agreed = 0

    @property
    def proven(self) -> bool:
        """Whether the bits were those of torch at the first steps of this layout."""
        return self._agreed >= PROOFS

    @property
    def works(self) -> bool:
        """Whether the kernels may be tried."""
        return self._works

    def compared(self, differ: bool) -> None:
        """The norms of a step, computed both ways, have arrived on the host."""
        self._agreed += 1
        if differ:
            self.give_up("norms of the fused kernel differ from those of torch")

    def give_up(self, reason: object) -> None:
        """Use torch from here on."""
        self._works, self._agreed = False, 0
        logger.debug("gradients are measured by torch, not by the fused kernel: %s", reason)

    def measure(self, gradients: list[Tensor]) -> TensorNorms | None:
        """The norms of dense gradients of one dtype on this device; None where torch must do it."""
        if not self._works:
            return None
        try:
            return self._launch(gradients)
        except Exception as error:  # whatever a compiler raises: torch does the same work
            self.give_up(error)
            return None

    def _launch(self, gradients: list[Tensor]) -> TensorNorms | None:
        # Each is checked at each step: the kernels read memory, and would not notice.
        sizes = tuple(map(_SIZE, gradients))
        dtypes = set(map(_DTYPE, gradients))
        if not (
            len(dtypes) == 1
            and all(map(_DENSE, gradients))
            and set(map(_DEVICE, gradients)) == {self._device}
        ):
            return None
        dtype = dtypes.pop()
        kind = _kind(dtype)
        if kind is None or (self._device.type == "cuda" and not _is_current(self._device)):
            return None
        layout = self._layout
        if layout is None or layout.sizes != sizes or layout.dtype != dtype:
            layout = self._layout = _Layout(sizes, dtype, self._device)
            self._agreed, self._addresses = 0, ()
        addresses = tuple(map(_ADDRESS, gradients))
        if addresses != self._addresses or self._pointers is None:
            self._pointers = _to_device(addresses, self._device)
            self._addresses = addresses
        return _run(layout, self._pointers, kind, dtype.itemsize, self._device)


def _run(
    layout: _Layout, pointers: Tensor, kind: Any, width: int, device: torch.device
) -> TensorNorms:
    kernels = _kernels()
    count = len(layout.sizes)
    sizes, firsts, owners, starts = layout.tables
    partial = torch.empty((2, max(layout.chunks, 1)), dtype=torch.float32, device=device)
    squares, largest = partial.unbind()
    found = torch.empty((3, count), dtype=torch.float32, device=device)
    if layout.chunks:
        kernels.squares_of_chunks[(layout.chunks,)](
            pointers,
            sizes,
            owners,
            starts,
            squares,
            largest,
            KIND=kind,
            WIDTH=width,
            CHUNK=kernels.CHUNK,
            THREADS=kernels.THREADS,
            num_warps=kernels.THREADS // 32,
        )
    kernels.norms_of_tensors[(count,)](
        squares, largest, firsts, found, count, THREADS=kernels.THREADS, num_warps=4
    )
    return TensorNorms(*found.unbind())


@cache
def _kind(dtype: torch.dtype) -> Any:
    """Triton's name of a dtype; None for one that the kernels do not add up in float32."""
    language = _kernels().tl
    return {
        torch.float32: language.float32,
        torch.float16: language.float16,
        torch.bfloat16: language.bfloat16,
    }.get(dtype)


def _is_current(device: torch.device) -> bool:
    return device.index == torch.cuda.current_device()


def differ(some: Tensor, others: Tensor) -> Tensor:
    """Whether numbers differ; NaN equals NaN. Stays on the device."""
    same = (some == others) | (some.isnan() & others.isnan())
    return ~same.all()
