"""Re-runs one iteration of a loop that creates its own data, and verifies that it is the same.

The body is called as in `loop_body.py`, but with the counters, generators and random numbers with
which the iteration began, and only up to the optimizer's step. It must compute the same values as
the loop did. Otherwise something has changed that cannot be restored, and the re-run proves
nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from copy import copy
from itertools import repeat
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from headway.explain.failing_step import Outcome
from headway.rerun.protocol import CAN, LATER, NOT_APPLICABLE, Readiness, Rerun, RerunMoment
from headway.rerun.strategies.iteration_state import IterationState, find_input_tensors
from headway.rerun.strategies.lifted_body import LiftedBody, read_variables
from headway.rerun.strategies.loop_follower import frame_at, frame_of
from headway.rerun.strategies.loop_source import LoopSource
from headway.torch_adapters.loaders.observed_loaders import redeliver_batches
from headway.torch_adapters.modes import no_dispatch_modes
from headway.torch_adapters.patching import call_after
from headway.torch_adapters.runtime_state import compiled_code_runs

MAX_ITERATIONS = 256
"""Iterations that one step may take, under gradient accumulation."""
RELATIVE_TOLERANCE = 1e-4
"""How much two runs of the same ops may differ, because kernels add in any order."""


class NotRepeatable(ValueError):
    """The iteration cannot be run again; the message says why."""


class _StepDone(BaseException):
    """The optimizer has stepped. Not an Exception, so the body's own handlers do not catch it."""


class _IterationEnd(NamedTuple):
    """How an iteration ended that was run again."""

    state: IterationState
    different: str | None
    """The first variable with a different value."""


