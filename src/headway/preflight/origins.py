"""Where modules and weights come from: the lines that construct, attach and initialise them.

A finding about a layer is most useful at the line that made it so: `nn.LSTM(…)` without
`batch_first`, an `nn.init` call with the wrong scale, an assignment that breaks a tie.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

MOST = 20_000
"""Lines of each kind that are kept."""

Place: TypeAlias = dict[str, Any] | None


class Origins:
    """Hears of every module and parameter that is given to a module."""

    def __init__(self, place: Callable[[], Place], undo: ExitStack) -> None:
        self._place = place
        self._count = 0
        self._made: dict[int, tuple[weakref.ref[Any], Place]] = {}
        """Module → the line that was constructing it when it got its first part."""
        self._given: dict[int, tuple[weakref.ref[Any], str, Place, int]] = {}
        """Module or parameter → its owner, its name there, the line that gave it, and when."""
        self._kinds: dict[type, list[Place]] = {}
        """Class → the lines that made one: for copies, of which nobody is told."""
        self._written: dict[int, tuple[Place, int]] = {}
        """Memory → the line that filled it last, and when."""
        for register in (
            register_module_module_registration_hook,
            register_module_parameter_registration_hook,
        ):
            undo.callback(register(self._registers).remove)

    @property
    def now(self) -> int:
        """Counts what has been heard: later is larger."""
        return self._count

    def wrote(self, tensor: Tensor) -> None:
        """Somebody fills a tensor in place."""
        memory = _memory_of(tensor)
        if memory and (memory in self._written or len(self._written) < MOST):
            self._count += 1
            self._written[memory] = (self._place(), self._count)

    def of_module(self, module: nn.Module) -> Place:
        """The line that constructed a module; of a copy, the only one that made such a module."""
        known = self._made.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        place, when = self.registered(module)
        if when:
            return place
        lines = self._kinds.get(type(module), [])
        return lines[0] if len(lines) == 1 else None

    def of_parameter(self, parameter: Tensor) -> Place:
        """The line that gave a parameter its first values."""
        return self.last_change(parameter)[0]

    def last_change(self, parameter: Tensor) -> tuple[Place, int]:
        """The line that made or filled a parameter last, and when."""
        registered = self.registered(parameter)
        written = self._written.get(_memory_of(parameter), (None, 0))
        return max(registered, written, key=lambda known: known[1])

    def registered(self, item: Any) -> tuple[Place, int]:
        """The line that gave it to a module last, and when; (None, 0) where that is not known."""
        owner, name, place, when = self._given.get(id(item), (None, "", None, 0))
        # By its owner: a weak reference to a tensor would keep torch from swapping it.
        at = None if owner is None else owner()
        if at is None:
            return None, 0
        there = at._parameters.get(name) is item or at._modules.get(name) is item
        return (place, when) if there else (None, 0)

    def _registers(self, owner: nn.Module, name: str, item: Any) -> None:
        if len(self._given) >= MOST:
            return
        self._count += 1
        place = self._place()
        made = self._made.get(id(owner))
        if made is None or made[0]() is not owner:
            self._made[id(owner)] = (weakref.ref(owner), place)
            lines = self._kinds.setdefault(type(owner), [])
            if place not in lines and len(lines) < 2:
                lines.append(place)
        if item is not None:
            self._given[id(item)] = (weakref.ref(owner), name, place, self._count)


def _memory_of(tensor: Tensor) -> int:
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
        return 0
    return 0 if tensor.is_meta else tensor.data_ptr()
