"""Runs a recording again: the loss of a recorded step at the present weights, with or without
autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from headway.torch_adapters.modes import no_autocast, no_function_modes
from headway.torch_adapters.op_recording.op_recorder import OpRecorder
from headway.torch_adapters.op_recording.recorded_ops import (
    ConstantRef,
    InitialMemory,
    ParameterRef,
    RecordedOp,
    RecordedRoot,
    RecordedView,
    memory_key,
)
from headway.torch_adapters.private_parts import private_part
from headway.torch_adapters.rng import RngState

# Playing a tape: the loss of a recorded step at the weights of now.

Change = Callable[[Tensor], Tensor]


class CannotReplay(Exception):
    """The recording cannot be replayed; the message says why."""


class OpReplay:
    """The ops of a recording that some of its losses depend on."""

    def __init__(self, tape: OpRecorder, roots: Sequence[RecordedRoot]) -> None:
        """Raises CannotPlay where that part is not whole."""
        if tape.trouble is not None:
            raise CannotReplay(tape.trouble)
        self.roots = list(roots)
        self.resolution = tape.coarsest
        self.program = _needed(tape.entries, roots)
        self._last = _last_uses(self.program, roots)
        if any(isinstance(entry, RecordedOp) and entry.older for _, entry in self.program):
            raise CannotReplay("part of its graph was created before its step")
        if any(held.changed for held in self._held()):
            raise CannotReplay("something it is computed from was changed after the forward pass")

    @property
    def draws(self) -> bool:
        """Whether it takes random numbers to play it."""
        return any(isinstance(entry, RecordedOp) and entry.random for _, entry in self.program)

    def play(self, changes: Mapping[int, Change] | None = None) -> list[float]:
        """The value of each root; `changes` are made to memory (by number) once it is made."""
        with _isolated(self.draws):
            return [float(value) for value in self._run(changes or {})]

    def play_tensors(self) -> list[Tensor]:
        """The roots themselves, in the grad mode that is in force."""
        return self._run({})

    def _run(self, changes: Mapping[int, Change]) -> list[Tensor]:
        memory: dict[int, UntypedStorage] = {}
        whole: dict[int, Tensor] = {}
        values: dict[int, Tensor] = {}
        waiting = sorted(range(len(self.roots)), key=lambda n: self.roots[n].end, reverse=True)
        for at, (place, entry) in enumerate(self.program):
            # What is written to a loss after its backward pass is no part of it.
            while waiting and self.roots[waiting[-1]].end <= place:
                number = waiting.pop()
                values[number] = _view_on(self.roots[number].view, memory).clone()
            if isinstance(entry, InitialMemory):
                memory[entry.number] = entry.content.clone().untyped_storage()
                continue
            self._do(entry, memory, whole)
            for number in changes:
                if any(number == made for _, made, _ in entry.makes):
                    changed = changes[number](whole[number])
                    memory[number] = changed.untyped_storage()
            for number in self._last.get(at, ()):
                memory.pop(number, None)
                whole.pop(number, None)
        for number in waiting:
            values[number] = _view_on(self.roots[number].view, memory)
        return [values[number] for number in range(len(self.roots))]

    @staticmethod
    def _do(op: RecordedOp, memory: dict[int, UntypedStorage], whole: dict[int, Tensor]) -> None:
        if op.drawn:
            for number, content in op.drawn:
                memory[number] = content.clone().untyped_storage()
            return
        for device, state in op.random or ():
            if device is None:
                torch.set_rng_state(state)
            else:
                torch.cuda.set_rng_state(state, device)

        def given(value: Any) -> Any:
            if isinstance(value, RecordedView):
                return _view_on(value, memory)
            if isinstance(value, (ParameterRef, ConstantRef)):
                return value.tensor
            if isinstance(value, (list, tuple)):
                return type(value)(given(item) for item in value)
            if isinstance(value, dict):
                return {key: given(item) for key, item in value.items()}
            return value

        result = op.func(*given(op.args), **given(op.kwargs))
        if op.makes:
            results = list(_flat(result))
            for position, number, size in op.makes:
                made = results[position]
                storage = made.untyped_storage()
                if storage.nbytes() != size:
                    raise CannotReplay(f"{op.func} gave a result of another size")
                memory[number], whole[number] = storage, made

    def _held(self) -> Iterator[ConstantRef]:
        for _, entry in self.program:
            if isinstance(entry, RecordedOp):
                yield from _constants_in((entry.args, entry.kwargs))


def _needed(
    entries: Sequence[RecordedOp | InitialMemory], roots: Sequence[RecordedRoot]
) -> list[tuple[int, RecordedOp | InitialMemory]]:
    """The entries that the roots depend on, in their order, each with its place on the tape."""
    wanted: set[int] = set()
    ends: dict[int, list[int]] = {}
    for root in roots:
        ends.setdefault(root.end, []).append(root.view.number)
    found: list[tuple[int, RecordedOp | InitialMemory]] = []
    for at in range(len(entries), -1, -1):
        wanted.update(ends.get(at, ()))
        if at == 0:
            break
        entry = entries[at - 1]
        if isinstance(entry, InitialMemory):
            if entry.number in wanted:
                found.append((at - 1, entry))
            continue
        made = [number for _, number, _ in entry.makes]
        if wanted.intersection(made) or wanted.intersection(entry.writes):
            found.append((at - 1, entry))
            wanted.update(entry.reads)
    return found[::-1]


def _last_uses(
    program: Sequence[tuple[int, RecordedOp | InitialMemory]], roots: Sequence[RecordedRoot]
) -> dict[int, list[int]]:
    last: dict[int, int] = {}
    for at, (_, entry) in enumerate(program):
        if isinstance(entry, RecordedOp):
            for number in (*entry.reads, *(number for _, number, _ in entry.makes)):
                last[number] = at
    for root in roots:
        last.pop(root.view.number, None)
    ending: dict[int, list[int]] = {}
    for number, at in last.items():
        ending.setdefault(at, []).append(number)
    return ending


_negative_view: Callable[[Tensor], Tensor] = private_part(
    "torch._neg_view",
    torch.neg,
    without="a tensor that torch only marks as negated is replayed from a negated copy",
)


def _view_on(view: RecordedView, memory: Mapping[int, UntypedStorage]) -> Tensor:
    storage = memory.get(view.number)
    if storage is None:
        raise CannotReplay("a tensor that was created outside the recording is missing")
    tensor = torch.empty(0, dtype=view.dtype, device=view.device)
    tensor.set_(storage, view.offset, view.size, view.stride)
    if view.conj:
        tensor = tensor.conj()
    return _negative_view(tensor) if view.neg else tensor


def _flat(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)


def _constants_in(value: Any) -> Iterator[ConstantRef]:
    if isinstance(value, ConstantRef):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _constants_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _constants_in(item)


@contextmanager
def _isolated(draws: bool) -> Iterator[None]:
    """Without gradients, autocast and function modes; random number generators are restored."""
    moment = RngState() if draws else None
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(no_function_modes())
        stack.enter_context(no_autocast())
        try:
            yield
        finally:
            if moment is not None:
                moment.restore()


class DifferentiableReplay:
    """A replay that autograd follows: views are strided views of the results of the ops."""

    def __init__(self, player: OpReplay, weights: dict[int, Tensor]) -> None:
        self._player = player
        self._weights = weights
        self._made: dict[int, Tensor] = {}

    def loss(self) -> Tensor:
        """The sum of the roots."""
        for _, entry in self._player.program:
            if isinstance(entry, RecordedOp):
                self._do(entry)
        roots = [self._given(root.view) for root in self._player.roots]
        total: Tensor = torch.stack([root.reshape(()).float() for root in roots]).sum()
        return total

    def _do(self, op: RecordedOp) -> None:
        if op.drawn:
            raise CannotReplay("its ops draw random numbers")
        for number in op.writes:
            if number not in self._made:
                self._begin(number, op)
        result = op.func(*self._given(op.args), **self._given(op.kwargs))
        results = list(_flat_list(result))
        for position, number, _ in op.makes:
            self._made[number] = results[position]

    def _begin(self, number: int, op: RecordedOp) -> None:
        content = next(
            entry.content
            for _, entry in self._player.program
            if isinstance(entry, InitialMemory) and entry.number == number
        )
        view = next(item for item in _views((op.args, op.kwargs)) if item.number == number)
        self._made[number] = content.clone().view(view.dtype)

    def _given(self, value: Any) -> Any:
        if isinstance(value, RecordedView):
            return _strided(self._made[value.number], value)
        if isinstance(value, ParameterRef):
            tensor = value.tensor
            copy = self._weights.get(memory_key(tensor))
            if copy is None:
                return tensor
            if copy.shape == tensor.shape and copy.stride() == tensor.stride():
                return copy
            offset = int(tensor.storage_offset())
            return torch.as_strided(copy, tensor.shape, tensor.stride(), offset)
        if isinstance(value, ConstantRef):
            return value.tensor
        if isinstance(value, (list, tuple)):
            return type(value)(self._given(item) for item in value)
        if isinstance(value, dict):
            return {key: self._given(item) for key, item in value.items()}
        return value


def _strided(made: Tensor, view: RecordedView) -> Tensor:
    if made.dtype != view.dtype or view.conj or view.neg:
        raise CannotReplay("memory is read as another type")
    same = (
        tuple(made.shape) == view.size
        and tuple(made.stride()) == view.stride
        and made.storage_offset() == view.offset
    )
    return made if same else torch.as_strided(made, view.size, view.stride, view.offset)


def _flat_list(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return (
        [t for item in value for t in _flat_list(item)] if isinstance(value, (list, tuple)) else []
    )


def _views(value: Any) -> list[RecordedView]:
    if isinstance(value, RecordedView):
        return [value]
    if isinstance(value, (list, tuple)):
        return [found for item in value for found in _views(item)]
    return _views(list(value.values())) if isinstance(value, dict) else []
