"""Clipping that sees gradients still multiplied by a GradScaler's scale."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

from headway.preflight.observer import Call, Observer

TOPIC = "clip-scaled"
MOST = 3
"""Steps that are told; the rest is the same."""


class ScaledClipping(Observer):
    """Knows of each scaler what it has multiplied, and looks at it when somebody clips."""

    functions = (torch._foreach_clamp_min_, torch.clamp_, Tensor.clamp_)

    def start(self) -> None:
        self._scalers: dict[int, GradScaler] = {}
        self._probe: tuple[Tensor, float] | None = None
        self._told = 0
        self._clean = False

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        if scaler.is_enabled():
            self._scalers[id(scaler)] = scaler

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        """Remember one gradient: whoever unscales by hand makes it smaller."""
        if not self._scalers or self._told >= MOST:
            return
        for optimizer in self.scene.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    norm = _norm(parameter.grad)
                    if norm > 0 and math.isfinite(norm):
                        self._probe = (parameter, norm)
                        return

    def step_ended(self, optimizer: Optimizer) -> None:
        self._scalers.clear()

    def clipping(self, parameters: Sequence[Tensor], total: Tensor) -> None:
        self._look({id(p) for p in parameters}, "clip_grad_norm_", total, _argument("max_norm"))

    def function_begins(self, call: Call) -> None:
        frame = _frame_of("clip_grad_value_")
        if frame is None:
            return
        tensors = call.args[0] if call.args else ()
        given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        grads = {id(item) for item in given}
        owners = {
            id(p)
            for optimizer in self.scene.optimizers
            for group in optimizer.param_groups
            for p in group["params"]
            if id(p.grad) in grads
        }
        self._look(owners, "clip_grad_value_", None, frame.f_locals.get("clip_value"))

    def _look(self, clipped: set[int], name: str, total: Tensor | None, limit: Any) -> None:
        if self._told >= MOST or not self._scalers:
            return
        for scaler in self._scalers.values():
            scale = float(scaler.get_scale())
            if scale == 1.0:
                continue
            for optimizer in self.scene.optimizers:
                own = {id(p) for group in optimizer.param_groups for p in group["params"]}
                if not own & clipped:
                    continue
                state: Any = scaler._per_optimizer_states[id(optimizer)]
                scaled = state["stage"] is OptState.READY and not self._divided_by(scale)
                self._tell(scaled, scale, name, total, limit)
                return

    def _divided_by(self, scale: float) -> bool:
        """Whether somebody has already divided the gradients by hand."""
        if self._probe is None:
            return False
        parameter, before = self._probe
        return _norm(parameter.grad) < before / math.sqrt(scale) if scale > 1 else False

    def _tell(
        self, scaled: bool, scale: float, name: str, total: Tensor | None, limit: Any
    ) -> None:
        if not scaled and self._clean:
            return
        facts: dict[str, Any] = {"scaled": scaled, "scale": scale, "function": name}
        if isinstance(limit, (int, float)):
            facts["limit"] = float(limit)
        if total is not None:
            facts["norm"] = float(total)
        place = self.scene.place()
        if place is not None:
            facts["place"] = place
        self._told += int(scaled)
        self._clean = self._clean or not scaled
        self.evidence.tell(TOPIC, facts)


def _norm(gradient: Tensor | None) -> float:
    if gradient is None or gradient.is_sparse:
        return 0.0
    with torch.no_grad():
        return float(gradient.float().norm())


def _frame_of(function: str) -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(25):
        if frame is None or frame.f_code.co_name == function:
            return frame
        frame = frame.f_back
    return None


def _argument(name: str) -> Any:
    """An argument of the clipping that runs now."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(12):
        if frame is None:
            return None
        if name in frame.f_locals:
            return frame.f_locals[name]
        frame = frame.f_back
    return None
