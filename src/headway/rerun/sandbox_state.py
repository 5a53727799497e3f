"""Saves the training state that a re-run changes: random numbers, buffers, gradients, schedules,
averages, parameter groups and the scaler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from headway.rerun.protocol import RerunHost, trained_parameters
from headway.torch_adapters.compat import module_buffers
from headway.torch_adapters.nested_state import map_tensors
from headway.torch_adapters.optimizer_adapter import ScalerSnapshot
from headway.torch_adapters.rng import RngState
from headway.torch_adapters.saved_state import MAX_BUFFER_BYTES, ObjectSnapshot

STATEFUL_CLASSES = (LRScheduler, AveragedModel)
"""What a training changes besides models, optimizers and scalers."""


def save_training_state(
    host: RerunHost,
    undo: ExitStack,
    scaler: GradScaler | None,
    *,
    others: Iterable[Any],
    copy_gradients: bool,
) -> None:
    """Save everything; `undo` restores it, the last one first.

    `others`: schedules and averages, perhaps of another training; `copy_gradients`: torch writes to
    the memory of the gradients themselves.
    """
    undo.callback(RngState(exact=True).restore)
    undo.callback(_save_buffers(host))
    undo.callback(_save_gradients(trained_parameters(host), copy=copy_gradients))
    for item in _stateful(host, others):
        undo.callback(item.load_state_dict, map_tensors(item.state_dict(), Tensor.clone))
    for optimizer in host.optimizers:
        undo.callback(_save_groups(optimizer))
        for name in ("grad_scale", "found_inf"):  # a scaler is about to step it
            if hasattr(optimizer, name):
                undo.callback(setattr, optimizer, name, getattr(optimizer, name))
    if scaler is not None:
        undo.callback(ScalerSnapshot(scaler).restore)
    undo.callback(ObjectSnapshot(host.models, host.models))


def _save_gradients(parameters: Iterable[Tensor], *, copy: bool) -> Callable[[], None]:
    saved = [
        (parameter, gradient, gradient.clone() if copy and gradient is not None else None)
        for parameter in parameters
        for gradient in [parameter.grad]
    ]

    @torch.no_grad()
    def restore() -> None:
        for parameter, gradient, value in saved:
            parameter.grad = gradient
            if gradient is not None and value is not None:
                gradient.copy_(value)

    return restore


def _save_buffers(host: RerunHost) -> Callable[[], None]:
    # Not those from the beginning of the step: the forward of the next step may be over already.
    saved = [
        (module, name, buffer, buffer.detach().clone())
        for model in host.models
        for module in model.modules()
        for name, buffer in module_buffers(module).items()
        if buffer is not None and buffer.nbytes <= MAX_BUFFER_BYTES
    ]

    @torch.no_grad()
    def restore() -> None:
        for module, name, buffer, value in saved:
            module_buffers(module)[name] = buffer
            if not torch.equal(buffer, value):
                buffer.copy_(value)

    return restore


def _stateful(host: RerunHost, others: Iterable[Any]) -> Iterable[Any]:
    """Objects that the user passed to the guard, and schedules and averages unknown to it."""
    found = {id(item): item for item in host.stateful() if not isinstance(item, GradScaler)}
    for item in others:
        # An average belongs to no optimizer; a schedule counts if it is of one of these.
        owner = getattr(item, "optimizer", None)
        if not isinstance(item, LRScheduler) or any(owner is one for one in host.optimizers):
            found.setdefault(id(item), item)
    return found.values()


def _save_groups(optimizer: Optimizer) -> Callable[[], None]:
    """Learning rates and whatever else a schedule changes."""
    saved = [
        {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in group.items()
            if name != "params"
        }
        for group in optimizer.param_groups
    ]

    def restore() -> None:
        for group, values in zip(optimizer.param_groups, saved, strict=True):
            for name, value in values.items():
                current = group.get(name)
                if isinstance(current, Tensor) and isinstance(value, Tensor):
                    current.copy_(value)
                else:
                    group[name] = value

    return restore
