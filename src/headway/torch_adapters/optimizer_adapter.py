"""Skips an optimizer's update, handles its closure, and tracks the loss scale of GradScaler."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import LBFGS, Optimizer

from headway.torch_adapters.autograd_graph import saved_value

# Skipping an update inside a fused CUDA kernel: the verdict goes into `found_inf` and the clip
# coefficient into `grad_scale`, the two tensors the kernel was given for GradScaler, so that it
# skips or clips by itself and the host never waits. `step_skipping` does the same on the host.


def is_torchs_own(optimizer: Any) -> bool:
    """Whether torch itself defines how the optimizer steps."""
    module = getattr(type(optimizer).step, "__module__", "") or ""
    return module.partition(".")[0] == "torch"


def own_step_hooks(optimizer: Optimizer) -> list[Callable[..., Any]]:
    """What the user has registered to be called after each step of this optimizer."""
    hooks: Any = getattr(optimizer, "_optimizer_step_post_hooks", {})
    return [hook for hook in hooks.values() if not _is_headways(hook)]


def _is_headways(hook: Any) -> bool:
    module = getattr(hook, "__module__", "") or ""
    return isinstance(hook, _FirstHook) or module.partition(".")[0] == "headway"


def notify_before_own_hooks(
    optimizer: Optimizer, notify: Callable[[], None]
) -> Callable[[], None] | None:
    """Call `notify()` after each update, before the hooks that the user has registered; returns
    what undoes it. None: there are no such hooks."""
    if not own_step_hooks(optimizer):
        return None
    hook = optimizer.register_step_post_hook(_FirstHook(notify))
    hooks: Any = optimizer._optimizer_step_post_hooks
    hooks.move_to_end(hook.id, last=False)
    return hook.remove


class _FirstHook:
    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._notify()


def local_optimizer(optimizer: Optimizer) -> Optimizer:
    """The optimizer that holds this rank's moments: a ZeroRedundancyOptimizer wraps another."""
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        inner: Any = getattr(optimizer, "optim", None)
        if isinstance(inner, Optimizer):
            return inner
    return optimizer


class KernelBrake:
    """Controls a fused optimizer through the tensors that its kernel reads."""

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
    """Whether every group of the optimizer runs in a fused kernel of torch on one CUDA device."""
    if not is_torchs_own(optimizer):  # what it calls fused may not know `found_inf`
        return False
    devices: set[torch.device] = set()
    for group in optimizer.param_groups:
        if not group.get("fused"):
            return False
        devices.update(parameter.device for parameter in group["params"])
    return len(devices) == 1 and next(iter(devices)).type == "cuda"


def fuse_optimizer(optimizer: Optimizer) -> bool:
    """Switch Adam, AdamW, SGD or Adagrad to the fused form; False where that is not possible."""
    if not isinstance(
        optimizer, (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
    ) or not is_torchs_own(optimizer):
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


# Optimizers that call backward themselves: `optimizer.step(closure)`.

# The step's pre-hook runs before the closure has filled a single gradient. Torch's own optimizers
# begin their step with the closure. So it is run first, the step is judged, and the optimizer is
# handed a closure that answers its first call with the loss already there. LBFGS evaluates several
# times within one step and keeps counters besides its moments: its state and its weights are kept,
# so that a step that went bad half-way leaves no trace. `step_skipping` has the others.

Closure = Callable[[], Any]


def find_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Closure | None:
    """The closure of a call of `optimizer.step`, whose arguments begin with the optimizer."""
    found = kwargs.get("closure", args[1] if len(args) > 1 else None)
    return found if callable(found) else None


def with_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], closure: Closure
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with another closure."""
    if "closure" in kwargs:
        return args, {**kwargs, "closure": closure}
    return (args[0], closure, *args[2:]), kwargs


class CachedLossClosure:
    """A closure whose first call returns the loss that is already known."""

    def __init__(self, closure: Closure, loss: Any, *, held: bool) -> None:
        self._closure = closure
        self._loss = loss
        self._held = held
        self._asked = False

    def __call__(self) -> Any:
        if self._held or not self._asked:
            self._asked = True
            return self._loss
        return self._closure()


class SavedStep(Protocol):
    """The state of an optimizer before its step."""

    def went_bad(self) -> bool:
        """Whether the step left a weight non-finite."""
        ...

    def put_back(self) -> None:
        """As if the step had never been tried."""


class LineSearchState:
    """Weights and state of an optimizer that searches along a line, before its step."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._weights = [
            (parameter, parameter.detach().clone())
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        self._state = {key: _copy(value) for key, value in optimizer.state.items()}

    @classmethod
    def keep(cls, optimizer: Optimizer) -> LineSearchState | None:
        """The state of an optimizer that needs it; None for all the others."""
        return cls(optimizer) if isinstance(optimizer, LBFGS) else None

    def went_bad(self) -> bool:
        """Whether the step left a weight non-finite."""
        return not all(bool(torch.isfinite(parameter).all()) for parameter, _ in self._weights)

    @torch.no_grad()
    def put_back(self) -> None:
        """As if the step had never been tried."""
        for parameter, before in self._weights:
            parameter.copy_(before)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)


