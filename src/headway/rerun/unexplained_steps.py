"""Bad steps that could not be run again, and the trace that explains them."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType

from headway.policy import Policy
from headway.rerun.bad_step import MissedStep, RerunResults, StepContext
from headway.rerun.between_steps import BetweenSteps
from headway.rerun.protocol import ProtectedCalls, RerunHost
from headway.rerun.recorded_batch import BatchOrigin, RecordedBatch
from headway.rerun.step_tracer import StepTracer, record_origins
from headway.rerun.strategies.loop_follower import LoopFollower
from headway.torch_adapters.loaders.batch_fetching import BatchRecipe

TRACING = "tracing steps"
MAX_KEPT = 32
MAX_FETCHED = 8
"""Maximum number of batches that are fetched again."""


class UnexplainedSteps:
    """Bad steps that are not run again: a trace explains them, their own or that of a later one."""

    def __init__(self, host: RerunHost, policy: Policy, results: RerunResults) -> None:
        self._host = host
        self._wanted = policy.replay and policy.replays > 0
        self._results = results
        self.tracer = StepTracer()
        self.between_steps = BetweenSteps(host)
        self.unused_batches = UnusedBatches()
        self.missed: MissedStep | None = None
        """The last bad step, if it has not been run again."""
        self.first: MissedStep | None = None
        """The first one that no trace has explained yet."""

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
            protected.spare(TRACING, self.use_trace, missed, pending)
            return
        protected.spare(TRACING, self.tracer.record_unused, self._host)
        if not self.tracer.running:
            protected(self.report)

    def use_trace(self, missed: MissedStep, pending: bool) -> None:
        """A step was bad; `pending`: it is run again first, if it can be. Every rank calls this."""
        traced = self.tracer.collect(self._host, missed.step)
        if pending:
            if traced is not None:
                self._results.traced[missed.step] = traced
        elif traced is not None:
            first, self.first = self.first or missed, None
            self._results.report_traced(first, traced, missed.step)
        elif not missed.lost:
            self._trace_on(missed)

    def add(self, missed: MissedStep) -> None:
        """A step could not be run again."""
        if missed.step in self._results.traced:
            self._results.report_missed(missed)
        else:
            self._trace_on(missed)

    def report(self) -> None:
        """No later step has explained it."""
        first, self.first = self.first, None
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
        self.first = self.first or missed
        meets = self._host.agreement.can_meet  # a trace is exchanged between the ranks
        if not (self._wanted and meets and self.tracer.arm(self._host)):
            self.report()


class UnusedBatches:
    """The origins of batches that were drawn and led to no update, since buffers were last known to
    be finite: a loop may skip a batch whose loss is bad, but its forward pass has changed the
    statistics of batch normalisation.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[BatchOrigin, BatchRecipe]] = deque(maxlen=MAX_KEPT)

    def add(self, batches: Sequence[RecordedBatch]) -> None:
        for origin in (kept.origin for kept in batches):
            if origin is not None and origin.loader is not None:
                recipe = BatchRecipe.of(origin.loader())
                if recipe is not None:
                    self._kept.append((origin, recipe))

    def clear(self) -> None:
        self._kept.clear()

    def explain(self, host: RerunHost, step: int) -> None:
        """Buffers are bad: record the line that made a bad batch, of the loader that trains."""
        latest = None if host.latest is None else host.latest.origin
        kept, self._kept = self._kept, deque(maxlen=MAX_KEPT)
        # References to one loader are one object, also when it is gone.
        alike = [one for one in kept if latest is not None and one[0].loader is latest.loader]
        for origin, recipe in alike[:MAX_FETCHED]:
            data_again = importlib.import_module("headway.rerun.data_again")
            made, trials = data_again.explain_bad_sample(recipe, origin.indices)
            if made is not None:
                record_origins(host, step, (made,), trials)
                return
