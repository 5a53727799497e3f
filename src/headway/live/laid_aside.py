"""What a step that is run again would change, and what is put back when it is over.

Everything that the guard knows of, or can find: random numbers, buffers, gradients, schedules,
averages, the optimizers' groups, the scaler.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from headway.live.buffers import LARGEST_BYTES
from headway.torch_tools.nested import map_tensors
from headway.torch_tools.rng import Moment

if TYPE_CHECKING:
    from headway.live.session import Session


class LaidAside:
    """Remembers one thing after the other; `undo` puts them back, the last one first."""

    def __init__(self, session: Session, undo: ExitStack) -> None:
        self._session = session
        self._optimizers = [watch.optimizer for watch in session.watches.values()]
        self._undo = undo

    def random_numbers(self) -> None:
        self._undo.callback(Moment(exact=True).restore)

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
            for model in self._session.models
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and buffer.nbytes <= LARGEST_BYTES
        ]

        @torch.no_grad()
        def give_back() -> None:
            for module, name, buffer, value in kept:
                module._buffers[name] = buffer
                if not torch.equal(buffer, value):
                    buffer.copy_(value)

        self._undo.callback(give_back)

    def states(self) -> None:
        """Of what the guard was given, and of the schedules and averages it was not."""
        for item in self._stateful():
            state = map_tensors(item.state_dict(), Tensor.clone)
            self._undo.callback(item.load_state_dict, state)

    def _stateful(self) -> Iterable[Any]:
        given = self._session.survival.holdings.others.values()
        found = {id(item): item for item in given if not isinstance(item, GradScaler)}
        for item in gc.get_objects():
            # `isinstance` would ask the object, and some answer with a warning.
            kind = type(item)
            if issubclass(kind, LRScheduler):
                if any(getattr(item, "optimizer", None) is mine for mine in self._optimizers):
                    found.setdefault(id(item), item)
            elif issubclass(kind, AveragedModel):
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
        scale, tracker = scaler._scale, scaler._growth_tracker
        kept = [None if item is None else item.clone() for item in (scale, tracker)]
        states = {number: dict(state) for number, state in scaler._per_optimizer_states.items()}

        def give_back() -> None:
            for item, value in zip((scale, tracker), kept, strict=True):
                if item is not None and value is not None:
                    item.copy_(value)
            scaler._scale, scaler._growth_tracker = scale, tracker
            scaler._per_optimizer_states.clear()
            scaler._per_optimizer_states.update(states)

        self._undo.callback(give_back)
