"""Playing a tape: the loss of a recorded step at the weights of now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from headway.preflight.tape import Tape
from headway.preflight.taped import Begin, Held, Op, Root, View, Weight
from headway.torch_tools.rng import Moment

Change = Callable[[Tensor], Tensor]


class CannotPlay(Exception):
    """Why a tape cannot be played."""


class Player:
    """The part of a tape that some of its losses are made of."""

    def __init__(self, tape: Tape, roots: Sequence[Root]) -> None:
        """Raises CannotPlay where that part is not whole."""
        if tape.trouble is not None:
            raise CannotPlay(tape.trouble)
        self.roots = list(roots)
        self.resolution = tape.coarsest
        self.program = _needed(tape.entries, roots)
        self._last = _last_uses(self.program, roots)
        if any(isinstance(entry, Op) and entry.older for _, entry in self.program):
            raise CannotPlay("part of its graph was made before the step it belongs to")
        if any(held.changed for held in self._held()):
            raise CannotPlay("something it is computed from was changed after the forward pass")

    @property
    def draws(self) -> bool:
        """Whether it takes random numbers to play it."""
        return any(isinstance(entry, Op) and entry.random for _, entry in self.program)

    def play(self, changes: Mapping[int, Change] | None = None) -> list[float]:
        """The value of each root; `changes` are made to memory (by number) once it is made."""
        with _undisturbed(self.draws):
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
                values[number] = _tensor(self.roots[number].view, memory).clone()
            if isinstance(entry, Begin):
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
            values[number] = _tensor(self.roots[number].view, memory)
        return [values[number] for number in range(len(self.roots))]

    @staticmethod
    def _do(op: Op, memory: dict[int, UntypedStorage], whole: dict[int, Tensor]) -> None:
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
            if isinstance(value, View):
                return _tensor(value, memory)
            if isinstance(value, (Weight, Held)):
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
                    raise CannotPlay(f"{op.func} gave a result of another size")
                memory[number], whole[number] = storage, made

    def _held(self) -> Iterator[Held]:
        for _, entry in self.program:
            if isinstance(entry, Op):
                yield from _holdings((entry.args, entry.kwargs))


def _needed(entries: Sequence[Op | Begin], roots: Sequence[Root]) -> list[tuple[int, Op | Begin]]:
    """The entries that the roots depend on, in their order, each with its place on the tape."""
    wanted: set[int] = set()
    ends: dict[int, list[int]] = {}
    for root in roots:
        ends.setdefault(root.end, []).append(root.view.number)
    found: list[tuple[int, Op | Begin]] = []
    for at in range(len(entries), -1, -1):
        wanted.update(ends.get(at, ()))
        if at == 0:
            break
        entry = entries[at - 1]
        if isinstance(entry, Begin):
            if entry.number in wanted:
                found.append((at - 1, entry))
            continue
        made = [number for _, number, _ in entry.makes]
        if wanted.intersection(made) or wanted.intersection(entry.writes):
            found.append((at - 1, entry))
            wanted.update(entry.reads)
    return found[::-1]


def _last_uses(
    program: Sequence[tuple[int, Op | Begin]], roots: Sequence[Root]
) -> dict[int, list[int]]:
    last: dict[int, int] = {}
    for at, (_, entry) in enumerate(program):
        if isinstance(entry, Op):
            for number in (*entry.reads, *(number for _, number, _ in entry.makes)):
                last[number] = at
    for root in roots:
        last.pop(root.view.number, None)
    ending: dict[int, list[int]] = {}
    for number, at in last.items():
        ending.setdefault(at, []).append(number)
    return ending


def _tensor(view: View, memory: Mapping[int, UntypedStorage]) -> Tensor:
    storage = memory.get(view.number)
    if storage is None:
        raise CannotPlay("something that was made outside of the tape is missing")
    tensor = torch.empty(0, dtype=view.dtype, device=view.device)
    tensor.set_(storage, view.offset, view.size, view.stride)
    if view.conj:
        tensor = torch._conj(tensor)
    return torch._neg_view(tensor) if view.neg else tensor


def _flat(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)


def _holdings(value: Any) -> Iterator[Held]:
    if isinstance(value, Held):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _holdings(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _holdings(item)


@contextmanager
def _undisturbed(draws: bool) -> Iterator[None]:
    """Without gradients, casts of somebody's autocast and hooks; random numbers are put back."""
    moment = Moment() if draws else None
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(torch._C._DisableAutocast())
        try:
            yield
        finally:
            if moment is not None:
                moment.restore()
