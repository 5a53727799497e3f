"""Bad steps that could not be run again, and what explains them: their trace, that of a later step,
the user's code between two steps, or a batch that the loop skipped.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.explain.explanation import Origin, Trial
from headway.output.notices import logger
from headway.policy import Policy
from headway.rerun.bad_step import BadStep, MissedStep, StepContext
from headway.rerun.child_origin import find_in_child, try_in_child
from headway.rerun.protocol import ProtectedCalls, RerunHost, trained_parameters
from headway.rerun.rerun_results import OTHER_RANK_SECONDS, RerunResults
from headway.rerun.step_tracer import StepOrigins, StepTracer
from headway.rerun.strategies.lifted_body import LiftedBody, read_variables
from headway.rerun.strategies.loop_follower import LoopFollower
from headway.rerun.strategies.loop_source import RestOfFrame, find_rest
from headway.rerun.unused_batches import UnusedBatches
from headway.torch_adapters.optimizer_adapter import own_step_hooks
from headway.torch_adapters.tensor_values import count_nonfinite

if TYPE_CHECKING:
    from headway.explain.lasting_trace import LastingTrace
    from headway.rerun.strategies.iteration_state import IterationState
    from headway.rerun.strategies.loop_follower import LoopIteration

# The user's own code between two steps may make weights bad: a projection, a clipping, an average
# that is copied back. They are bad when a step begins, though the update before it was good. So the
# rest of the loop's body after its step is run again from good weights, in a child process, with
# every op traced. If it makes the same weights bad, the op that did it is the origin.

BadWeights = Mapping[str, tuple[int, int]]
"""NaN and infinite elements of each weight that has some."""
_Rest = list[Callable[[], None]]
"""Code that runs after a step, in parts."""


class BadWeightExplainer:
    """Explains weights that were bad when a step began."""

    def __init__(self, host: RerunHost) -> None:
        self._host = host
        self._bad: BadWeights = {}

    def weights_are_bad(self) -> None:
        """Of the step that is ending."""
        self._bad = find_bad_weights(self._host)

    def explain(
        self,
        missed: MissedStep,
        frame: FrameType | None,
        iteration: LoopIteration | None,
        results: RerunResults,
        trace: LastingTrace | None,
    ) -> None:
        """The step is over; `frame` is in its loop. `trace`: of the code since the last step."""
        bad, self._bad = self._bad, {}
        if not bad:
            return
        began = time.perf_counter()
        made, trials = explain_bad_weights(self._host, missed.step, bad, frame, iteration, trace)
        self._host.exclude_time(time.perf_counter() - began)
        if made is not None:
            traced = StepOrigins((made,), bad_loss=True, trials=trials)
            results.report_traced(missed, traced, missed.step)


def find_bad_weights(host: RerunHost) -> BadWeights:
    """Waits for the device: only for steps known to be bad."""
    names = host.parameter_names()
    counted = {names.get(id(p), "?"): count_nonfinite(p.detach()) for p in trained_parameters(host)}
    return {name: counts for name, counts in counted.items() if any(counts)}


def explain_bad_weights(
    host: RerunHost,
    step: int,
    bad: BadWeights,
    frame: FrameType | None,
    iteration: LoopIteration | None,
    trace: LastingTrace | None,
) -> tuple[Origin | None, Sequence[Trial]]:
    """The op between the last step and this one that made weights bad, and its remedy as it was
    tried; None: it is not known."""
    # A child cannot use a GPU, and memory that processes share is not its own.
    own = all(p.device.type == "cpu" and not p.is_shared() for p in trained_parameters(host))
    if not bad or not own or host.agreement.count > 1:
        return None, ()
    begin = None if iteration is None else iteration.begin

    @contextmanager
    def good_weights() -> Iterator[bool]:
        """In the child: whether the weights are good, as they were before the code ran."""
        older = None if not find_bad_weights(host) else host.older_weights(step)
        if begin is not None:
            begin.restore()
        with nullcontext() if older is None else older():
            if older is None and trace is not None:
                _take_back(trace)
            yield not find_bad_weights(host)

    def find(rest: _Rest) -> Origin | None:
        with good_weights() as good:
            return _trace(host, rest, bad) if good else None

    def is_cured(rest: _Rest) -> bool:
        with good_weights() as good:
            _run(rest)
            return good and not find_bad_weights(host)

    for rest in _possible_rests(host, frame, {} if begin is None else begin.values):
        made = find_in_child(partial(find, rest))
        if made is not None:
            return made, try_in_child(made, partial(is_cured, rest))
    return None, ()


def _possible_rests(
    host: RerunHost, frame: FrameType | None, known: Mapping[str, Any]
) -> Iterator[_Rest]:
    """What may have run between the last step and this one. `known`: variables as they were.

    The rest of the loop's body, as it is now and with the counters of the iteration before; and
    what follows the loop, if it is called again and again.
    """
    hooks: _Rest = [
        partial(hook, item, (), {}) for item in host.optimizers for hook in own_step_hooks(item)
    ]
    rest = find_rest(frame)
    after = find_rest(frame, after_loop=True)
    for parts, back in ((rest, False), (rest, True), (after, False)):
        bodies = list(hooks)
        changes = [_count_back(part) if back else {} for part in parts]
        if (back and not any(changes)) or (parts is after and not after):
            continue
        with suppress(SyntaxError, ValueError):  # legal in its place, not in a function
            for part, changed in zip(parts, changes, strict=True):
                body = LiftedBody(part.frame, part.node, {**known, **changed})
                bodies.append(partial(body, (None,)))
            if bodies:
                yield bodies


def _count_back(part: RestOfFrame) -> dict[str, Any]:
    """The counters of a loop in its iteration before."""
    values = read_variables(part.frame, part.counters)
    return {name: value - 1 for name, value in values.items() if type(value) is int}


def _elements(bad: BadWeights) -> dict[str, int]:
    return {name: sum(counts) for name, counts in bad.items()}


@torch.no_grad()
def _take_back(trace: LastingTrace) -> None:
    """Write the values back that weights had before an op made them bad."""
    for tensor, before in trace.made_bad.values():
        tensor.copy_(tensor.nan_to_num(0.0, 0.0, 0.0) if before is None else before)


def _run(rest: Sequence[Callable[[], None]]) -> None:
    with suppress(Exception):  # variables of a later iteration may not fit
        for part in rest:
            part()


def _trace(host: RerunHost, rest: Sequence[Callable[[], None]], bad: BadWeights) -> Origin | None:
    """In the child: the origin; None if other weights become bad, or none."""
    lasting_trace = importlib.import_module("headway.explain.lasting_trace")
    failing_step = importlib.import_module("headway.explain.failing_step")
    locate = importlib.import_module("headway.explain.locate")
    names = host.parameter_names()
    step = failing_step.FailingStep(host.models, host.optimizers, (), names)
    trace = lasting_trace.LastingTrace(
        lambda: lasting_trace.StepFacts(step, ()), lambda: (), lambda: None
    )
    with trace:
        _run(rest)
        trace.paused = True
        # Infinities may have become NaN since, where the code ran again.
        if _elements(find_bad_weights(host)) != _elements(bad):
            return None
        named: dict[str, Tensor] = {names.get(id(p), "?"): p for p in trained_parameters(host)}
        trace.look_at({name: named[name].detach() for name in bad})
        origins = locate.find_origins(trace, step)
    if not origins:
        return None
    made: Origin = replace(origins[0], through="weight", through_name=next(iter(bad)))
    return made


WEIGHTS_MOVED = (
    "other weights of the model were updated within the same step, so it could not be run again "
    "exactly"
)
TRACING = "tracing steps"
MAX_IN_CHILD = 5
"""Bad steps whose code runs once more in a child process."""


class UnexplainedSteps:
    """Bad steps that are not run again: a trace explains them, their own or that of a later one."""

    def __init__(self, host: RerunHost, policy: Policy, results: RerunResults) -> None:
        self._host = host
        self._wanted = policy.replay and policy.replays > 0
        self._results = results
        self.tracer = StepTracer()
        self.between_steps = BadWeightExplainer(host)
        self.unused_batches = UnusedBatches()
        self.missed: MissedStep | None = None
        """The last bad step, if it has not been run again."""
        self.first: MissedStep | None = None
        """The first one that no trace has explained yet."""
        self._left_in_child = MAX_IN_CHILD

    def weights_are_bad(self, context: StepContext, *, lost: bool) -> None:
        """The step that is ending began with bad weights; `lost`: and training stops with them."""
        self.missed = MissedStep(context.step, context.parameters, lost=lost)
        self.between_steps.weights_are_bad()

    def step_complete(
        self,
        frame: FrameType | None,
        loop: LoopFollower,
        protected: ProtectedCalls,
        *,
        pending: bool,
    ) -> None:
        """`optimizer.step()` is over: explain a bad step from its trace, or trace the next ones.

        `pending`: a bad step waits to be run again.
        """
        if self._wanted and self.unused_batches.unseen:
            protected.spare(TRACING, self._explain_unused, frame)
        if self.missed is None and self.tracer.idle and self.first is None:
            self.tracer.step_over(self._host)
            return  # as after almost every step
        missed, self.missed = self.missed, None
        if missed is not None:
            if not pending:
                missed = replace(missed, why=missed.why or loop.obstacle)
            known = len(self._results.found)
            with self.tracer.set_aside():
                explain, trace = self.between_steps.explain, self.tracer.trace
                given = (missed, frame, loop.present, self._results, trace)
                protected.spare(TRACING, explain, *given)
            missed = missed if len(self._results.found) == known else None
        protected.spare(TRACING, self.tracer.step_over, self._host)
        if missed is not None:
            begin = None if loop.present is None else loop.present.begin
            protected.spare(TRACING, self.use_trace, missed, pending, frame, begin)
            return
        attempt = partial(self.unused_batches.attempt, self._host, frame)
        protected.spare(TRACING, self.tracer.record_unused, self._host, attempt)
        if self.first is not None and self._results.explained_elsewhere(self.first):
            self.first = None
        if not self.tracer.running:
            protected(self.report)

    def _explain_unused(self, frame: FrameType | None) -> None:
        """The loop has skipped batches: one of them may have made buffers bad."""
        unseen, self.unused_batches.unseen = self.unused_batches.unseen, False
        if unseen and self._left_in_child > 0 and not self.tracer.running:
            with self.tracer.set_aside():
                asked = self.unused_batches.explain_skipped(self._host, frame)
            self._left_in_child -= asked

    def use_trace(
        self,
        missed: MissedStep,
        pending: bool,
        frame: FrameType | None,
        begin: IterationState | None = None,
    ) -> None:
        """A step was bad; `pending`: it is run again first, if it can be. Every rank calls this,
        from this frame."""
        traced = self.tracer.collect(self._host, missed.step, None if pending else frame, begin)
        # One process alone runs its steps again itself, and proves that they are the same.
        if traced is None and not pending and self._host.agreement.count > 1:
            traced = self._explain_in_child(missed, frame, begin)
        if pending:
            if traced is not None:
                self._results.traced[missed.step] = traced
        elif traced is not None:
            first, self.first = self.first or missed, None
            self._results.report_traced(first, traced, missed.step)
        elif not missed.lost:
            self._trace_on(missed)

    def _explain_in_child(
        self, missed: MissedStep, frame: FrameType | None, begin: IterationState | None
    ) -> StepOrigins | None:
        """The origin of a step that was not traced, if its code can run once more in a child; with
        several ranks, that of the failing one."""
        host = self._host
        if not self._wanted or self._left_in_child <= 0 or not host.agreement.can_meet:
            return None
        if missed.step != host.step:  # a device's verdict comes late: the variables have changed
            return None
        self._left_in_child -= 1
        began = time.perf_counter()
        in_child = importlib.import_module("headway.rerun.step_in_child")
        own: StepOrigins | None = None
        with self.tracer.set_aside():
            try:
                own = in_child.explain_step(host, frame, begin)
            except Exception:  # ours: the other ranks wait for an answer
                logger.debug("a step cannot be explained in a child process", exc_info=True)
        host.exclude_time(time.perf_counter() - began)
        found = list(enumerate(host.agreement.gather(own)))
        known = [(rank, one) for rank, one in found if one is not None]
        if not known:
            return None
        rank, one = known[0]
        return one if len(found) == 1 else one._replace(rank=rank)

    def add(
        self, bad: BadStep, why: str, frame: FrameType | None = None, *, recorded: bool = False
    ) -> None:
        """A step could not be run again; `recorded`: though its batches are known; `frame`: that of
        the step, if other code around it may be run."""
        missed = MissedStep(bad.step, bad.parameters, why, recorded=recorded)
        traced = self._results.traced.get(missed.step)
        if frame is not None and self._host.agreement.count == 1:
            begin = None if bad.iteration is None else bad.iteration.begin
            if traced is not None:
                traced = self.tracer.with_trials(self._host, frame, begin, traced)
            else:
                traced = self._explain_in_child(missed, frame, begin)
        if traced is not None:
            self._results.traced[missed.step] = traced
            self._results.report_missed(missed)
        else:
            self._trace_on(missed)

    def report(self) -> None:
        """No later step has explained it."""
        first, self.first = self.first, None
        if first is None or not self._results.explained_elsewhere(first):
            self._results.report_missed(first)

    def close(self, protected: ProtectedCalls) -> None:
        """No step follows."""
        if not self.tracer.shared:
            self.tracer.stop()
        for step in list(self._results.traced):  # those that were to be run again
            protected(self._results.report_missed, MissedStep(step))
        protected(self.report)

    def _trace_on(self, missed: MissedStep) -> None:
        """The steps that follow may show its line."""
        if self._results.explained_elsewhere(missed, OTHER_RANK_SECONDS):
            return
        self.first = self.first or missed
        meets = self._host.agreement.can_meet  # a trace is exchanged between the ranks
        if not (self._wanted and meets and self.tracer.arm(self._host)):
            self.report()
