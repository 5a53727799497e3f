"""Records the ops that make a loss, so that the same loss can be computed again at other weights.

A recorder is in force from the end of one optimizer step to the backward pass of the next. It
records what autograd records: the ops between the weights and the loss. Whatever autograd takes for
a constant (data, `detach`, `no_grad`, random numbers, what went through Python) is kept as it was.
Tensors are known by their storage, so views need no record of their own.

Recording changes nothing and copies little: weights are read live at replay (see `op_replay`),
other inputs are held by reference, and copied only before something overwrites them.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

from headway.torch_adapters.modes import OutermostDispatchMode
from headway.torch_adapters.op_recording.recorded_ops import (
    ConstantRef,
    InitialMemory,
    OpTreatment,
    ParameterRef,
    RecordedOp,
    RecordedRoot,
    RecordedView,
    copy_memory,
    describe_view,
    find_treatment,
    is_mean,
    is_on_leaf,
    memory_key,
    memory_size,
    read_random_state,
    read_version,
)
from headway.torch_adapters.patching import install_patch

MOST_OPS = 50_000
MOST_BYTES = 1 << 30
"""A recording that would hold more than this is abandoned."""


@dataclass(slots=True)
class _RecordedMemory:
    number: int
    by_flag: bool
    """A tensor on it counts if it requires a gradient; otherwise every one does."""


class OpRecorder(OutermostDispatchMode):
    """Records while it runs; `begin`, `pause`, `resume` and `end` may be called from anywhere."""

    def __init__(self, *, most_ops: int = MOST_OPS, most_bytes: int = MOST_BYTES) -> None:
        super().__init__()
        self.most_ops = most_ops
        self.most_bytes = most_bytes
        self.running = False
        self._inside = 0
        self._undo: Callable[[], None] | None = None
        self._forget()

    def _forget(self) -> None:
        self.entries: list[RecordedOp | InitialMemory] = []
        self.roots: list[RecordedRoot] = []
        self.trouble: str | None = None
        """Why what was recorded cannot be played."""
        self.coarsest = 0.0
        """The resolution of the least precise numbers on the way."""
        self._memories: dict[int, _RecordedMemory] = {}
        self._weights: dict[int, Tensor] = {}
        self._read: set[int] = set()
        self._held: dict[int, list[ConstantRef]] = {}
        self._bytes = 0
        self._next = 0

    # When it runs.

    def install(self) -> None:
        """Register custom autograd functions, whose forward runs without gradients."""
        if self._undo is None:
            self._undo = _watch_functions(self)

    def uninstall(self) -> None:
        """Leave torch as it was."""
        self.end()
        if self._undo is not None:
            self._undo()
            self._undo = None

    def begin(self) -> None:
        """Forget what was recorded and start again."""
        self._forget()
        self.resume()

    def resume(self) -> None:
        """Continue to record after `pause`."""
        if self.trouble is not None:
            return
        if not self.enter_outermost():
            self.give_up("another dispatch mode is active")
            return
        self.running = True

    def pause(self) -> None:
        """Record nothing for a while."""
        self.running = False
        self.leave_outermost()

    def end(self) -> None:
        """Record nothing more, and let go of everything."""
        self.pause()
        self._forget()

    def give_up(self, why: str) -> None:
        """This tape cannot be played."""
        if self.trouble is None:
            kept = why
            self._forget()
            self.trouble = kept
        self.pause()

    # What it is notified of.

    def add_root(self, root: Tensor) -> None:
        """A backward pass begins here."""
        if self.trouble is not None:
            return
        memory = self._memories.get(memory_key(root))
        if memory is None:
            self.give_up("the loss is not computed from the recorded ops")
            return
        self.roots.append(
            RecordedRoot(
                describe_view(root, memory.number), float(root.detach()), len(self.entries)
            )
        )

    def number_of(self, tensor: Tensor) -> int | None:
        """The memory behind a tensor, where a recorded op made it."""
        memory = self._memories.get(memory_key(tensor))
        return None if memory is None else memory.number

    # Recording.

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.running or self.trouble is not None:
            return func(*args, **kwargs)
        try:
            op = self._before(func, types, args, kwargs)
        except Exception as error:  # never into the user's step
            self._fail(func, error)
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if op is None and not self._memories:  # before the model, as in a loader
            return result
        try:
            if self.trouble is None:
                self._after(func, op, args, kwargs, result)
        except Exception as error:
            self._fail(func, error)
        return result

    def _fail(self, func: Any, error: Exception) -> None:
        self.trouble = f"{func} could not be recorded ({type(error).__name__}: {error})"

    def _before(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> RecordedOp | None:
        how = find_treatment(func)
        if how.collective:
            self.trouble = "other ranks take part in it"
            return None
        if any(kind not in (Tensor, torch.nn.Parameter) for kind in types):
            self.trouble = "it uses a custom tensor class"
            return None
        tensors = _tensors((args, kwargs))
        if not (self._memories or self._weights or any(t.requires_grad for t in tensors)):
            return None  # no weight has been read yet
        alive = [self._is_alive(tensor, how) for tensor in tensors]
        if how.view:
            return None
        written = list(_written(how, args, kwargs))
        overwrites_ours = any(memory_key(tensor) in self._memories for tensor in written)
        recording = torch.is_grad_enabled() or self._inside > 0
        live = recording and any(alive) and not (how.sampler or how.factory)
        for tensor in written:
            self._about_to_write(tensor)
        if not (live or overwrites_ours) or self.trouble is not None:
            return None
        if len(self.entries) >= self.most_ops or self._bytes > self.most_bytes:
            self.trouble = "it exceeds the limit on ops or memory"
            return None
        changed = tuple(dict.fromkeys(self._begun(tensor) for tensor in written))
        writers = {id(tensor) for tensor in written}
        op = RecordedOp(func, None, None, reads=(), writes=changed)
        reads: list[int] = list(changed)

        def kept(tensor: Tensor) -> Any:
            use = self._use(tensor, how, op, writes=id(tensor) in writers, live=live)
            if isinstance(use, RecordedView):
                reads.append(use.number)
            return use

        op.args = _mapped(args, kept)
        op.kwargs = _mapped(kwargs, kept)
        op.reads = tuple(dict.fromkeys(reads))
        if how.redrawn:
            op.random = read_random_state(tensors)
        op.mean = is_mean(how.name, args, kwargs, func._schema)
        return op

    def _after(
        self, func: Any, op: RecordedOp | None, args: Any, kwargs: dict[str, Any], result: Any
    ) -> None:
        tensors = _tensors((args, kwargs))
        given = set(map(memory_key, tensors))
        fresh = [
            (position, tensor)
            for position, tensor in enumerate(_tensors(result))
            if memory_key(tensor) not in given
        ]
        if op is None:
            for _, tensor in fresh:  # memory that had another use before
                self._memories.pop(memory_key(tensor), None)
            return
        how = find_treatment(func)
        if how.sampler:
            seen = {self._memories[memory_key(t)].number: t for t in _written(how, args, kwargs)}
            op.drawn = [(number, copy_memory(tensor)) for number, tensor in seen.items()]
        wants = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        makes = []
        for position, tensor in fresh:
            if not _differentiable(tensor) and tensor.dtype is not torch.bool:
                self._memories.pop(memory_key(tensor), None)  # indices are kept as they were
                continue
            by_flag = _differentiable(tensor) and (wants or self._inside > 0)
            makes.append((position, self._new(tensor, by_flag=by_flag), memory_size(tensor)))
            self._note_resolution(tensor)
        op.makes = tuple(makes)
        op.size = fresh[0][1].numel() if fresh else 0
        self.entries.append(op)

    def _is_alive(self, tensor: Tensor, how: OpTreatment) -> bool:
        """Whether a tensor stands for something that depends on the weights."""
        key = memory_key(tensor)
        memory = self._memories.get(key)
        if memory is not None:
            return tensor.requires_grad or self._inside > 0 or not memory.by_flag
        if key in self._weights:
            return tensor.requires_grad or self._inside > 0 or how.reads_weights
        if tensor.requires_grad and is_on_leaf(tensor):
            self._weights[key] = tensor
            return True
        return tensor.requires_grad

    def _use(
        self, tensor: Tensor, how: OpTreatment, op: RecordedOp, *, writes: bool, live: bool
    ) -> Any:
        key = memory_key(tensor)
        memory = self._memories.get(key)
        if memory is not None and (writes or (live and self._is_alive(tensor, how))):
            return describe_view(tensor, memory.number)
        if key in self._weights:
            if live and self._is_alive(tensor, how):
                self._read.add(key)
                return ParameterRef(tensor.detach())
            return self._copied(tensor)
        if tensor.requires_grad:
            if memory is None:
                op.older = True
            return self._copied(tensor)
        # The tensor itself: below autograd, a detached one would not share its version.
        held = ConstantRef(tensor, read_version(tensor))
        if key not in self._held:
            self._bytes += memory_size(tensor)
        self._held.setdefault(key, []).append(held)
        return held

    def _copied(self, tensor: Tensor) -> ConstantRef:
        self._bytes += tensor.numel() * tensor.element_size()
        return ConstantRef(tensor.detach().clone(), None)

    def _about_to_write(self, tensor: Tensor) -> None:
        """Keep what a constant of the tape was, and notice weights that are changed in between."""
        key = memory_key(tensor)
        if key in self._read:
            self.trouble = "weights are changed between the forward pass and the step"
        for held in self._held.pop(key, ()):
            if held.version is not None:
                held.tensor, held.version = held.tensor.clone(), None
                self._bytes += held.tensor.numel() * held.tensor.element_size()

    def _begun(self, tensor: Tensor) -> int:
        """The number of memory that is about to be written to."""
        memory = self._memories.get(memory_key(tensor))
        if memory is not None:
            return memory.number
        content = copy_memory(tensor)
        self._bytes += content.numel()
        number = self._new(tensor, by_flag=True)
        self.entries.append(InitialMemory(number, content))
        return number

    def _new(self, tensor: Tensor, *, by_flag: bool) -> int:
        number, self._next = self._next, self._next + 1
        self._memories[memory_key(tensor)] = _RecordedMemory(number, by_flag)
        return number

    def _note_resolution(self, tensor: Tensor) -> None:
        if tensor.is_floating_point():
            self.coarsest = max(self.coarsest, torch.finfo(tensor.dtype).eps)


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    found: list[Tensor] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, (list, tuple)):
            waiting.extend(reversed(item))
        elif isinstance(item, dict):
            waiting.extend(reversed(item.values()))
    return found


def _mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(item, change) for item in value)
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    return value


def _written(how: OpTreatment, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    if how.mutated:
        for name, value in zip(how.arguments, args, strict=False):
            if name in how.mutated:
                yield from _tensors(value)
        for name, value in kwargs.items():
            if name in how.mutated:
                yield from _tensors(value)


def _differentiable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _watch_functions(tape: OpRecorder) -> Callable[[], None]:
    """Notify the recorder of custom functions, whose forward runs without gradients."""
    original = vars(Function)["apply"]
    reference = weakref.ref(tape)

    # Written in Python, and since torch 2.14 in C: bound to a class, both are called alike.
    @functools.wraps(getattr(original, "__func__", original))
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        plain = original.__get__(None, cls)
        recorder = reference()
        if recorder is None or not recorder.running or not torch.is_grad_enabled():
            return plain(*args, **kwargs)
        recorder._inside += 1
        try:
            return plain(*args, **kwargs)
        finally:
            recorder._inside -= 1

    return install_patch(Function, "apply", classmethod(apply))
