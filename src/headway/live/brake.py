"""Holding an update back so that nothing moves.

On the host: every gradient is set to None, which for every torch optimizer is a true no-op (zeroing
is not: momentum and weight decay still move the weights), and given back after the step. Inside a
fused CUDA kernel: the verdict goes into `found_inf` and the clip coefficient into `grad_scale`, the
two tensors the kernel was given for GradScaler, so that it skips or clips by itself and the host
never waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer


class HostBrake:
    """Takes the gradients away for the duration of a step."""

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, Tensor]] = []

    def hold(self, parameters: Sequence[Tensor]) -> None:
        """From here to `release`, these parameters have no gradient."""
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is not None:
                self._kept.append((parameter, gradient))
                parameter.grad = None

    def release(self) -> None:
        """Give the gradients back: the user's own code may want to look at them."""
        for parameter, gradient in self._kept:
            if parameter.grad is None:
                parameter.grad = gradient
        self._kept.clear()


class KernelBrake:
    """Speaks to a fused optimizer through the tensors its kernel reads."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._ours: list[str] = []

    def apply(self, bad: Tensor, scale: Tensor | None) -> None:
        """Skip the step where `bad` is true; divide the gradients by `scale` inside the kernel."""
        found = bad.to(torch.float32)
        theirs = getattr(self._optimizer, "found_inf", None)
        if theirs is not None:  # a GradScaler's; the kernel wants exactly 0 or 1
            found = torch.maximum(found, theirs.to(found.device, torch.float32).reshape(()))
        self._set("found_inf", found)
        if scale is not None:
            self._set("grad_scale", scale)

    def release(self) -> None:
        """Take back what was ours; what a GradScaler had set, it removes itself."""
        for name in self._ours:
            if hasattr(self._optimizer, name):
                delattr(self._optimizer, name)
        self._ours.clear()

    def _set(self, name: str, value: Tensor) -> None:
        if not hasattr(self._optimizer, name):
            self._ours.append(name)
        setattr(self._optimizer, name, value)


def is_fused_on_cuda(optimizer: Optimizer) -> bool:
    """Whether every group of the optimizer runs in a fused kernel on one CUDA device."""
    devices: set[torch.device] = set()
    for group in optimizer.param_groups:
        if not group.get("fused"):
            return False
        devices.update(parameter.device for parameter in group["params"])
    return len(devices) == 1 and next(iter(devices)).type == "cuda"


def fuse(optimizer: Optimizer) -> bool:
    """Switch Adam, AdamW, SGD or Adagrad to the fused form; False where that is not possible."""
    if not isinstance(
        optimizer, (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
    ):
        return False
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not all(p.device.type == "cuda" and p.is_floating_point() for p in parameters):
        return False
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return False
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
    optimizer.defaults["fused"], optimizer.defaults["foreach"] = True, False
    optimizer._step_supports_amp_scaling = True
    for parameter, state in optimizer.state.items():
        step = state.get("step")
        if isinstance(step, Tensor):  # the fused kernel counts steps on the device
            state["step"] = step.to(device=parameter.device, dtype=torch.float32)
    return True
