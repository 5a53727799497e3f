"""Traces step after step at little cost: an op whose result is finite only leaves a note.

A result is finite if its sum is. Only other results are examined, with their operands, as `Trace`
does. So a bad value has its line in any kind of loop: the step need not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headway.explain.bad_inputs import BadInputTracker, CallArguments
from headway.explain.bad_results import BadResultInspector
from headway.explain.batch_samples import BatchSamples
from headway.explain.failing_step import FailingStep, NamedGradients
from headway.explain.tensor_memory import MemoryOwners, MemoryWrite, MemoryWrites
from headway.explain.trace import Trace, TraceResults, changed_arguments
from headway.explain.traced_call import ForwardNotes
from headway.torch_adapters import runtime_state, tensor_values
from headway.torch_adapters.modes import (
    UNDECLARED_WRITES,
    LastingModes,
    UncompiledDispatchMode,
    current_dispatch_mode,
    modes_may_change,
)
from headway.torch_adapters.module_stack import ModuleNames
from headway.torch_adapters.op_recording.op_frames import FrameLine
from headway.torch_adapters.op_schema import OpSchema, read_schema, tensor_arguments
from headway.torch_adapters.tensor_values import (
    nonfinite_flags,
    plain_tensor,
    storage_address,
    sums_to_finite,
)

MAX_BAD_CALLS = 20_000
"""Bad calls of all steps together; nothing is traced beyond that."""
MAX_MASK = 1 << 14
"""Elements of a cast of integers or booleans that may become a mask; images are larger."""
MAX_COPIED = 1 << 20
"""Elements of an argument that is copied before an op changes it."""


class StepFacts(NamedTuple):
    """The current facts about the training."""

    step: FailingStep
    """Models, optimizers, names; without them before the first backward pass of a script."""
    batches: Sequence[Any]


class _StorageWrites(MemoryWrites):
    """Writes that outlive a step. Storage of another size at an address is other storage."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._into)

    def note(self, tensor: Tensor, order: int, flags: int) -> None:
        self._sizes[storage_address(tensor)] = tensor.untyped_storage().nbytes()
        super().note(tensor, order, flags)

    def begin(self, tensor: Tensor, order: int, flags: int) -> None:
        self._sizes[storage_address(tensor)] = tensor.untyped_storage().nbytes()
        super().begin(tensor, order, flags)

    def into(self, tensor: Tensor) -> list[MemoryWrite]:
        size = self._sizes.get(storage_address(tensor))
        return super().into(tensor) if size == tensor.untyped_storage().nbytes() else []

    def drop(self, tensor: Tensor) -> None:
        """Finite values in new memory replace the entry of this address."""
        self._into.pop(storage_address(tensor), None)
        self._shared.discard(storage_address(tensor))

    def forget_since(self, order: int) -> None:
        """Forget the writes of the ops from this one on."""
        for where, writes in list(self._into.items()):
            older = [write for write in writes if write.order < order]
            if older:
                self._into[where] = older
            else:
                del self._into[where]
        self._shared.clear()


