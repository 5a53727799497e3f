"""A trace that examines only the ops that can be the origin of a bad value.

Passed over are the modules whose results and gradients a survey found finite, and the backward pass
of a bad loss, which the forward pass explains. Of an op that is passed over only its frames and the
memory that it writes are noted. If the walk back from the bad results comes to such memory, the
trace is incomplete, and the step is traced again as a whole: so the origin is the same.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from headway.explain.failing_step import FailingStep
from headway.explain.module_survey import CleanCalls
from headway.explain.trace import Trace, changed_arguments
from headway.explain.traced_call import TracedCall
from headway.torch_adapters.autograd_graph import node_number
from headway.torch_adapters.module_stack import ModuleStack, RunningModule
from headway.torch_adapters.op_recording.op_frames import (
    FrameContext,
    FrameLine,
    RawFrames,
    read_frame_context,
    read_raw_frames,
)
from headway.torch_adapters.op_schema import PASSED_OVER, OpSchema, read_schema
from headway.torch_adapters.runtime_state import last_node_number, running_node
from headway.torch_adapters.tensor_values import plain_tensor


class ScopedTrace(Trace):
    """A context manager for one pass, like `Trace`."""

    def __init__(self, failing_step: FailingStep, survey: CleanCalls) -> None:
        super().__init__(failing_step)
        self._modules = self._scope = _CleanRegions(failing_step.models, survey)
        self._loss_is_bad = False
        """The backward pass that runs now is that of a bad loss."""
        nobody = RunningModule("", None)
        self._nothing = TracedCall(0, PASSED_OVER, nobody, FrameContext())
        self._frames: set[RawFrames] = set()
        self._callers: set[tuple[FrameLine, FrameLine]] = set()

    def backward_begins(self, roots: Sequence[Tensor], components: Mapping[str, Tensor]) -> None:
        known = len(self.ends.losses)
        super().backward_begins(roots, components)
        self._loss_is_bad = len(self.ends.losses) > known

    def gradients_ready(self, parameters: Sequence[Tensor]) -> None:
        self._loss_is_bad = False
        super().gradients_ready(parameters)

    def callers_of(self, function: tuple[str, int]) -> set[FrameLine]:
        found = super().callers_of(function)
        contexts = (raw.to_context() for raw in self._frames)
        pairs = {(around.place, around.caller) for around in contexts} | self._callers
        return found | {
            caller
            for place, caller in pairs
            if place is not None and caller is not None and (place.file, place.begins) == function
        }

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self._looking:
            return func(*args, **(kwargs or {}))
        facts = read_schema(func)
        if not self._passes_over(facts):
            if self._scope.ended is not None:
                self._forwards.pass_over(self._scope.ended, self._nothing)
                self._scope.ended = None
            return super().__torch_dispatch__(func, types, args, kwargs)
        result = func(*args, **(kwargs or {}))
        try:
            with self._lock:
                self.calls.append(self._nothing)  # so that every op has the number it always has
                if not facts.view:
                    self._pass_over(facts, args, kwargs or {}, result)
        except Exception as error:  # never raise into the user's step
            self._note(error, func)
        return result

    def _passes_over(self, facts: OpSchema) -> bool:
        if facts.collective:
            return False
        node = running_node()
        if node is not None:
            return self._loss_is_bad or self._scope.made(node_number(node))
        # What these have made is said of an operand.
        told = facts.constant or facts.uninitialised or facts.aten == "to_copy"
        return self._scope.within and not told

    def _pass_over(
        self, facts: OpSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if running_node() is None:
            self._frames.add(read_raw_frames(2))
        else:
            around = read_frame_context(2, in_backward=True)
            if around.place is not None and around.caller is not None and not around.recomputed:
                self._callers.add((around.place, around.caller))
        results = result if isinstance(result, (list, tuple)) else (result,)
        if facts.mutated:
            results = changed_arguments(facts, args, kwargs)
        for tensor in results:
            numbers = plain_tensor(tensor) if isinstance(tensor, Tensor) else None
            if numbers is not None and (
                facts.mutated or not self._is_an_argument(numbers, facts, args, kwargs)
            ):
                self._writes.pass_over(numbers, len(self.calls) - 1)


class _CleanRegions(ModuleStack):
    """The modules that run, and whether one of them is to be passed over."""

    def __init__(self, models: Sequence[nn.Module], survey: CleanCalls) -> None:
        super().__init__(models)
        self.within = False
        """Whether a clean module runs now."""
        self._survey = survey
        self._thread = threading.get_ident()
        self.ended: int | None = None
        """Number of the last node of the clean module that has just ended."""
        self._count = 0
        self._depth = 0
        """Of the clean module: the number of modules around it."""
        self._begin = 0
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        """The autograd nodes that clean modules have made, by their numbers."""

    def made(self, number: int) -> bool:
        """Whether the node with this number belongs to a clean module."""
        at = bisect_left(self._lasts, number)
        return at < len(self._lasts) and self._firsts[at] <= number

    def _enter(self, module: nn.Module, args: Any) -> None:
        if self._survey.clean and threading.get_ident() == self._thread:
            self._follow(module)
        super()._enter(module, args)

    def _follow(self, module: nn.Module) -> None:
        position, known = self._count, self._survey.sequence
        self._count += 1
        if position >= len(known) or known[position] != id(module):
            self._survey, self.within = CleanCalls(), False  # the step took another way
        elif not self.within and position in self._survey.clean:
            self.within, self._depth = True, self._own_depth()
            self._begin = last_node_number() + 1

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        super()._leave(module, args, output)
        if (
            self.within
            and threading.get_ident() == self._thread
            and self._own_depth() <= self._depth
        ):
            self.within = False
            if (last := last_node_number()) >= self._begin:
                self._firsts.append(self._begin)
                self._lasts.append(last)
                self.ended = last

    def _own_depth(self) -> int:
        return len(self._stacks.get(self._thread, ()))
