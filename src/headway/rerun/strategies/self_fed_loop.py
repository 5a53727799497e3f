"""Runs one iteration of a loop again, and proves that it is the same iteration.

The body is called from its source, as `loop_body.py` does it, but with the counters, generators and
random numbers that the turn began with; behind the optimizer's step it is left. What it made along
the way must be what the loop has made: else something has moved on that cannot be put back, and
nothing may be concluded from the turn.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from itertools import repeat
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from headway.explain.failing_step import Outcome
from headway.rerun.protocol import CAN, LATER, NOT_APPLICABLE, Readiness, Rerun, RerunMoment
from headway.rerun.strategies import loop_body, loop_source
from headway.rerun.strategies.iteration_state import (
    IterationState,
    find_input_tensors,
    read_variables,
)
from headway.rerun.strategies.loop_source import LoopSource
from headway.torch_adapters.dataloader import redeliver_batches
from headway.torch_adapters.modes import no_dispatch_modes
from headway.torch_adapters.rng import RngState
from headway.torch_adapters.runtime_state import compiled_code_runs
from headway.torch_adapters.saved_state import ObjectSnapshot

MAX_ITERATIONS = 256
"""Turns that one step may take, under accumulation."""
RELATIVE_TOLERANCE = 1e-4
"""How far apart two runs of the same ops may be, where kernels add up in any order."""


class NotRepeatable(ValueError):
    """The turn cannot be run again, and why."""


class _StepDone(BaseException):
    """The optimizer has stepped. No Exception: the body's own `except Exception` is not meant."""


class SelfFedLoopRerun(Rerun):
    """Calls the body of a loop that makes its own data, as the failed iteration began."""

    needs_proof = True

    def prepare(self) -> Readiness:
        case = self._case
        bad, moment = case.bad_step, case.moment
        if bad.iteration is None or (bad.batches and moment is not RerunMoment.AFTER_STEP):
            return NOT_APPLICABLE
        if moment in (RerunMoment.STEP_COMPLETE, RerunMoment.NEXT_BATCH):
            return LATER  # the loop comes to its next step, and the frame is known there
        begin, end = bad.iteration.begin, bad.iteration.end
        frame = loop_source.frame_of(bad.iteration.loop, case.frame)
        if end is None or frame is None:
            return Readiness(why_not="its loop has moved on")
        try:
            self._lift_body(bad.iteration.loop, begin, end, frame)
        except NotRepeatable as error:
            return Readiness(why_not=str(error))
        except (SyntaxError, ValueError):  # legal in its place, not in a function
            return Readiness(why_not="its body cannot run outside of its function")
        # No batch leads back to this loop, but for those that it drew itself.
        bad.batches = bad.batches if begin.moving.by_hand else ()
        bad.before = begin.moment
        self._save()
        return CAN

    def _lift_body(
        self, loop: LoopSource, begin: IterationState, end: IterationState, frame: FrameType
    ) -> None:
        """Compile the iteration into a function of its variables. Raises NotRepeatable."""
        if begin.moving.iterator:
            raise NotRepeatable(
                f"it draws from `{begin.moving.iterator}`, and what an iterator has given is gone"
            )
        self._loop = loop
        self._begin = begin
        self._end = end
        self._frame = frame
        # After the next step has begun, the loop's variables are those of the next iteration.
        late = self._case.moment is RerunMoment.NEXT_STEP
        self._made = {} if late else read_variables(frame, loop.early)
        at_module_level = frame.f_locals is frame.f_globals
        wanted = frozenset(loop.bound if at_module_level else loop_body.used_names([loop.node]))
        arguments = {**read_variables(frame, wanted), **self._carried()}
        self._values = self._turns(arguments, frame, late=late)
        self._arguments = {name: value for name, value in arguments.items() if name in wanted}
        self._function = loop_body.compile_body(frame, loop.node, list(self._arguments))
        self._seen: _IterationEnd | None = None

    def _save(self) -> None:
        names = frozenset(loop_body.used_names(self._loop.node.body))
        reached = {**self._frame.f_globals, **read_variables(self._frame, names)}
        reachable = [
            reached[name]
            for name in sorted(names & reached.keys())
            if not loop_body.is_headway_object(reached[name])
        ]
        now = IterationState(self._loop, self._frame, self._begin.moving)
        trained, tensors = self._case.host.models, compiled_code_runs()
        objects = ObjectSnapshot(reachable, trained, tensors=tensors)

        def undo() -> None:
            objects()
            now.restore()

        self._undo = undo

    def run(self, batches: Sequence[Any]) -> tuple[()]:
        """Run the iteration up to its optimizer's step."""
        self._begin.restore()
        self._seen = None
        hook = register_optimizer_step_post_hook(self._stepped)
        by_hand = self._begin.moving.by_hand
        try:
            with redeliver_batches(batches) if by_hand else nullcontext(), suppress(_StepDone):
                self._function(self._values, **self._arguments)
        finally:
            hook.remove()
        return ()

    def inputs(self) -> dict[str, Tensor]:
        return find_input_tensors(self._loop, self._frame)

    def bad_inputs(self) -> dict[str, Tensor]:
        for name in self._loop.in_order(self._made):
            value = self._made[name]
            if isinstance(value, Tensor) and not value.requires_grad and _bad(value):
                return {name: value}
        return {}

    def proof(self, outcome: Outcome) -> str:
        if outcome.error is not None:
            return f"run again, it raised {outcome.error}"
        seen, self._seen = self._seen, None
        if not outcome.complete:
            return "run again, it made no gradients"
        if seen is None:
            return "run again, it did not come to the optimizer's step"
        if seen.another is not None:
            return (
                f"run again, it made another `{seen.another}`: something that it reads has moved "
                "on and cannot be set back"
            )
        if not seen.moment.follows(self._begin.moment, self._end.moment):
            return (
                "random numbers were drawn between the step before it and its own beginning, so "
                "its own are not known"
            )
        if outcome.cured(self._case.bad_step.limit):
            return (
                "run again, it went well: something that it reads has moved on, or it was transient"
            )
        return ""

    def _carried(self) -> dict[str, Any]:
        """Variables whose value comes from the turn before, as they were when this one began."""
        loop, known = self._loop, {}
        for name in loop.carried:
            # What is bound behind the step still is what it was in the beginning.
            values = self._begin.values if name in loop.early else self._end.values
            if name in values:
                known[name] = values[name]
        return known

    def _turns(self, arguments: dict[str, Any], frame: FrameType, *, late: bool) -> Any:
        """What the loop has bound at each turn of the step."""
        node = self._loop.node
        if isinstance(node, ast.While):
            return repeat(None, MAX_ITERATIONS)
        if isinstance(node.target, ast.Name):
            several = self._counted(node, node.target.id, frame)
            if several is not None:
                return several
        values = self._end.values if late else {**arguments, **self._end.values}
        try:
            return (_bound(node.target, values),)
        except KeyError as error:
            raise NotRepeatable("what its loop had drawn for it is gone") from error

    def _counted(self, node: ast.For, name: str, frame: FrameType) -> range | None:
        """Of `for name in range(…)`, the numbers since the step before."""
        first, last = self._begin.values.get(name), self._end.values.get(name)
        stride = _stride(node.iter, frame)
        if stride is None or type(first) is not int or type(last) is not int:
            return None
        count, rest = divmod(last - first, stride)
        if rest or not 1 < count <= MAX_ITERATIONS:
            return None
        return range(first + stride, last + stride, stride)

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        frame = loop_source.frame_at(self._function.__code__, self._loop.line)
        # Another optimizer has stepped in this iteration: what depends on weights may differ.
        weights_moved = bool(self._case.bad_step.inexact)
        if frame is not None:
            made = read_variables(frame, self._loop.early)
            with no_dispatch_modes():  # nobody needs to see what is only read
                another = next(
                    (
                        name
                        for name in self._loop.in_order(self._made)
                        if not (weights_moved and _comes_of_weights(self._made[name]))
                        and _differ(self._made[name], made.get(name))
                    ),
                    None,
                )
            self._seen = _IterationEnd(RngState(), another)
            raise _StepDone


