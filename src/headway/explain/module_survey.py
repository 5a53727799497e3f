"""Which module calls of a bad step have nothing to do with its bad values.

A survey is a plain pass of the step: one sum for each output of a module and for each gradient that
enters or leaves it, all read at the end. Tracing every op takes many times as long; the trace that
follows passes over the modules that the survey found clean (`ScopedTrace`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headway.explain.failing_step import FailingStep, Outcome, PassObserver
from headway.torch_adapters.modes import no_dispatch_modes, no_function_modes
from headway.torch_adapters.module_stack import unwrap_model
from headway.torch_adapters.runtime_state import running_node
from headway.torch_adapters.tensor_values import attached_tensors, plain_tensor

MIN_MODULES = 32
"""Modules from which on a survey saves more than its pass costs."""
MOST_CALLS = 20_000


def worth_surveying(step: FailingStep) -> bool:
    """Whether tracing every op of the step takes much longer than one more pass of it."""
    modules = sum(1 for model in step.models for _ in model.modules())
    return step.symptom == "nonfinite" and not step.gentle and modules >= MIN_MODULES


@dataclass(slots=True)
class _Call:
    """A call of a module."""

    module: nn.Module
    last: int = 0
    """The number of calls that had begun when it ended."""
    results: list[int] = field(default_factory=list)
    """Which of the sums are those of its outputs."""
    slopes: list[int] = field(default_factory=list)
    """And of the gradients with respect to its inputs and outputs."""


@dataclass(frozen=True, slots=True)
class CleanCalls:
    """The module calls that a trace may pass over."""

    sequence: Sequence[int] = ()
    """The identities of the modules, in the order in which they were called."""
    clean: frozenset[int] = frozenset()
    """Positions in it: outermost calls with only finite results and gradients."""


class ModuleSurvey(PassObserver):
    """A context manager for one pass."""

    def __init__(self, step: FailingStep) -> None:
        self._step = step
        self._thread = threading.get_ident()
        self._calls: list[_Call] = []
        self._open: list[_Call] = []
        self._sums: list[Tensor] = []
        self._handles: list[Any] = []
        self._usable = True
        """Not where a module runs in another thread, or again in backward: its calls would not be
        known again by their order."""

    def __enter__(self) -> ModuleSurvey:
        seen: set[int] = set()
        for model in self._step.models:
            for module in unwrap_model(model).modules():
                if id(module) not in seen:
                    seen.add(id(module))
                    self._handles += [
                        module.register_forward_pre_hook(self._begin, with_kwargs=True),
                        module.register_forward_hook(self._end, always_call=True),
                    ]
        return self

    def __exit__(self, *exception: Any) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def result(self, outcome: Outcome) -> CleanCalls:
        """What the pass with this outcome shows."""
        if not self._usable or not outcome.complete or outcome.finite:
            return CleanCalls()
        finite = _read_finite(self._sums)
        # A bad loss makes every gradient bad, and is explained by the forward pass alone.
        backward = all(map(math.isfinite, outcome.losses))
        guilty = set(self._with_bad_gradients(outcome.norms)) if backward else set()
        clean, position = set(), 0
        while position < len(self._calls):
            call = self._calls[position]
            slots = (*call.results, *(call.slopes if backward else ()))
            if call.last and all(finite[slot] for slot in slots) and not _holds(call, guilty):
                clean.add(position)
                position = call.last
            else:
                position += 1
        return CleanCalls([id(call.module) for call in self._calls], frozenset(clean))

    def _with_bad_gradients(self, norms: Mapping[str, float]) -> Iterator[int]:
        for identity, name in self._step.names.items():
            if not math.isfinite(norms.get(name, 0.0)):
                yield identity

    # Hooks of the modules.

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self._follows():
            return
        call = _Call(module)
        self._calls.append(call)
        self._open.append(call)
        self._watch_gradients(call, _floats((args, kwargs)))

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self._follows() or all(call.module is not module for call in self._open):
            return
        while (call := self._open.pop()).module is not module:
            pass  # an exception has ended it
        call.last = len(self._calls)
        outputs = list(_floats(output))
        for tensor in outputs:
            self._note(call.results, tensor)
        self._watch_gradients(call, outputs)

    def _follows(self) -> bool:
        elsewhere = threading.get_ident() != self._thread or running_node() is not None
        if elsewhere or len(self._calls) >= MOST_CALLS:
            self._usable = False
        return self._usable

    def _watch_gradients(self, call: _Call, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if tensor.requires_grad:
                self._handles.append(tensor.register_hook(self._gradient_hook(call)))

    def _gradient_hook(self, call: _Call) -> Callable[[Tensor], None]:
        def note(gradient: Tensor) -> None:
            self._note(call.slopes, gradient)

        return note

    def _note(self, slots: list[int], tensor: Tensor) -> None:
        numbers = plain_tensor(tensor.detach())
        if numbers is None or not numbers.numel():
            return
        with torch.no_grad(), no_function_modes(), no_dispatch_modes():
            total = torch.view_as_real(numbers).sum() if numbers.is_complex() else _sum(numbers)
            slots.append(len(self._sums))
            self._sums.append(total)


def _sum(numbers: Tensor) -> Tensor:
    """A sum that half precision does not make overflow."""
    wide = torch.float64 if numbers.dtype == torch.float64 else torch.float32
    return numbers.sum(dtype=wide)


def _floats(value: Any) -> Iterator[Tensor]:
    for tensor in attached_tensors(value):
        if tensor.is_floating_point() or tensor.is_complex():
            yield tensor


def _read_finite(sums: Sequence[Tensor]) -> list[bool]:
    """Which of these are finite; the host waits once for each device."""
    found = [False] * len(sums)
    for device in {total.device for total in sums}:
        slots = [slot for slot, total in enumerate(sums) if total.device == device]
        stacked = torch.stack([sums[slot].to(torch.float64) for slot in slots])
        for slot, finite in zip(slots, stacked.isfinite().tolist(), strict=True):
            found[slot] = finite
    return found


def _holds(call: _Call, guilty: set[int]) -> bool:
    """Whether one of the parameters with a bad gradient is the module's."""
    return bool(guilty) and any(id(p) in guilty for p in call.module.parameters())
