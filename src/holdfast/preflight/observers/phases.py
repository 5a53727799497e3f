"""How much memory each phase of a step takes: forward, backward, update.

On CUDA the peak of what tensors hold, by the allocator's own count. On the CPU the process's
resident memory at the end of the phase: the allocator keeps no peak there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from holdfast.live.samples import host_rss_bytes
from holdfast.preflight.observer import Observer

TOPIC = "memory"
STEPS = 3
"""The first steps: what is kept for good (moments) is allocated in them."""


class Phases(Observer):
    """Peak memory by phase over the first steps."""

    def start(self) -> None:
        self.peaks: dict[str, int] = {}
        self._told = False

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self._end_of("forward")

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self._end_of("backward")

    def step_ended(self, optimizer: Optimizer) -> None:
        self._end_of("update")
        if self.scene.step >= STEPS:
            self._tell()

    def finished(self) -> None:
        self._tell()

    def _tell(self) -> None:
        if not self._told and self.peaks:
            self._told = True
            kind = "device-peak" if torch.cuda.is_initialized() else "host-resident"
            self.evidence.tell(TOPIC, {"kind": kind, "phases": dict(self.peaks)})

    def _end_of(self, phase: str) -> None:
        if self._told or self.scene.step > STEPS:
            return
        if torch.cuda.is_initialized():
            used = int(torch.cuda.max_memory_allocated())
            torch.cuda.reset_peak_memory_stats()
        else:
            used = host_rss_bytes() or 0
        self.peaks[phase] = max(used, self.peaks.get(phase, 0))