class _IterationEnd(NamedTuple):
    """How a turn ended that was run again."""

    moment: RngState
    another: str | None
    """The first variable that holds something else than it did."""


def _bound(target: ast.expr, values: dict[str, Any]) -> Any:
    if isinstance(target, ast.Name):
        return values[target.id]
    assert isinstance(target, (ast.Tuple, ast.List))
    return tuple(_bound(item, values) for item in target.elts)


def _stride(iterated: ast.expr, frame: FrameType) -> int | None:
    """By how much a `range` counts; None where it is something else, or cannot be told."""
    if not isinstance(iterated, ast.Call) or not isinstance(iterated.func, ast.Name):
        return None
    if iterated.func.id not in ("range", "trange") or iterated.keywords:
        return None
    if len(iterated.args) < 3:
        return 1
    third = iterated.args[2]
    if isinstance(third, ast.Name):
        stride = read_variables(frame, frozenset((third.id,))).get(third.id)
        stride = frame.f_globals.get(third.id) if stride is None else stride
        return stride if type(stride) is int and stride else None
    with suppress(ValueError):
        literal = ast.literal_eval(third)
        return literal if type(literal) is int and literal else None
    return None


def _bad(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not bool(tensor.isfinite().all())


def _comes_of_weights(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _differ(one: Any, other: Any) -> bool:
    """Whether two results of the same line are not the same numbers."""
    if not isinstance(one, Tensor) or one is other:
        return False
    if not isinstance(other, Tensor) or (one.shape, one.dtype) != (other.shape, other.dtype):
        return True
    with torch.no_grad(), suppress(RuntimeError, NotImplementedError):  # of an odd layout
        one, other = one.detach(), other.detach()
        if torch.equal(one, other):
            return False
        if not one.is_floating_point():
            return True
        if not torch.equal(one.isfinite(), other.isfinite()):
            return True
        return not torch.allclose(
            one.nan_to_num().double(),
            other.nan_to_num().double(),
            rtol=RELATIVE_TOLERANCE,
            atol=RELATIVE_TOLERANCE,
        )
    return False
