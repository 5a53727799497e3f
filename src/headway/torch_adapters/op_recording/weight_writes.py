"""Finds the line of the user's own optimizer that writes to the weights, or to a copy of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from headway.torch_adapters.modes import OutermostDispatchMode
from headway.torch_adapters.op_recording.recorded_ops import find_treatment
from headway.torch_adapters.tensor_values import storage_address

_COPIES = ("clone", "_to_copy", "_reshape_copy", "_unsafe_view", "contiguous", "lift_fresh_copy")


class WeightWrites(OutermostDispatchMode):
    """In force during one step; the last line that wrote to one of the weights counts."""

    def __init__(self, weights: Sequence[Tensor], place: Callable[[], Any]) -> None:
        super().__init__()
        self.line: Any = None
        self._weights = {
            memory: weight for weight in weights if (memory := _memory_of(weight)) is not None
        }
        self._written: set[int] = set()
        self._copies: dict[int, tuple[Tensor, int, Any]] = {}
        """Memory of a copy → the copy, the weight's memory, and the line that made it."""
        self._lost: dict[int, Any] = {}
        """Memory of a weight → the line that made the copy which was written to instead."""
        self._computed: dict[int, Any] = {}
        """Memory of a weight → the last line that computed something of its size from it."""
        self._place = place
        self._observing = False

    def begin(self) -> None:
        """Observe, unless another dispatch mode is in force."""
        self._observing = self.enter_outermost()

    def end(self) -> None:
        """Observe no longer."""
        self.leave_outermost()
        self._observing = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if not self._observing:
            return func(*args, **(kwargs or {}))
        treatment = find_treatment(func)
        result = func(*args, **(kwargs or {}))
        if treatment.mutated:
            given = args[0] if args else None
            self._note_write(list(given) if isinstance(given, (list, tuple)) else [given])
        elif not treatment.view and isinstance(result, Tensor):
            self._note_result(treatment.name, args, result)
        return result

    def lost(self) -> Iterator[tuple[Tensor, Any]]:
        """Weights with a gradient that were read but not written, each with the line to look at."""
        for memory, weight in self._weights.items():
            place = self._lost.get(memory) or self._computed.get(memory)
            if memory not in self._written and place is not None and weight.grad is not None:
                yield weight, place

    def _note_write(self, targets: list[Any]) -> None:
        known = {_memory_of(item) for item in targets} & self._weights.keys()
        if known:
            self._written |= {memory for memory in self._weights if memory in known}
            self.line = self._place()
        for item in targets:
            _, weight, place = self._copies.get(_memory_of(item) or 0, (None, None, None))
            if weight is not None:
                self._lost.setdefault(weight, place)

    def _note_result(self, name: str, args: tuple[Any, ...], result: Tensor) -> None:
        source = (_memory_of(args[0]) if args else None) or 0
        weight = self._copies[source][1] if source in self._copies else source
        if weight not in self._weights or result.numel() != self._weights[weight].numel():
            return
        memory = _memory_of(result)
        if memory is None or memory in self._weights:
            return
        if name in _COPIES:
            self._copies[memory] = (result, weight, self._place())
        else:
            self._computed[weight] = self._place()


def _memory_of(value: Any) -> int | None:
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return None
    return storage_address(value)
