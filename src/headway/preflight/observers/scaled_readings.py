"""Gradient norms that the script reads while a GradScaler's scale is still in them."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from headway.preflight.observer import Call, Observer
from headway.preflight.spellings import spellings

TOPIC = "scaled-reading"
STEPS = 12
"""The first steps; a scaler that looks for its scale makes some of them infinite."""
_NORMS = spellings("norm", "vector_norm")
SAME = 0.01
"""How far two norms of one gradient may differ by rounding."""
_CLIPPING = frozenset({"clip_grad_norm_", "clip_grads_with_norm_"})


class ScaledReadings(Observer):
    """Hears the norms of gradients being taken, and compares them with what backward left."""

    functions = (*_NORMS, torch._foreach_norm)

    def start(self) -> None:
        self._scaler: GradScaler | None = None
        self._left: dict[int, float] = {}
        """The norm of each gradient as backward left it, by where its numbers lie."""
        self._read: dict[int, float] = {}
        self._place: dict[str, Any] | None = None
        self._told = False

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        if not self._told and self.scene.step < STEPS and scaler.get_scale() != 1.0:
            self._scaler = scaler if scaler.is_enabled() else None

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self._forget()
        if self._scaler is None or self._told:
            return
        gradients = [
            parameter.grad
            for optimizer in self.scene.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
            and not (parameter.grad.is_sparse or parameter.grad.is_meta)
        ]
        if gradients:
            norms = [gradient.float().norm() for gradient in gradients]
            for gradient, norm in zip(gradients, norms, strict=True):
                self._left[gradient.data_ptr()] = float(norm)

    def function_ended(self, call: Call) -> None:
        if not self._left:
            return
        given: Any = call.args[:1]
        results: Any = (call.result,)
        if call.function is torch._foreach_norm:
            given, results = call.args[0], call.result
        for item, result in zip(given, results, strict=False):
            if isinstance(item, Tensor) and isinstance(result, Tensor) and result.numel() == 1:
                self._hear(item, result)

    def _hear(self, item: Tensor, result: Tensor) -> None:
        left = self._left.get(item.data_ptr())
        if left is None or _within(_CLIPPING):
            return
        norm = float(result)
        # What was divided meanwhile, by the scaler or by hand, is another number now.
        if math.isclose(norm, left, rel_tol=SAME):
            self._read[item.data_ptr()] = norm
            self._place = self._place or self.scene.place()

    def step_begins(self, optimizer: Optimizer) -> None:
        self._conclude()

    def step_skipped(self, optimizer: Optimizer) -> None:
        self._conclude()

    def _conclude(self) -> None:
        scaler, read, place = self._scaler, list(self._read.values()), self._place
        # Somebody who looks at one gradient of many does not take it for the norm of the step.
        enough = bool(read) and 2 * len(read) >= len(self._left)
        self._forget()
        self._scaler = None
        norm = math.sqrt(sum(item * item for item in read))
        if scaler is None or not enough or not math.isfinite(norm) or norm == 0:
            return
        self._told = True
        scale = float(scaler.get_scale())
        facts = {
            "scale": scale,
            "tensors": len(read),
            "added": sum(read),
            "norm": norm,
            "true_norm": norm / scale,
        }
        self.evidence.tell(TOPIC, facts if place is None else facts | {"place": place})

    def _forget(self) -> None:
        self._left, self._read, self._place = {}, {}, None


def _within(names: frozenset[str]) -> bool:
    """Whether one of these functions is what calls this."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(14):
        if frame is None:
            return False
        if frame.f_code.co_name in names:
            return True
        frame = frame.f_back
    return False
