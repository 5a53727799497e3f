"""Saves what a re-run would change, and undoes its writes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from headway.rerun.protocol import RerunHost
from headway.torch_adapters.compat import module_buffers
from headway.torch_adapters.live_objects import find_instances
from headway.torch_adapters.nested_state import map_tensors
from headway.torch_adapters.optimizer_adapter import ScalerSnapshot
from headway.torch_adapters.rng import RngState
from headway.torch_adapters.saved_state import MAX_BUFFER_BYTES

# What a step that is run again would change, and what is put back when it is over.

# Everything that the guard knows of, or can find: random numbers, buffers, gradients, schedules,
# averages, the optimizers' groups, the scaler.


class SavedState:
    """Remembers one thing after the other; `undo` puts them back, the last one first."""

    def __init__(self, host: RerunHost, undo: ExitStack) -> None:
        self._host = host
        self._optimizers = host.optimizers
        self._undo = undo

    def random_numbers(self) -> None:
        self._undo.callback(RngState(exact=True).restore)

    def gradients(self, parameters: Iterable[Tensor], *, copied: bool) -> None:
        """`copied`: somebody writes into the very memory they lie in."""
        kept = [
            (parameter, gradient, gradient.clone() if copied and gradient is not None else None)
            for parameter in parameters
            for gradient in [parameter.grad]
        ]

        @torch.no_grad()
        def give_back() -> None:
            for parameter, gradient, value in kept:
                parameter.grad = gradient
                if gradient is not None and value is not None:
                    gradient.copy_(value)

        self._undo.callback(give_back)

    def buffers(self) -> None:
        """A following step may have its forward behind it already."""
        kept = [
            (module, name, buffer, buffer.detach().clone())
            for model in self._host.models
            for module in model.modules()
            for name, buffer in module_buffers(module).items()
            if buffer is not None and buffer.nbytes <= MAX_BUFFER_BYTES
        ]

        @torch.no_grad()
        def give_back() -> None:
            for module, name, buffer, value in kept:
                module_buffers(module)[name] = buffer
                if not torch.equal(buffer, value):
                    buffer.copy_(value)

        self._undo.callback(give_back)

    def states(self) -> None:
        """Of what the guard was given, and of the schedules and averages it was not."""
        for item in self._stateful():
            state = map_tensors(item.state_dict(), Tensor.clone)
            self._undo.callback(item.load_state_dict, state)

    def _stateful(self) -> Iterable[Any]:
        given = self._host.stateful()
        found = {id(item): item for item in given if not isinstance(item, GradScaler)}
        for item in find_instances(LRScheduler, AveragedModel):
            # An average belongs to no optimizer; a schedule counts if it is of one of these.
            owner = getattr(item, "optimizer", None)
            if not isinstance(item, LRScheduler) or any(owner is one for one in self._optimizers):
                found.setdefault(id(item), item)
        return found.values()

    def groups(self) -> None:
        """Learning rates and whatever else a schedule changes."""
        for optimizer in self._optimizers:
            self._group(optimizer)

    def _group(self, optimizer: Optimizer) -> None:
        kept = [
            {
                name: value.clone() if isinstance(value, Tensor) else value
                for name, value in group.items()
                if name != "params"
            }
            for group in optimizer.param_groups
        ]

        def give_back() -> None:
            for group, values in zip(optimizer.param_groups, kept, strict=True):
                for name, value in values.items():
                    present = group.get(name)
                    if isinstance(present, Tensor) and isinstance(value, Tensor):
                        present.copy_(value)
                    else:
                        group[name] = value

        self._undo.callback(give_back)
        for name in ("grad_scale", "found_inf"):  # a scaler is about to step it
            if hasattr(optimizer, name):
                self._undo.callback(setattr, optimizer, name, getattr(optimizer, name))

    def scaler(self, scaler: GradScaler | None) -> None:
        if scaler is None:
            return
        self._undo.callback(ScalerSnapshot(scaler).restore)
