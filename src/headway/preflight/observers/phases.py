"""How much memory each phase of a step takes (forward, backward, update), and each epoch.

On CUDA the peak of what tensors hold, by the allocator's own count. On the CPU the process's
resident memory at the end of the phase: the allocator keeps no peak there. An epoch is a pass over
the loader that the training draws from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.live.samples import host_rss_bytes
from headway.preflight.observer import Observer

TOPIC = "memory"
STEPS = 3
"""The first steps: what is kept for good (moments) is allocated in them."""
MOST_EPOCHS = 100


class Phases(Observer):
    """Peak memory by phase over the first steps, and by epoch."""

    def start(self) -> None:
        self.peaks: dict[str, int] = {}
        self.epochs: list[int] = []
        """The peak of each epoch that is over."""
        self._told = False
        self._epoch = 0
        """The peak of the one that runs."""
        self._data: Any = None
        """The data set the last batch came from; loaders are often made anew for each epoch."""
        self._trained_on: Any = None
        """The data set whose passes are the epochs: that of the first step."""

    def pass_begun(self, loader: Any) -> None:
        if self._trained_on is not None and _data_of(loader) is self._trained_on:
            self._end_epoch()

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        self._data = _data_of(loader)

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self._end_of("forward")

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self._end_of("backward")

    def step_ended(self, optimizer: Optimizer) -> None:
        self._end_of("update")
        if self._trained_on is None:
            self._trained_on = self._data
        if self.scene.step >= STEPS:
            self._tell()

    def finished(self) -> None:
        self._end_epoch()
        self._told = False
        self._tell()
        self._data = self._trained_on = None

    def _tell(self) -> None:
        if not self._told and self.peaks:
            self._told = True
            kind = "device-peak" if torch.cuda.is_initialized() else "host-resident"
            facts: dict[str, Any] = {"kind": kind, "phases": dict(self.peaks)}
            if self._trained_on is not None and self.epochs:
                facts["epochs"] = self.epochs[:MOST_EPOCHS]
            self.evidence.tell(TOPIC, facts)

    def _end_of(self, phase: str) -> None:
        early = not self._told and self.scene.step <= STEPS
        if torch.cuda.is_initialized():
            used = int(torch.cuda.max_memory_allocated())
            if early:
                torch.cuda.reset_peak_memory_stats()
        else:
            used = host_rss_bytes() or 0
        self._epoch = max(used, self._epoch)
        if early:
            self.peaks[phase] = max(used, self.peaks.get(phase, 0))

    def _end_epoch(self) -> None:
        if self._epoch:
            self.epochs.append(self._epoch)
        self._epoch = 0
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()


def _data_of(loader: Any) -> Any:
    return getattr(loader, "dataset", loader)
