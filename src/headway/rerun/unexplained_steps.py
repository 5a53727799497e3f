"""Bad steps that could not be run again, and the trace that explains them."""

from __future__ import annotations

from types import FrameType

from headway.policy import Policy
from headway.rerun.bad_step import MissedStep, RerunResults
from headway.rerun.protocol import RerunHost
from headway.rerun.step_tracer import StepTracer


class UnexplainedSteps:
    """Bad steps that are not run again: a trace explains them, their own or that of a later one."""

    def __init__(self, host: RerunHost, policy: Policy, results: RerunResults) -> None:
        self._host = host
        self._wanted = policy.replay and policy.replays > 0
        self._results = results
        self.tracer = StepTracer()
        self.first: MissedStep | None = None
        """The first one that no trace has explained yet."""

    def use_trace(self, missed: MissedStep, pending: bool, frame: FrameType | None) -> None:
        """A step was bad; `pending`: it is run again first, if it can be. Every rank calls this,
        from this frame."""
        traced = self.tracer.collect(self._host, missed.step, None if pending else frame)
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

    def _trace_on(self, missed: MissedStep) -> None:
        """The steps that follow may show its line."""
        self.first = self.first or missed
        meets = self._host.agreement.can_meet  # a trace is exchanged between the ranks
        if not (self._wanted and meets and self.tracer.arm(self._host)):
            self.report()
