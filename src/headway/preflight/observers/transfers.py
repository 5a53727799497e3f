"""How batches get from the host to the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.preflight.observer import Call, Observer
from headway.preflight.spellings import spellings

TOPIC = "transfer"
LEAST = 1 << 16
"""Bytes below which a copy is not worth a thought."""


class Transfers(Observer):
    """Sums up copies from the host's memory to a CUDA device while something trains."""

    functions = spellings("to", "cuda")

    def start(self) -> None:
        self._copies = 0
        self._bytes = 0
        self._pageable = 0
        self._blocking = 0
        self._place: dict[str, Any] | None = None
        self._steps = 0

    def function_ended(self, call: Call) -> None:
        source = call.args[0] if call.args else None
        if not isinstance(source, Tensor) or not isinstance(call.result, Tensor):
            return
        if not source.is_cpu or not call.result.is_cuda or source.nbytes < LEAST:
            return
        if source.requires_grad or self.scene.launch.guard is None:
            return  # a model on its way, not a batch
        self._copies += 1
        self._bytes += source.nbytes
        if not source.is_pinned():
            self._pageable += source.nbytes
            self._place = self._place or self.scene.place()
        elif call.kwargs.get("non_blocking") is not True:
            self._blocking += source.nbytes
            self._place = self._place or self.scene.place()

    def step_ended(self, optimizer: Any) -> None:
        self._steps += 1

    def finished(self) -> None:
        if not torch.cuda.is_available():
            self.evidence.unavailable(TOPIC, "there is no CUDA device to copy batches to")
        elif self._steps:
            self.evidence.tell(
                TOPIC,
                {
                    "copies": self._copies,
                    "bytes_per_step": self._bytes / self._steps,
                    "pageable_per_step": self._pageable / self._steps,
                    "blocking_per_step": self._blocking / self._steps,
                    "steps": self._steps,
                    "place": self._place,
                },
            )
