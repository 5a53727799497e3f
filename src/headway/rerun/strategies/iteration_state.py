"""Captures what changes between iterations of a loop: counters, generators, a prefetched batch.

An iteration can be run again if it begins in the same state. `RngState` saves the global random
numbers. The rest is found once, through the names that the loop body and the functions it calls
use, and saved at every step: plain numbers and strings, and the user's own random generators. The
only tensors held are those that one iteration passes on to the next.
"""

from __future__ import annotations

import dis
import io
import random
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CellType, CodeType, FrameType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.rerun.strategies.lifted_body import is_headway_object, read_variables, used_names
from headway.torch_adapters.frames import is_installed_file, is_internal_file
from headway.torch_adapters.loaders.observed_loaders import ObservedIterator
from headway.torch_adapters.rng import RngState

if TYPE_CHECKING:
    from headway.rerun.strategies.loop_source import LoopSource

MAX_DEPTH = 4
MAX_FOUND = 200
"""Maximum number of objects that are searched, once per loop."""
MAX_MOVING = 40
MAX_ITEMS = 32
MAX_NUMBERS = 8
MAX_KEPT_ITEMS = 256
"""Largest list, deque or set of plain values that is kept: a queue of numbers of samples."""
MAX_HELD_BYTES = 1 << 28
"""Largest tensor, passed on from one iteration to the next, that is held."""
_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None)))
_CONTAINERS = (list, tuple, dict)
_QUEUES = (list, deque, set)


@dataclass(slots=True)
class MovingState:
    """Objects that the body can reach and that an iteration may change."""

    attributes: list[dict[str, Any]] = field(default_factory=list)
    """Attributes of the user's own objects."""
    names: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    """Global variables that functions bind."""
    cells: list[CellType] = field(default_factory=list)
    """Variables that nested functions share."""
    generators: list[Any] = field(default_factory=list)
    numbers: list[Tensor] = field(default_factory=list)
    """Tensors of one number, which may count steps."""
    queues: list[Any] = field(default_factory=list)
    """Lists, deques and sets of plain values, which the body may empty."""
    data: dict[str, Tensor] = field(default_factory=dict)
    """Tensors from which the body may build its batch; filled on request only."""
    by_hand: bool = False
    """The body calls `next()` on an iterator that can return its batches again."""
    iterator: str = ""
    """The name of an iterator that cannot."""
    roots: dict[str, Callable[[], Any]] = field(default_factory=dict)
    """Weak references to the objects where the search began."""

    def is_of(self, frame: FrameType) -> bool:
        """Whether the loop still has the objects that were searched: a function that is called
        for each epoch creates new ones, and so may an outer loop.
        """
        present = read_variables(frame, frozenset(self.roots))
        return all(
            (held := root()) is not None and present.get(name) is held
            for name, root in self.roots.items()
        )


class IterationState:
    """The values of all these objects at one time."""

    __slots__ = (
        "_attributes",
        "_cells",
        "_generators",
        "_names",
        "_numbers",
        "_queues",
        "moving",
        "rng",
        "values",
    )

    def __init__(self, loop: LoopSource, frame: FrameType, moving: MovingState) -> None:
        self.rng = RngState()
        found = read_variables(frame, loop.bound)
        self.values = {
            name: value
            for name, value in found.items()
            if type(value) in _PLAIN or (name in loop.carried and _holdable(value))
        }
        self.moving = moving
        self._attributes = [
            {name: value for name, value in owned.items() if type(value) in _PLAIN}
            for owned in moving.attributes
        ]
        self._names = [owner.get(name) for owner, name in moving.names]
        self._cells = [_content(cell) for cell in moving.cells]
        self._generators = [_state(generator) for generator in moving.generators]
        self._numbers = [number.item() for number in moving.numbers]
        self._queues = [_plain_items(queue) for queue in moving.queues]

    def take_later(self, reached: IterationState | None, end: IterationState) -> bool:
        """Take from `end` what an iteration that began here did not reach by its step.

        A loop may count after its step: where the next iteration begins, its count is higher than
        where the last step ended. `reached`: None if it failed before. Returns whether anything
        is different now.
        """
        changed = False
        for name in _PARTS:
            own, last = getattr(self, name), getattr(end, name)
            got = own if reached is None else getattr(reached, name)
            later = [_later(*three) for three in zip(own, got, last, strict=True)]
            changed = changed or not all(map(_is_same, own, later))
            setattr(self, name, later)
        return changed

    def restore(self) -> None:
        """Restore everything but the local variables and the global random numbers."""
        moving = self.moving
        for owned, plain in zip(moving.attributes, self._attributes, strict=True):
            owned.update(plain)
        for (owner, name), value in zip(moving.names, self._names, strict=True):
            if type(value) in _PLAIN:
                owner[name] = value
        for cell, value in zip(moving.cells, self._cells, strict=True):
            if type(value) in _PLAIN:
                cell.cell_contents = value
        for generator, state in zip(moving.generators, self._generators, strict=True):
            _set_state(generator, state)
        for number, value in zip(moving.numbers, self._numbers, strict=True):
            if number.item() != value:
                number.fill_(value)
        for queue, items in zip(moving.queues, self._queues, strict=True):
            if items is not None and list(queue) != items:
                queue.clear()
                (queue.update if isinstance(queue, set) else queue.extend)(items)