def _copy(state: Any) -> Any:
    # Tensors are updated in place; the lists of past directions only grow and shrink.
    if isinstance(state, Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {key: _copy(value) for key, value in state.items()}
    return list(state) if isinstance(state, list) else state


# What is known of a GradScaler: which one there is, which losses it scaled, what gradients carry.

# Losses are recorded as the user wrote them and gradients are judged unscaled; clipping or judging
# scaled gradients would compare numbers that mean something else at every change of the scale.

MAX_SCALED_LOSSES = 16
"""Scaled losses that are remembered: those of the micro-batches of a step."""


class LossScaling:
    """The scaler of a training, given by the user or found at its first use."""

    def __init__(self, scaler: GradScaler | None) -> None:
        self._scaler = scaler
        self._scaled: list[tuple[weakref.ref[Tensor], Tensor]] = []

    @property
    def scaler(self) -> GradScaler | None:
        """The scaler, if there is one and it is switched on."""
        return self._scaler if self._scaler is not None and self._scaler.is_enabled() else None

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        """A scaler multiplied a loss."""
        self._scaler = scaler
        self._scaled = [item for item in self._scaled if item[0]() is not None][-MAX_SCALED_LOSSES:]
        self._scaled.append((weakref.ref(result), loss.detach()))

    def needed_for(self, loss: Tensor) -> GradScaler | None:
        """The scaler that a loss still needs: switched on, and not applied yet."""
        scaler = self.scaler
        if scaler is None or _was_scaled(loss, scaler):
            return None
        return None if any(item() is loss for item, _ in self._scaled) else scaler

    def unscaled(self, root: Tensor) -> Tensor:
        """The loss behind a tensor that backward was called on."""
        for item, loss in self._scaled:
            if item() is root:
                return loss
        return root.detach()

    def scale(self) -> Tensor | None:
        """The loss scale, on its device."""
        return None if self.scaler is None else current_scale(self.scaler)

    def carried_by(self, optimizer: Optimizer) -> Tensor | None:
        """The scale that the gradients of this optimizer still carry."""
        scaler = self.scaler
        if scaler is None or not gradients_are_scaled(scaler, optimizer):
            return None
        return current_scale(scaler)


def _was_scaled(loss: Tensor, scaler: GradScaler) -> bool:
    """Whether the last thing done to a loss was a multiplication by the scale.

    For a guard that is closed or has switched itself off, and so did not see the user scale it.
    """
    with suppress(RuntimeError):
        factor, scale = saved_value(loss.grad_fn, "other"), current_scale(scaler)
        if isinstance(factor, Tensor) and scale is not None:
            return bool(factor.data_ptr() == scale.data_ptr())
    return False


# The private state of a GradScaler. Where a torch lacks one of the attributes, the scale counts as
# unknown and gradients as scaled.


def current_scale(scaler: GradScaler) -> Tensor | None:
    """The loss scale on its device; None before the first scaled loss."""
    scale: Tensor | None = getattr(scaler, "_scale", None)
    return scale


def gradients_are_scaled(scaler: GradScaler, optimizer: Optimizer) -> bool:
    """Whether the gradients of an optimizer still carry the scale."""
    state = _optimizer_states(scaler).get(id(optimizer))
    return state is None or state["stage"] is OptState.READY


def rewind_scaler(scaler: GradScaler, scale: Tensor) -> None:
    """Reset a scaler to its state before a step: this scale, no optimizer unscaled or stepped."""
    present = current_scale(scaler)
    if present is not None:
        present.copy_(scale)
        _optimizer_states(scaler).clear()


class ScalerSnapshot:
    """The scale, its growth and the optimizers' stages, to be restored."""

    def __init__(self, scaler: GradScaler) -> None:
        self._scaler = scaler
        self._tensors = {name: getattr(scaler, name, None) for name in _SCALER_TENSORS}
        self._values = {
            name: None if item is None else item.clone() for name, item in self._tensors.items()
        }
        self._states = {at: dict(state) for at, state in _optimizer_states(scaler).items()}

    def restore(self) -> None:
        """Everything as it was, in the same tensors."""
        for name, item in self._tensors.items():
            value = self._values[name]
            if item is not None and value is not None:
                item.copy_(value)
            if hasattr(self._scaler, name):
                setattr(self._scaler, name, item)
        states = _optimizer_states(self._scaler)
        states.clear()
        states.update(self._states)


_SCALER_TENSORS = ("_scale", "_growth_tracker")


def _optimizer_states(scaler: GradScaler) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = getattr(scaler, "_per_optimizer_states", {})
    return found