class LastingTrace(Trace):
    """A trace over many steps.

    `learn` returns what is known by now, `batches` only the batches; `running` returns the module
    whose forward runs now.
    """

    def __init__(
        self,
        learn: Callable[[], StepFacts],
        batches: Callable[[], Sequence[Any]],
        running: Callable[[], nn.Module | None],
    ) -> None:
        super().__init__(FailingStep((), (), (), {}))
        self.paused = False
        """While headway itself works."""
        self._in_force = False
        self._learn = learn
        self._batches = batches
        self._names = ModuleNames()
        self.notes = ForwardNotes(self._names, running)
        self._schemas: dict[int, OpSchema] = {}
        self._known: list[Any] = []
        """The ops of these schemas, kept so that no `id` is used twice."""
        self._first_call = 0
        """Number of bad calls before the current step."""
        self.made_bad: dict[int, tuple[Tensor, Tensor | None]] = {}
        """What an op has made bad in place, by the address of its storage, and its value before;
        None: the op does not depend on it."""

    def __enter__(self) -> LastingTrace:
        self._writes: _StorageWrites = _StorageWrites()
        self._forwards = self.notes  # type: ignore[assignment]
        self._modules = self.notes  # type: ignore[assignment]
        self._sources = BadInputTracker(
            self.calls, self._writes, MemoryOwners(self._failing_step), self._samples
        )
        self._sources.unwritten_role = "computed"
        self._learn_owners()
        self._join()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.resting or self.rest():  # otherwise a mode of the script's own is on top
            self._writes.forget()
        self.paused = True

    @property
    def resting(self) -> bool:
        """Whether no op calls it. Being paused is not enough: each op would still run Python."""
        return not self._in_force

    def rest(self) -> bool:
        """Trace nothing until `wake`; False where a mode that was entered later is in force, or
        within a call of a compiled function."""
        on_top: Any = current_dispatch_mode()
        if on_top is not self or runtime_state.in_compiled_call():
            return False
        LastingModes.count -= 1
        UncompiledDispatchMode.__exit__(self, None, None, None)  # type: ignore[no-untyped-call]
        self._in_force = False
        return True

    def wake(self) -> None:
        """Trace again, unless the script is inside of a mode of its own, which must end first."""
        if self.resting and modes_may_change():
            self._join()
        self.paused = self.resting

    def _join(self) -> None:
        UncompiledDispatchMode.__enter__(self)  # type: ignore[no-untyped-call]
        LastingModes.count += 1
        self._in_force = True

    def blind(self) -> None:
        self.paused = True

    # The steps.

    @property
    def suspicious(self) -> bool:
        """Whether an op of the current step had a bad result that is not intended."""
        return any(
            call.trouble is not None and not call.trouble.deliberate
            for call in self.calls[self._first_call :]
        )

    def callers_of(self, function: tuple[str, int]) -> set[FrameLine]:
        return self.notes.callers_of(function)

    def backward_begins(self, roots: Sequence[Tensor], components: Mapping[str, Tensor]) -> None:
        bad = [root for root in roots if not sums_to_finite(root.detach())]
        if bad:
            self._untraced(self._look_at_losses, bad, components)
        self._backwards += 1

    def finish_step(self) -> FailingStep:
        """All gradients are there: look at them, if something was bad."""
        if self.suspicious or self.ends.losses:
            self._learn_owners()
            self._sources.name_leaves()
            self.gradients_ready(self._gradients.parameters())
        return self._failing_step

    def look_at_batch(self, batch: Any) -> FailingStep:
        """In a DataLoader worker: a batch is complete."""
        for tensor in tensor_values.batch_tensors(batch):
            self._untraced(self._look_at_losses, [tensor], {})
        return self._failing_step

    def look_at_buffers(self) -> None:
        """Buffers that the step has filled with bad values, though it was skipped or went well."""
        models = self._learn().step.models
        self.look_at({path: item for model in models for path, item in model.named_buffers()})

    def look_at(self, state: Mapping[str, Tensor]) -> None:
        """Weights or buffers, by name: those with bad values that an op has made."""
        self._learn_owners()
        self._sources.name_leaves()
        for name, tensor in state.items():
            self._untraced(self._look_at_state, name, tensor)

    def _look_at_state(self, name: str, tensor: Tensor) -> None:
        found = list(self._bad_source(name, tensor))
        if found and not found[0].deliberate and found[0].leaf is None:
            found[0].owner = None  # where the value went, not where it came from
            self.ends.losses.extend(found)

    def next_step(self) -> None:
        """Begin another step. Bad values that outlive this one keep their origin."""
        if not self.suspicious:
            self._writes.forget_since(self._first_call)
            del self.calls[self._first_call :]
            self.made_bad.clear()
        self._first_call = len(self.calls)
        self._backwards = 0
        self.ends = TraceResults()
        self._sources.forget_leaves()
        self.notes.trim()
        if len(self.calls) > MAX_BAD_CALLS:
            self.blind()

    def _learn_owners(self) -> None:
        """Learn which models and batches are known by now."""
        facts = self._learn()
        self._failing_step = facts.step
        self._names.learn(facts.step.models)
        self._samples[:] = [BatchSamples(batch) for batch in facts.batches]
        self._gradients = NamedGradients(facts.step)
        self._sources.replace_owners(MemoryOwners(facts.step))
        shapes = frozenset(tuple(p.shape) for p in self._gradients.parameters())
        self._inspector = BadResultInspector(self._sources, self._samples, shapes, self._note)

    # One op.

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self.paused or self._looking:
            return func(*args, **kwargs) if kwargs else func(*args)
        facts = self._schemas.get(id(func))  # by identity: its own hash is a Python function
        if facts is None:
            facts = self._schemas[id(func)] = read_schema(func)
            self._known.append(func)
        # Views, and memory that is there already (a batch from a worker), hold no new numbers. Of
        # the views only the backward of `expand`, a sum, may overflow.
        if facts.aten == "set" or (facts.view and facts.aten != "expand"):
            return func(*args, **kwargs) if kwargs else func(*args)
        before = None
        if facts.mutated or facts.collective:
            before = self._look_before(func, facts, args, kwargs or {})
        result = func(*args, **kwargs) if kwargs else func(*args)
        try:
            if runtime_state.running_node() is None or torch.is_grad_enabled():
                self.notes.add(facts, args, self._backwards)
            if not facts.view and self._is_remarkable(facts, args, kwargs or {}, result):
                self._examine(func, facts, args, kwargs or {}, before, result)
        except Exception as error:  # never raise into the user's step
            self._note(error, func)
        return result

    def _look_before(
        self, func: Any, facts: OpSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> CallArguments | None:
        self._looking = True
        try:
            if not facts.collective and self._is_large_and_finite(facts, args, kwargs):
                return None
            return self._arguments_before(func, facts, args, kwargs)
        except Exception as error:  # likewise
            self._note(error, func)
            return None
        finally:
            self._looking = False

    def _is_large_and_finite(
        self, facts: OpSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> bool:
        """Whether a copy of what an op changes would be slow and of little use."""
        size = 0
        for tensor in changed_arguments(facts, args, kwargs):
            size += tensor.numel()
            if self._writes and any(write.flags for write in self._writes.into(tensor)):
                return False
        return size > MAX_COPIED

    def _is_remarkable(
        self, facts: OpSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> bool:
        """Whether a result is bad, or its operands will be needed."""
        if facts.collective:
            return True
        if facts.mutated:
            return any(
                not sums_to_finite(tensor) or (self._writes and self._writes.know(tensor))
                for tensor in changed_arguments(facts, args, kwargs)
            )
        for tensor in (result,) if isinstance(result, Tensor) else _tensors_in(result):
            if not sums_to_finite(tensor):
                return True
            if self._writes and type(tensor) is Tensor and tensor.layout is torch.strided:
                self._writes.drop(tensor)
        # A mask is often made of integers or booleans.
        if facts.aten != "to_copy" or args[0].is_floating_point():
            return False
        return bool(args[0].numel() <= MAX_MASK)

    def _examine(
        self,
        func: Any,
        facts: OpSchema,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        before: CallArguments | None,
        result: Any,
    ) -> None:
        self._looking = True
        try:
            with self._lock:
                if len(self._samples) != len(self._batches()):
                    self._learn_owners()
                self._look(func, facts, args, kwargs, before, result)
                if facts.mutated:
                    self._keep_made_bad(changed_arguments(facts, args, kwargs), before)
                if facts.aten.endswith("batch_norm"):
                    self._note_statistics(facts, args, kwargs)
        finally:
            self._looking = False

    def _keep_made_bad(self, changed: Sequence[Tensor], before: CallArguments | None) -> None:
        originals = {} if before is None else before.originals
        values = {} if before is None else {id(item): item for item in _tensors_in(before.args)}
        copies = {id(tensor): values.get(copy) for copy, tensor in originals.items()}
        for tensor in changed:
            numbers = plain_tensor(tensor)
            if numbers is not None and nonfinite_flags(numbers):
                # Bad before already: the first write is the one that counts.
                self.made_bad.setdefault(
                    storage_address(numbers), (tensor, copies.get(id(numbers)))
                )

    def _autocast(self, tensor: Tensor) -> str | None:
        return super()._autocast(tensor) if self.notes.autocast_used else None

    def _note_statistics(
        self, facts: OpSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Batch normalisation writes its running statistics without saying so in its schema."""
        for name, tensor in tensor_arguments(facts, args, kwargs):
            if name in UNDECLARED_WRITES and (flags := nonfinite_flags(tensor)):
                self._writes.note(tensor, len(self.calls) - 1, flags)


def _tensors_in(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [tensor for item in result for tensor in _tensors_in(item)]
    return []