_PARTS = ("_attributes", "_names", "_cells", "_generators", "_numbers", "_queues")


def _later(own: Any, reached: Any, end: Any) -> Any:
    if isinstance(own, dict) and isinstance(reached, dict) and isinstance(end, dict):
        more = {name: value for name, value in end.items() if name not in own}
        return {
            **{
                name: _later(own[name], reached.get(name), end.get(name, own[name])) for name in own
            },
            **more,
        }
    return own if _is_same(reached, end) else end


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[name], other[name]) for name in one)
    try:
        return bool(one == other) or bool(one != one and other != other)
    except Exception:  # an array, or an object of the user
        return False


def _holdable(value: Any) -> bool:
    """A prefetched batch, a hidden state: tensors without an autograd graph."""
    if isinstance(value, Tensor):
        return value.grad_fn is None and value.nbytes <= MAX_HELD_BYTES
    return type(value) in (tuple, list) and len(value) <= 8 and all(map(_holdable, value))


def _plain_items(queue: Any) -> list[Any] | None:
    """What is in it; None if that is much, or more than numbers and strings."""
    if len(queue) > MAX_KEPT_ITEMS or not all(type(item) in _PLAIN for item in queue):
        return None
    return list(queue)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return cell


# The user's own random generators.


def _is_generator(value: Any) -> bool:
    if isinstance(value, (torch.Generator, random.Random)):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(
        value, (numpy.random.Generator, numpy.random.RandomState)
    )


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state(legacy=False)


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


# The search.


def find_moving_state(loop: LoopSource, frame: FrameType) -> MovingState:
    """Find what an iteration may change."""
    names = frozenset(used_names(loop.node.body))
    moving = _Search(loop, frame, names).found
    if loop.used - names:
        # The part that can be run again may draw from no iterator; the rest of the body may.
        own, moving = moving, _Search(loop, frame, loop.used).found
        moving.iterator, moving.by_hand = own.iterator, own.by_hand
    moving.data.clear()  # it may be large, and must not be kept alive
    names = (names | loop.used) - loop.bound - loop.passed
    for name, value in read_variables(frame, names).items():
        if not isinstance(value, (Tensor, type, FunctionType)):
            try:
                moving.roots[name] = weakref.ref(value)
            except TypeError:  # a number, a list
                continue
    return moving


def find_input_tensors(loop: LoopSource, frame: FrameType) -> dict[str, Tensor]:
    """Tensors from which the body may build its batch, by name."""
    names = frozenset(used_names(loop.node.body))
    return _Search(loop, frame, names, whole=True).found.data


