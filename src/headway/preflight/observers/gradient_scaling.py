"""Gradients that are clipped or read while a GradScaler's scale is still in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from headway.preflight.observer import Observer, TorchCall
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.frames import current_frame, find_caller, walk_callers
from headway.torch_adapters.optimizer_adapter import gradients_are_scaled

# Clipping that sees gradients still multiplied by a GradScaler's scale.

SCALED_CLIPPING_TOPIC = "clip-scaled"
MOST_CLIPPINGS = 3
"""Maximum number of reported steps."""


class ScaledClipping(Observer):
    """Records the losses that each scaler multiplies, and inspects them when gradients are
    clipped."""

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
        """Keep one gradient: a script that unscales by hand makes it smaller."""
        if not self._scalers or self._told >= MOST_CLIPPINGS:
            return
        for optimizer in self.script.optimizers:
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

    def function_begins(self, call: TorchCall) -> None:
        frame = find_caller(("clip_grad_value_",), 25)
        if frame is None:
            return
        tensors = call.args[0] if call.args else ()
        given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        grads = {id(item) for item in given}
        owners = {
            id(p)
            for optimizer in self.script.optimizers
            for group in optimizer.param_groups
            for p in group["params"]
            if id(p.grad) in grads
        }
        self._look(owners, "clip_grad_value_", None, frame.f_locals.get("clip_value"))

    def _look(self, clipped: set[int], name: str, total: Tensor | None, limit: Any) -> None:
        if self._told >= MOST_CLIPPINGS or not self._scalers:
            return
        for scaler in self._scalers.values():
            scale = float(scaler.get_scale())
            if scale == 1.0:
                continue
            for optimizer in self.script.optimizers:
                own = {id(p) for group in optimizer.param_groups for p in group["params"]}
                if not own & clipped:
                    continue
                scaled = gradients_are_scaled(scaler, optimizer) and not self._divided_by(scale)
                self._report(scaled, scale, name, total, limit)
                return

    def _divided_by(self, scale: float) -> bool:
        """Whether the script has already unscaled the gradients itself."""
        if self._probe is None:
            return False
        parameter, before = self._probe
        return _norm(parameter.grad) < before / math.sqrt(scale) if scale > 1 else False

    def _report(
        self, scaled: bool, scale: float, name: str, total: Tensor | None, limit: Any
    ) -> None:
        if not scaled and self._clean:
            return
        facts: dict[str, Any] = {"scaled": scaled, "scale": scale, "function": name}
        if isinstance(limit, (int, float)):
            facts["limit"] = float(limit)
        if total is not None:
            facts["norm"] = float(total)
        place = self.script.place()
        if place is not None:
            facts["place"] = place
        self._told += int(scaled)
        self._clean = self._clean or not scaled
        self.evidence.record(SCALED_CLIPPING_TOPIC, facts)


def _norm(gradient: Tensor | None) -> float:
    if gradient is None or gradient.is_sparse:
        return 0.0
    with torch.no_grad():
        return float(gradient.float().norm())


def _argument(name: str) -> Any:
    """An argument of the clipping that runs now."""
    for frame in walk_callers(current_frame(2), 12):
        if name in frame.f_locals:
            return frame.f_locals[name]
    return None


# Gradient norms that the script reads while a GradScaler's scale is still in them.

SCALED_READING_TOPIC = "scaled-reading"
READING_STEPS = 12
"""The first steps; a scaler that looks for its scale makes some of them infinite."""
_NORMS = find_aliases("norm", "vector_norm")
SAME = 0.01
"""How far two norms of one gradient may differ by rounding."""
_CLIPPING = frozenset({"clip_grad_norm_", "clip_grads_with_norm_"})


class ScaledReadings(Observer):
    """Observes norms of gradients, and compares them with the gradients after backward."""

    functions = (*_NORMS, torch._foreach_norm)

    def start(self) -> None:
        self._scaler: GradScaler | None = None
        self._left: dict[int, float] = {}
        """The norm of each gradient as backward left it, by where its numbers lie."""
        self._read: dict[int, float] = {}
        self._place: dict[str, Any] | None = None
        self._told = False

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        if not self._told and self.script.step < READING_STEPS and scaler.get_scale() != 1.0:
            self._scaler = scaler if scaler.is_enabled() else None

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self._forget()
        if self._scaler is None or self._told:
            return
        gradients = [
            parameter.grad
            for optimizer in self.script.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
            and not (parameter.grad.is_sparse or parameter.grad.is_meta)
        ]
        if gradients:
            norms = [gradient.float().norm() for gradient in gradients]
            for gradient, norm in zip(gradients, norms, strict=True):
                self._left[gradient.data_ptr()] = float(norm)

    def function_ended(self, call: TorchCall) -> None:
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
        if left is None or find_caller(_CLIPPING, 14) is not None:
            return
        norm = float(result)
        # What was divided meanwhile, by the scaler or by hand, is another number now.
        if math.isclose(norm, left, rel_tol=SAME):
            self._read[item.data_ptr()] = norm
            self._place = self._place or self.script.place()

    def step_begins(self, optimizer: Optimizer) -> None:
        self._conclude()

    def step_skipped(self, optimizer: Optimizer) -> None:
        self._conclude()

    def _conclude(self) -> None:
        scaler, read, place = self._scaler, list(self._read.values()), self._place
        # Reading one gradient of many is not reading the gradient norm.
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
        self.evidence.record(
            SCALED_READING_TOPIC, facts if place is None else facts | {"place": place}
        )

    def _forget(self) -> None:
        self._left, self._read, self._place = {}, {}, None
