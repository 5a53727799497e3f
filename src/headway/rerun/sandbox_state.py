"""Saves what a re-run would change, and undoes its writes."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils._python_dispatch import TorchDispatchMode

from headway.rerun.host import RerunHost
from headway.torch_adapters.nested_state import map_tensors
from headway.torch_adapters.op_schema import read_schema, tensor_arguments
from headway.torch_adapters.rng import RngState
from headway.torch_adapters.saved_state import MAX_BUFFER_BYTES
from headway.torch_adapters.tensor_values import plain_tensor, storage_address

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
            for name, buffer in module._buffers.items()
            if buffer is not None and buffer.nbytes <= MAX_BUFFER_BYTES
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
        given = self._host.stateful()
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


# Memory that is older than a pass, put back after the pass has written to it.

# A loop's body does not only train: it moves a teacher after its student, fills a bank of keys,
# adds up losses in a tensor. Whoever runs it once more must not move, fill or add once more.

MAX_KEPT_BYTES = 1 << 30
"""Bytes of one tensor; a larger one is left as the pass leaves it."""

UNDECLARED_WRITES = ("running_mean", "running_var")
"""What batch normalisation changes without saying so in its schema."""


class WriteUndo(TorchDispatchMode):
    """In force during a pass; afterwards, `put_back`."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._young: set[int] = set()
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._known: set[tuple[object, ...]] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunction():  # a remedy's mode has had its say above autograd
            return self._look_and_run(func, args, kwargs or {})

    def _look_and_run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        facts = read_schema(func)
        given = list(tensor_arguments(facts, args, kwargs))
        mutated = facts.mutated or (UNDECLARED_WRITES if facts.aten.endswith("batch_norm") else ())
        if mutated and not facts.collective:
            for name, tensor in given:
                if name.partition("[")[0] in mutated:
                    self._keep(plain_tensor(tensor))
        result = func(*args, **kwargs)
        if not (facts.mutated or facts.view or facts.constant):
            old = {
                storage_address(own)
                for _, tensor in given
                if (own := plain_tensor(tensor)) is not None
            }
            self._young.update({storage_address(tensor) for tensor in _tensors(result)} - old)
        return result

    @torch.no_grad()
    def put_back(self) -> None:
        """Everything as it was before the pass."""
        for tensor, value in reversed(self._kept):  # of two that overlap, the first knew more
            if _is_there(tensor):
                tensor.copy_(value)
        self._kept.clear()
        self._known.clear()

    def _keep(self, tensor: Tensor | None) -> None:
        if tensor is None or tensor.is_inference() or storage_address(tensor) in self._young:
            return
        key = (storage_address(tensor), tensor.storage_offset(), tensor.shape, tensor.stride())
        if key not in self._known and tensor.nbytes <= MAX_KEPT_BYTES:
            self._known.add(key)
            own = tensor.detach()
            self._kept.append((own, own.clone()))


def _is_there(tensor: Tensor) -> bool:
    """Whether its memory has not been given up meanwhile: FSDP frees what it has gathered."""
    if tensor.numel() == 0:
        return False
    reach = sum((n - 1) * abs(by) for n, by in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + reach + 1) * tensor.element_size()
    return tensor.untyped_storage().nbytes() >= needed


def _tensors(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        own = plain_tensor(result)
        if own is not None:
            yield own
    elif isinstance(result, (list, tuple)):
        for item in result:
            yield from _tensors(item)