class SelfFedLoopRerun(Rerun):
    """Calls the body of a loop that creates its own data, from where the failed iteration began."""

    needs_proof = True

    def prepare(self) -> Readiness:
        case = self._case
        bad, moment = case.bad_step, case.moment
        if bad.iteration is None:
            return NOT_APPLICABLE
        by_hand = bad.iteration.begin.moving.by_hand
        if bad.batches and not by_hand and moment is not RerunMoment.AFTER_STEP:
            return NOT_APPLICABLE
        if moment in (RerunMoment.STEP_COMPLETE, RerunMoment.NEXT_BATCH):
            return LATER  # at the loop's next step its frame is known
        begin, end = copy(bad.iteration.begin), bad.iteration.end  # it may be corrected
        frame = frame_of(bad.iteration.loop, case.frame)
        gone = bad.iteration.loop.part and moment is not RerunMoment.AFTER_STEP
        if end is None or frame is None or gone:
            return Readiness(why_not="its loop has moved on")
        try:
            self._lift_body(bad.iteration.loop, begin, end, frame)
        except NotRepeatable as error:
            return Readiness(why_not=str(error))
        except (SyntaxError, ValueError):  # legal in its place, not in a function
            return Readiness(why_not="its body cannot run outside of its function")
        # Only the batches that this loop drew itself are those of the step.
        bad.batches = bad.batches if by_hand else ()
        bad.before = begin.rng
        self._save()
        return CAN

    def _lift_body(
        self, loop: LoopSource, begin: IterationState, end: IterationState, frame: FrameType
    ) -> None:
        if begin.moving.iterator:
            raise NotRepeatable(f"its loop consumes an iterator (`{begin.moving.iterator}`)")
        self._loop, self._begin, self._end, self._frame = loop, begin, end, frame
        # After the next step has begun, the loop's variables are those of the next iteration.
        late = self._case.moment is RerunMoment.NEXT_STEP
        self._computed = {} if late else read_variables(frame, loop.early)
        self._body = LiftedBody(frame, loop.node, self._carried())
        self._values = self._loop_values(self._body.arguments, late=late)
        self._ended: _IterationEnd | None = None
        self._raised = False
        self._corrected = False

    def _save(self) -> None:
        now = IterationState(self._loop, self._frame, self._begin.moving)
        models = self._case.host.models
        objects = self._body.save_reachable(models, tensors=compiled_code_runs())

        def undo() -> None:
            objects()
            now.restore()

        self._undo = undo

    def run(self, batches: Sequence[Any]) -> tuple[()]:
        self._begin.restore()
        self._ended = None
        hook = register_optimizer_step_post_hook(self._stepped)
        by_hand = self._begin.moving.by_hand
        try:
            with ExitStack() as around:
                if by_hand:
                    around.enter_context(redeliver_batches(batches))
                if self._case.bad_step.by_scaler:  # the optimizer does not step
                    around.enter_context(call_after(GradScaler, "step", self._stepped))
                around.enter_context(suppress(_StepDone))
                self._body(self._values)
        finally:
            hook.remove()
        return ()

    def _stepped(self, stepped: Optimizer | GradScaler, args: Any, more: Any) -> None:
        frame = frame_at(self._body.code, self._loop.line)
        if frame is not None:
            with no_dispatch_modes():  # what is only read need not be traced
                state = IterationState(self._loop, frame, self._begin.moving)
                different = self._find_difference(read_variables(frame, self._loop.early))
            self._ended = _IterationEnd(state, different)
            raise _StepDone

    def _find_difference(self, computed: dict[str, Any]) -> str | None:
        # If another optimizer has stepped in this iteration, what depends on weights may differ.
        weights_changed = bool(self._case.bad_step.inexact)
        for name in self._loop.in_order(self._computed):
            value = self._computed[name]
            skip = weights_changed and isinstance(value, Tensor) and value.requires_grad
            if not skip and _differ(value, computed.get(name)):
                return name
        return None

    def proof(self, outcome: Outcome) -> str:
        ended = self._ended
        self._raised = outcome.error is not None
        if self._raised:
            return f"run again, it raised {outcome.error}"
        if not outcome.complete:
            return "run again, it computed no gradients"
        if ended is None:
            return "run again, it did not reach the optimizer's step"
        if ended.different is not None:
            return (
                f"run again, it computed a different `{ended.different}`: something that it reads "
                "has changed and cannot be restored"
            )
        if not ended.state.rng.follows(self._begin.rng, self._end.rng):
            return (
                "random numbers were drawn between the previous step and this iteration, so its "
                "own are not known"
            )
        if outcome.cured(self._case.bad_step.limit):
            return (
                "run again, it succeeds: something that it reads has changed, or the failure was "
                "transient"
            )
        return ""

    @property
    def frame_to_try(self) -> FrameType | None:
        # A loop over the stages of a step: its iteration is one of them.
        at_step = self._case.moment is RerunMoment.AFTER_STEP
        return self._case.frame if self._raised and at_step else None

    def correct_start(self) -> bool:
        if self._corrected:
            return False
        self._corrected = True
        reached = None if self._ended is None else self._ended.state
        return self._begin.take_later(reached, self._end)

    def inputs(self) -> dict[str, Tensor]:
        return find_input_tensors(self._loop, self._frame)

    def bad_inputs(self) -> dict[str, Tensor]:
        for name in self._loop.in_order(self._computed):
            value = self._computed[name]
            if isinstance(value, Tensor) and not value.requires_grad and _nonfinite(value):
                return {name: value}
        return {}

    def _carried(self) -> dict[str, Any]:
        """Variables from the iteration before, with their values when this one began."""
        loop, known = self._loop, {}
        if loop.part:
            return self._rebound()
        for name in loop.carried:
            # What is bound after the step still has the value from the beginning.
            values = self._begin.values if name in loop.early else self._end.values
            if name in values:
                known[name] = values[name]
        return known

    def _rebound(self) -> dict[str, Any]:
        """Variables that a part reads and then binds: only a second run shows whether that makes a
        difference, and NaN is never different."""
        values = read_variables(self._frame, self._loop.carried)
        for name, value in values.items():
            if isinstance(value, Tensor) and (value.requires_grad or _nonfinite(value)):
                raise NotRepeatable(
                    f"it assigned `{name}` again, and its earlier value is not known"
                )
        return values

    def _loop_values(self, arguments: dict[str, Any], *, late: bool) -> Any:
        """Values of the loop variable in each iteration of the step."""
        node = self._loop.node
        if isinstance(node, ast.While):
            return (None,) if self._loop.part else repeat(None, MAX_ITERATIONS)
        if isinstance(node.target, ast.Name):
            several = self._counted(node, node.target.id)
            if several is not None:
                return several
        values = self._end.values if late else {**arguments, **self._end.values}
        try:
            return (_bound(node.target, values),)
        except KeyError as error:
            raise NotRepeatable("the value of its loop variable was not kept") from error

    def _counted(self, node: ast.For, name: str) -> range | None:
        """In `for name in range(…)`, the numbers since the step before."""
        first, last = self._begin.values.get(name), self._end.values.get(name)
        stride = _stride(node.iter, self._frame)
        if stride is None or type(first) is not int or type(last) is not int:
            return None
        count, rest = divmod(last - first, stride)
        if rest or not 1 < count <= MAX_ITERATIONS:
            return None
        return range(first + stride, last + stride, stride)


def _bound(target: ast.expr, values: dict[str, Any]) -> Any:
    if isinstance(target, ast.Name):
        return values[target.id]
    assert isinstance(target, (ast.Tuple, ast.List))
    return tuple(_bound(item, values) for item in target.elts)


def _stride(iterated: ast.expr, frame: FrameType) -> int | None:
    """The step of a `range`; None for anything else, or if it is not known."""
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


def _nonfinite(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not bool(tensor.isfinite().all())


def _differ(one: Any, other: Any) -> bool:
    """Whether two results of the same line have different values."""
    if not isinstance(one, Tensor) or one is other:
        return False
    if not isinstance(other, Tensor) or (one.shape, one.dtype) != (other.shape, other.dtype):
        return True
    with torch.no_grad(), suppress(RuntimeError, NotImplementedError):  # an unusual layout
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