class _Search:
    def __init__(
        self, loop: LoopSource, frame: FrameType, names: frozenset[str], *, whole: bool = False
    ) -> None:
        """`whole`: with the arguments of a function, which are others at each call."""
        self.found = MovingState()
        self._seen: dict[int, Any] = {}
        self._waiting: deque[tuple[str, Any, int]] = deque()
        held = {**_some(frame.f_globals, names), **read_variables(frame, names)}
        for name, value in sorted(held.items()):
            if name in loop.bound and isinstance(value, Tensor):
                continue
            if name in loop.passed and not (whole or hasattr(type(value), "__next__")):
                continue
            self._waiting.append((name, value, MAX_DEPTH))
        while self._waiting and len(self._seen) < MAX_FOUND:
            self._look(*self._waiting.popleft())
        self._seen.clear()

    def _look(self, name: str, value: Any, depth: int) -> None:
        if type(value) in _PLAIN or depth == 0:
            return
        if isinstance(value, Tensor):
            if not value.requires_grad and len(self.found.data) < MAX_MOVING:
                self.found.data.setdefault(name, value)
            if _is_number(value) and len(self.found.numbers) < MAX_NUMBERS:
                self.found.numbers.append(value)
            return
        if id(value) in self._seen:
            return
        if isinstance(value, ObservedIterator):
            self.found.by_hand = True
        elif hasattr(type(value), "__next__") and not _only_written(value):
            self.found.iterator = self.found.iterator or name
        if is_headway_object(value):
            return
        self._seen[id(value)] = value
        if _is_generator(value):
            self.found.generators.append(value)
        elif isinstance(value, FunctionType):
            self._look_at_function(value, depth)
        elif isinstance(value, MethodType):
            self._waiting.extend(((name, value.__self__, depth), (name, value.__func__, depth)))
        elif isinstance(value, (*_CONTAINERS, *_QUEUES)):
            if isinstance(value, _QUEUES) and _plain_items(value) is not None:
                self._note(self.found.queues, value)
            self._look_at_members(name, value, depth)
        elif not isinstance(value, type) and _is_users(type(value)):
            self._look_at_object(name, value, depth)

    def _look_at_members(self, name: str, value: Any, depth: int) -> None:
        if len(value) <= MAX_ITEMS:
            for item in value.values() if isinstance(value, dict) else value:
                self._waiting.append((name, item, depth - 1))

    def _look_at_function(self, function: FunctionType, depth: int) -> None:
        file = function.__code__.co_filename
        if is_internal_file(file) or is_installed_file(file):
            return
        names, bound = _names_in(function.__code__)
        for name in bound:
            if type(function.__globals__.get(name, self)) in _PLAIN:
                self._note(self.found.names, (function.__globals__, name))
        for name, value in _some(function.__globals__, names).items():
            self._waiting.append((name, value, depth - 1))
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            content = _content(cell)
            if type(content) in _PLAIN:
                self._note(self.found.cells, cell)
            self._waiting.append((name, content, depth - 1))

    def _look_at_object(self, name: str, value: Any, depth: int) -> None:
        attributes = getattr(value, "__dict__", None)
        if isinstance(value, torch.nn.Module) or not isinstance(attributes, dict):
            return
        if any(type(item) in _PLAIN for item in attributes.values()):
            self._note(self.found.attributes, attributes)
        for of, item in attributes.items():
            self._waiting.append((f"{name}.{of}", item, depth - 1))
        for method in vars(type(value)).values():
            if isinstance(method, FunctionType):
                self._waiting.append((name, method, depth - 1))

    def _note(self, where: list[Any], what: Any) -> None:
        if len(where) < MAX_MOVING:
            where.append(what)


def _is_number(value: Tensor) -> bool:
    """Whether it can be read and set at every step without waiting for a device."""
    plain = type(value) is Tensor and value.layout is torch.strided and not value.is_inference()
    return plain and value.ndim == 0 and value.device.type == "cpu" and not value.requires_grad


def _only_written(value: Any) -> bool:
    """A log file; reading from other files would consume them."""
    return isinstance(value, io.IOBase) and not (value.closed or value.readable())


def _some(mapping: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: mapping[name] for name in names if name in mapping}


def _names_in(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """(global names that a function uses, those that it binds)."""
    bound = {str(one.argval) for one in dis.get_instructions(code) if one.opname == "STORE_GLOBAL"}
    return frozenset(code.co_names), frozenset(bound)


def _is_users(kind: type) -> bool:
    """Whether a class is defined by the user."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if kind.__module__ == "__main__":
        return True
    return file is not None and not is_internal_file(file) and not is_installed_file(file)
