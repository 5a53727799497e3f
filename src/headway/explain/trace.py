"""Traces every op of a pass and the flow of non-finite values between them.

`Trace` is active while the user's step runs. It never raises into the step: its own errors are
collected in `errors`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headway.explain.bad_inputs import BadInputTracker, CallArguments, digest_memory
from headway.explain.bad_results import BadResultInspector
from headway.explain.batch_samples import BatchSamples, GradientShares
from headway.explain.failing_step import FailingStep, NamedGradients, PassObserver
from headway.explain.tensor_memory import MemoryOwners, MemoryWrites
from headway.explain.traced_call import (
    BadInput,
    BadResult,
    ForwardCalls,
    TracedCall,
    TracedComponent,
    read_component_graphs,
)
from headway.torch_adapters import runtime_state
from headway.torch_adapters.modes import (
    UncompiledDispatchMode,
    no_dispatch_modes,
    no_python_dispatch,
)
from headway.torch_adapters.module_stack import ModuleStack
from headway.torch_adapters.op_recording.op_frames import FrameLine, read_frame_context
from headway.torch_adapters.op_schema import OpSchema, read_schema, tensor_arguments
from headway.torch_adapters.tensor_values import (
    nonfinite_flags,
    plain_tensor,
    read_nonfinite_flags,
    read_norms,
    storage_address,
)

# Outputs are inspected as they appear. Everything about a bad one is collected at once, because the
# step may free its tensors.

MOST_ERRORS = 20


@dataclass(slots=True)
class TraceResults:
    """The results of a pass: losses and gradients."""

    losses: list[BadInput] = field(default_factory=list)
    """The non-finite tensors that backward was called on."""
    components: list[TracedComponent] = field(default_factory=list)
    gradients: dict[str, BadInput] = field(default_factory=dict)
    """The non-finite gradients, by parameter."""
    norms: dict[str, float] = field(default_factory=dict)
    """Norms of the finite gradients, without the loss scale."""
    written_by: dict[str, TracedCall | None] = field(default_factory=dict)
    """The op that wrote each finite gradient last."""


class Trace(UncompiledDispatchMode, PassObserver):
    """A context manager for one pass; one function may enter it and another one exit it."""

    supports_higher_order_operators = True

    def __init__(self, failing_step: FailingStep) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[TracedCall] = []
        self.ends = TraceResults()
        self.errors: list[str] = []
        self.incomplete = False
        """Whether an origin may be in a part of the step that was passed over."""
        self.shares: GradientShares | None = None
        self._failing_step = failing_step
        self._samples = [BatchSamples(batch) for batch in failing_step.batches]
        self._modules = ModuleStack(failing_step.models)
        self._lock = threading.RLock()
        self._looking = False
        self._backwards = 0
        self._gradients_inspected = False
        self._stance: Any = None

    def __enter__(self) -> Trace:
        self._writes = MemoryWrites()
        self._forwards = ForwardCalls()
        self._gradients = NamedGradients(self._failing_step)
        shapes = frozenset(tuple(p.shape) for p in self._gradients.parameters())
        owners = MemoryOwners(self._failing_step)
        self._sources = BadInputTracker(self.calls, self._writes, owners, self._samples)
        self._inspector = BadResultInspector(self._sources, self._samples, shapes, self._note)
        if self._failing_step.symptom == "spike":
            self.shares = GradientShares(self._samples, shapes)
        self._modules.install()
        self._stance = runtime_state.run_eagerly()
        self._stance.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        if not self._gradients_inspected:
            self._untraced(self._look_at_gradients, self._gradients.parameters())
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._stance.__exit__(*exception)
        self._modules.remove()
        self._writes.forget()

    def blind(self) -> None:
        """Stop tracing, for a caller that cannot exit the modes in order."""
        self._looking = True
        self._modules.remove()

    def backward_begins(self, roots: Sequence[Tensor], components: Mapping[str, Tensor]) -> None:
        self._untraced(self._look_at_losses, roots, components)
        self._backwards += 1

    def callers_of(self, function: tuple[str, int]) -> set[FrameLine]:
        """The lines that call a function, given by its file and first line."""
        return {
            call.around.caller
            for call in self.calls
            if call.around.place is not None
            and call.around.caller is not None
            and not call.around.recomputed
            and (call.around.place.file, call.around.place.begins) == function
        }

    def gradients_ready(self, parameters: Sequence[Tensor]) -> None:
        self._gradients_inspected = True
        self._untraced(self._look_at_gradients, parameters)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._looking:
            return func(*args, **kwargs)
        facts, before = None, None
        try:
            facts = read_schema(func)
            before = self._arguments_before(func, facts, args, kwargs)
        except Exception as error:  # never raise into the user's step
            self._note(error, func)
        result = func(*args, **kwargs)
        try:
            if facts is not None:
                # Other dispatch modes must not see our own ops, which is also faster. `types`
                # lists the tensor subclasses among the arguments.
                with self._lock, no_dispatch_modes() if types else no_python_dispatch():
                    self._look(func, facts, args, kwargs, before, result)
        except Exception as error:  # likewise
            self._note(error, func)
        return result

    def _arguments_before(
        self, func: Any, facts: OpSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> CallArguments | None:
        """The arguments of an op that changes them, or that sends them to other ranks."""
        if facts.collective:
            before = CallArguments(func, args, kwargs)
            before.handed_over = self._sources.handed_over(before, facts)
            # Before the call: a backend thread may finish first.
            for tensor in changed_arguments(facts, args, kwargs):
                if (numbers := plain_tensor(tensor)) is not None:
                    self._writes.share(numbers)
            return before
        if facts.mutated and not facts.overwrites:
            return _copy_mutated_arguments(func, facts, args, kwargs)
        return None

    def _look(
        self,
        func: Any,
        facts: OpSchema,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        before: CallArguments | None,
        result: Any,
    ) -> None:
        call = self._call(facts, args)
        if facts.view:
            return
        changed = changed_arguments(facts, args, kwargs) if facts.mutated else []
        if facts.collective and before is not None:
            self._record_collective(call, before.handed_over, [*changed, *_tensors(result)])
            return
        outputs = self._numbers(facts, [*changed, *_tensors(result)])
        if facts.constant and any(self._sources.owned(tensor) for tensor, _ in outputs):
            return  # an array of the batch, converted to a tensor
        if any(found for _, found in outputs):
            given = before or CallArguments(func, args, kwargs)
            call.trouble = self._inspector.examine(call, given, outputs)
        elif self.shares is not None and call.phase == "backward":
            self.shares.look(call, args, [tensor for tensor, _ in outputs])
        for tensor, found in outputs:
            if facts.mutated:
                self._writes.note(tensor, call.order, found)
            elif facts.constant or not self._is_an_argument(tensor, facts, args, kwargs):
                self._writes.begin(tensor, call.order, found)
        if facts.uninitialised and outputs and outputs[0][0].is_floating_point():
            call.digest = digest_memory(outputs[0][0])

    def _is_an_argument(
        self, tensor: Tensor, facts: OpSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> bool:
        """Whether a result is a view of an argument; not every schema declares it."""
        if not self._writes.know(tensor):
            return False
        given = (plain_tensor(item) for _, item in tensor_arguments(facts, args, kwargs))
        where = storage_address(tensor)
        return any(item is not None and storage_address(item) == where for item in given)

    def _record_collective(
        self, call: TracedCall, handed_over: BadResult | None, tensors: Sequence[Tensor]
    ) -> None:
        """Record writes of a collective, which may complete later and come from any rank."""
        call.trouble = handed_over
        for tensor in tensors:
            numbers = plain_tensor(tensor)
            if numbers is not None:
                self._writes.note(numbers, call.order, handed_over.flags if handed_over else 0)
                self._writes.share(numbers)

    def _numbers(self, facts: OpSchema, tensors: Sequence[Tensor]) -> list[tuple[Tensor, int]]:
        """The plain tensors among these, each with its flags."""
        found: list[tuple[Tensor, int]] = []
        for tensor in tensors:
            numbers = plain_tensor(tensor)
            if numbers is not None and all(numbers is not other for other, _ in found):
                found.append((numbers, 0 if facts.uninitialised else nonfinite_flags(numbers)))
        return found

    def _call(self, facts: OpSchema, args: tuple[Any, ...]) -> TracedCall:
        node = runtime_state.running_node()
        frames = read_frame_context(4, in_backward=node is not None)
        in_backward = node is not None and not frames.recomputed
        first = next((item for item in args if isinstance(item, Tensor)), None)
        call = TracedCall(
            order=len(self.calls),
            facts=facts,
            module=self._modules.running(),
            around=frames,
            phase="backward" if in_backward else "forward",
            node=node.name() if in_backward else None,
            forward=self._forwards.of(node, nested=frames.nested) if in_backward else None,
            autocast=None if in_backward or first is None else self._autocast(first),
            batch=max(0, self._backwards - 1) if node is not None else self._backwards,
            dims=0 if first is None else first.ndim,
            from_integers=facts.aten == "to_copy"
            and first is not None
            and not first.is_floating_point(),
        )
        self.calls.append(call)
        self._forwards.note(call)
        return call

    def _autocast(self, tensor: Tensor) -> str | None:
        return runtime_state.autocast_dtype(tensor.device.type)

    def _look_at_losses(self, roots: Sequence[Tensor], components: Mapping[str, Tensor]) -> None:
        for root in roots:
            self.ends.losses.extend(self._bad_source("loss", root))
        found = {
            name: TracedComponent(
                name,
                float(tensor.detach().float().mean()),
                tuple(self._bad_source(name, tensor)),
                self._number_of(tensor),
            )
            for name, tensor in components.items()
        }
        read_component_graphs(roots, components, found)
        self.ends.components.extend(found.values())

    def _look_at_gradients(self, parameters: Sequence[Tensor]) -> None:
        plain = [
            (name, numbers, scale)
            for name, gradient, scale in self._gradients.of(parameters)
            if (numbers := plain_tensor(gradient.detach())) is not None
        ]
        every = read_nonfinite_flags([numbers for _, numbers, _ in plain])
        for (name, numbers, _), found in zip(plain, every, strict=True):
            if found:
                self.ends.gradients[name] = self._sources.of(name, numbers, found)
        finite = [item for item, found in zip(plain, every, strict=True) if not found]
        norms = read_norms([numbers for _, numbers, _ in finite])
        for (name, numbers, scale), norm in zip(finite, norms, strict=True):
            self.ends.norms[name] = norm / scale
            self.ends.written_by[name] = self._last_writer(numbers)

    def _bad_source(self, name: str, tensor: Tensor) -> Iterator[BadInput]:
        numbers = plain_tensor(tensor.detach())
        if numbers is not None and (found := nonfinite_flags(numbers)):
            yield self._sources.of(name, numbers, found)

    def _number_of(self, tensor: Tensor) -> int | None:
        """Number of the autograd node that created a tensor, also if it was detached since."""
        numbers = plain_tensor(tensor.detach())
        writer = None if numbers is None else self._last_writer(numbers)
        return None if writer is None else writer.number

    def _last_writer(self, tensor: Tensor) -> TracedCall | None:
        writes = self._writes.into(tensor)
        return self.calls[writes[0].order] if writes else None

    def _untraced(self, look: Callable[..., None], *args: Any) -> None:
        """Inspect tensors outside an op, without tracing our own ops."""
        self._looking = True
        try:
            with torch.no_grad(), no_dispatch_modes():
                look(*args)
        except Exception as error:  # likewise
            self._note(error, look.__name__)
        finally:
            self._looking = False

    def _note(self, error: Exception, where: Any) -> None:
        if len(self.errors) < MOST_ERRORS:
            self.errors.append(f"{where}: {type(error).__name__}: {error}")


def _copy_mutated_arguments(
    func: Any, facts: OpSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> CallArguments:
    """The arguments, with copies of those that the op modifies."""
    originals: dict[int, Tensor] = {}
    before = tuple(
        _copy_tensor(value, originals) if name in facts.mutated else value
        for name, value in zip(facts.arguments, args, strict=False)
    )
    named = {
        name: _copy_tensor(value, originals) if name in facts.mutated else value
        for name, value in kwargs.items()
    }
    return CallArguments(func, before, named, originals)


def _copy_tensor(value: Any, originals: dict[int, Tensor]) -> Any:
    if isinstance(value, (list, tuple)):
        return [_copy_tensor(item, originals) for item in value]
    tensor = plain_tensor(value) if isinstance(value, Tensor) else None
    if tensor is None or not tensor.is_floating_point():
        return value
    copy = tensor.clone()
    originals[id(copy)] = tensor
    return copy


def changed_arguments(
    facts: OpSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Tensor]:
    """The tensors that an op writes to."""
    given = tensor_arguments(facts, args, kwargs)
    return [tensor for name, tensor in given if name.partition("[")[0] in facts.mutated]


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [tensor for item in result for tensor in _tensors(item)]
    return []
