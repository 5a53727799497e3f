"""Decides which bad steps are run again, by which strategy, and runs them.

At every step the controller keeps the state of the random number generators and references to the
batches. The rest exists anyway: the update of a bad step was skipped, and buffers have copies.
"""

from __future__ import annotations

import importlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from headway.errors import RankLost
from headway.explain.failing_step import StepPass
from headway.output.notices import Notices, logger
from headway.policy import Policy, StepVerdict
from headway.rerun.bad_step import BadStep, MissedStep
from headway.rerun.protocol import ProtectedCalls, Rerun, RerunCase, RerunHost, RerunMoment
from headway.rerun.recorded_batch import RecordedBatch
from headway.rerun.rerun_group import StepAborted
from headway.rerun.rerun_results import PlanResult, RerunResults
from headway.rerun.sandbox import RerunSandbox
from headway.rerun.sandbox_state import STATEFUL_CLASSES
from headway.rerun.step_tracer import StepTracer
from headway.rerun.strategies.loop_body import LoopBodyRerun
from headway.rerun.strategies.loop_follower import LoopFollower, LoopIteration
from headway.rerun.strategies.redeliver import FrameworkRerun, RedeliverBatches
from headway.rerun.strategies.self_fed_loop import SelfFedLoopRerun
from headway.rerun.unexplained_steps import TRACING, WEIGHTS_MOVED, UnexplainedSteps
from headway.torch_adapters.live_objects import KnownInstances
from headway.torch_adapters.patching import allow_device_sync
from headway.torch_adapters.rng import RngState

if TYPE_CHECKING:
    from headway.rerun.bad_step import StepContext

STRATEGIES: tuple[type[Rerun], ...] = (
    FrameworkRerun,
    LoopBodyRerun,
    SelfFedLoopRerun,
    RedeliverBatches,
)
"""The strategies in the order in which they are tried. If all fail, later steps are traced."""

RERUNNING = "re-running a bad step"
BATCH_CHANGED = "it changed its batch in place"
OTHER_RANK = "another rank cannot run it again"


class RerunController:
    """The re-runs of one guard."""

    def __init__(self, host: RerunHost, policy: Policy, notices: Notices) -> None:
        self._host = host
        self._policy = policy
        self._notices = notices
        self._protected: ProtectedCalls
        self._observer: Any
        self._left = policy.replays if policy.replay else 0
        self._not_before = 0
        self.rng_before: RngState | None = None
        """The random numbers before the current step."""
        self._pending: BadStep | None = None
        self._rerun_expected = False
        """Whether the other ranks will vote about a bad step."""
        self._healthy: Sequence[RecordedBatch] = ()
        self.copy_batches = False
        """The loop changes its batches in place: from then on, each is copied beforehand."""
        self._moved: RngState | None = None
        """Weights have changed in the step that began with these random numbers."""
        self._moved_iteration: LoopIteration | None = None
        """Weights have changed in this iteration."""
        self.rerun_results = RerunResults(host, policy, notices)
        self.self_fed_loop = LoopFollower(lambda: host.latest)
        """Follows loops that make their own data."""
        self.unexplained = UnexplainedSteps(host, policy, self.rerun_results)
        self._sandbox: RerunSandbox | None = None
        self._stateful = KnownInstances(*STATEFUL_CLASSES)

    def connect(self, protected: ProtectedCalls, observer: Any) -> None:
        """`observer` listens to torch for the guard, except during a re-run."""
        self._protected, self._observer = protected, observer

    @property
    def sandbox(self) -> RerunSandbox | None:
        """The sandbox of the pass that runs now."""
        sandbox = self._sandbox
        return sandbox if sandbox is not None and sandbox.is_running_pass else None

    @property
    def tracer(self) -> StepTracer:
        """Traces steps as they run: those after one that could not be explained."""
        return self.unexplained.tracer

    @property
    def pending(self) -> bool:
        """Whether a bad step waits to be run again, or other ranks will vote about one."""
        return self._pending is not None or self._rerun_expected

    @property
    def follows_loops(self) -> bool:
        """Whether a step of a loop that makes its own data would be run again."""
        return bool(self._left) and self._host.rerun_group is None

    # Called by the guard as steps go by.

    def step_begins(self, unused: Sequence[RecordedBatch] = ()) -> None:
        """The first batch of a step is about to be yielded to the loop; `unused`: earlier batches
        that led to no step."""
        self.unexplained.unused_batches.add(unused)
        self.rng_before = RngState() if self._left else None

    def on_good_step(self, context: StepContext) -> None:
        changed = any(kept.changed for kept in context.batches)
        self.copy_batches = self.copy_batches or changed
        self._healthy = [kept for kept in context.batches[-1:] if not (changed and kept.lost)]
        self._moved, self._moved_iteration = context.before, context.iteration
        pending = self._pending
        if pending is not None and (
            pending.before is context.before is not None
            or pending.iteration is context.iteration is not None
        ):
            pending.inexact = WEIGHTS_MOVED

    def on_bad_step(
        self, verdict: StepVerdict, context: StepContext, parameters: Sequence[Tensor]
    ) -> None:
        """The update of an optimizer was skipped: decide whether the step is run again."""
        self.copy_batches = self.copy_batches or any(kept.changed for kept in context.batches)
        if not verdict.spike and self._policy.replay:
            self.unexplained.missed = MissedStep(context.step, context.parameters)
        self._await_rerun(context, parameters, spike=verdict.spike)

    def on_skipped_step(self, context: StepContext, parameters: Sequence[Tensor]) -> None:
        """A GradScaler skips step after step: fixes are tried on this one."""
        if self._policy.replay and self._host.agreement.count == 1:
            self._await_rerun(context, parameters, by_scaler=True)

    def _await_rerun(
        self,
        context: StepContext,
        parameters: Sequence[Tensor],
        *,
        spike: bool = False,
        by_scaler: bool = False,
    ) -> None:
        if self._pending is not None or not context.again:
            return
        if not self._left or context.step < self._not_before or context.step != self._host.step:
            return
        self._left -= 1
        self._not_before = context.step + self._policy.replay_gap
        inexact = WEIGHTS_MOVED if self._weights_moved(context) else ""
        self._pending = context.as_bad_step(parameters, inexact, spike=spike, by_scaler=by_scaler)

    def on_lost_step(self, context: StepContext, *, goes_on: bool) -> None:
        """Training does not continue from the weights of this bad step: only a trace can explain
        it, or that of a later step if it goes on from a snapshot."""
        if self._policy.replay:
            self.unexplained.weights_are_bad(context, lost=not goes_on)

    def trace_skipped_steps(self) -> None:
        """A GradScaler skips step after step: tracing the next steps may show why. Not with several
        ranks: they may skip different steps, and would wait for each other."""
        if self._policy.replay and self._host.agreement.count == 1:
            self._protected.spare(TRACING, self.tracer.arm, self._host)

    def buffers_are_bad(self, step: int) -> None:
        """The buffers may contain the statistics of a batch that the loop then skipped."""
        if self._policy.replay:
            explain = self.unexplained.unused_batches.explain
            self._protected.spare(TRACING, explain, self._host, step)

    def _weights_moved(self, context: StepContext) -> bool:
        """Whether weights have changed since the step began."""
        if context.iteration is not None:
            return context.iteration is self._moved_iteration
        return context.before is self._moved

    def expect_rerun(self, context: StepContext) -> None:
        """All ranks skip this step, and know it: once it is over, they vote whether to run it
        again, whatever happens to one of them in the meantime."""
        worth = bool(self._left) and context.step >= self._not_before
        self._rerun_expected = worth and self._host.rerun_group is not None

    def step_complete(self, frame: FrameType | None = None) -> None:
        """`optimizer.step()` is over: explain a bad step from its trace, or trace the next ones."""
        pending = self._pending is not None
        self.unexplained.step_complete(frame, self.self_fed_loop, self._protected, pending=pending)

    def close(self) -> None:
        """The guard closes, perhaps during a pass: stop listening to torch."""
        self._stateful.close()
        self.unexplained.close(self._protected)
        if self._sandbox is not None:
            self._sandbox.leave(None)

    # The choice of a strategy.

    def rerun(self, moment: RerunMoment, frame: FrameType | None = None) -> None:
        """Run the bad step that waits, if a strategy can do it now."""
        deque(self._try(moment, frame), maxlen=0)

    def rerun_in_loop(self, frame: FrameType | None) -> Iterator[Any]:
        """The same when the loop requests its next batch: yields batches to the loop."""
        yield from self._try(RerunMoment.NEXT_BATCH, frame)

    def _try(self, moment: RerunMoment, frame: FrameType | None) -> Iterator[Any]:
        if not self.pending:
            return
        if self._protected.tripped or self._pending is None:
            if self._rerun_expected and moment is not RerunMoment.AFTER_STEP:
                self._all_ranks_can(False)  # the others ask all the same
            return
        explained = len(self.rerun_results.found)
        chosen: list[Rerun | str | None] = []
        case = RerunCase(self._pending, moment, frame, self._host)
        if not self._attempt(lambda: chosen.append(self._choose(case))):
            self._left = 0
        strategy = chosen[0] if chosen else ""
        if strategy is None:
            return
        if self._all_ranks_can(isinstance(strategy, Rerun)) and isinstance(strategy, Rerun):
            yield from self._run(strategy)
            self._rerun_expected = False  # a loop's body restores what its variables reach
        else:
            self._forget(strategy if isinstance(strategy, str) else OTHER_RANK)
        if len(self.rerun_results.found) > explained:
            self.unexplained.missed = self.unexplained.first = None

    def _choose(self, case: RerunCase) -> Rerun | str | None:
        """The strategy, or why there is none; None: it must wait for a later moment."""
        bad, why = case.bad_step, ""
        if case.moment is RerunMoment.AFTER_STEP and bad.iteration is None:
            return None
        for kind in STRATEGIES:
            strategy = kind(case)
            readiness = strategy.prepare()
            if readiness.later:
                return None
            if readiness.can:
                return self._obstacle(bad) or strategy
            why = why or readiness.why_not
        return why

    def _obstacle(self, bad: BadStep) -> str:
        """Why no strategy can run the step as it was; empty: one can."""
        if any(kept.lost for kept in bad.batches):
            self._notices.once(
                "replay-changed",
                "the loop changes its batches in place, so this bad step cannot be run again and "
                "its line is unknown",
            )
            return BATCH_CHANGED
        group = self._host.rerun_group
        return "" if group is None else group.obstacle

    def _all_ranks_can(self, can: bool) -> bool:
        self._rerun_expected = False
        agreement = self._host.agreement
        return agreement.can_meet and agreement.all_agree(can)

    def _forget(self, why: str) -> None:
        """The step that waits can no longer be run again."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self.unexplained.add(pending, why, recorded=bool(pending.batches))

    def _run(self, strategy: Rerun) -> Iterator[Any]:
        """Investigate the step; a defect of headway ends the investigation, not the training."""
        drawn: list[Any] = []
        with closing(self._investigate(strategy)) as passes:
            while self._attempt(lambda: drawn.extend(islice(passes, 1))):
                if not drawn:
                    return
                yield drawn.pop()
        self._left, self._pending = 0, None

    def _attempt(self, work: Callable[[], None]) -> bool:
        if self._host.rerun_group is None:
            return self._protected.spare(RERUNNING, work)
        self._protected(work)  # the other ranks must know if it fails
        return not self._protected.tripped

    # The investigation.

    def _investigate(self, strategy: Rerun) -> Generator[Any, None, None]:
        bad, self._pending = self._pending, None
        assert bad is not None
        if bad.step == self._host.step and self._host.agreement.count == 1:
            traced = self.tracer.current_origins()  # before the passes change the gradients
            if traced is not None and traced.origins:
                self.rerun_results.traced.setdefault(bad.step, traced)
        answer, gave_up = None, False  # not in an attribute: `undo` would restore it
        if self._host.rerun_group is not None:
            self._host.rerun_group.open()
        try:
            answer = self._plan(bad, strategy)
            with self._enter_sandbox(bad) as sandbox:
                try:
                    if strategy.needs_proof and (why := self._disprove(sandbox, strategy, bad)):
                        self.unexplained.add(bad, why, strategy.frame_to_try)
                        return
                    for one in answer:
                        yield from sandbox.run_pass(one, strategy)
                except Exception as error:
                    gave_up = True
                    self._give_up(error, answer)
                    raise
                finally:
                    strategy.undo()
        except StepAborted:
            logger.warning("headway: step %s: another rank could not run it again", bad.step)
            return
        except Exception as error:
            if not gave_up:
                self._give_up(error, answer)
            raise
        if answer.blames_data and (inputs := strategy.bad_inputs()):
            self._host.inspect_batches(bad.step, [RecordedBatch(inputs)])
        if answer.findings is not None:
            self.rerun_results.report(bad, answer.findings)

    def _give_up(self, error: Exception, answer: PlanResult | None) -> None:
        """Called for a defect of headway: the other ranks must not wait for this one."""
        group = self._host.rerun_group
        unfinished = answer is None or answer.findings is None
        if group is not None and unfinished and not isinstance(error, (RankLost, StepAborted)):
            group.give_up()

    def _plan(self, bad: BadStep, strategy: Rerun) -> PlanResult:
        # Imported only now: a healthy run need not spend the time.
        explain = importlib.import_module("headway.explain.investigation")
        group = self._host.rerun_group
        return PlanResult(
            explain.investigate(
                bad.as_failing_step(
                    self._host, may_raise=strategy.may_raise, data=strategy.inputs()
                ),
                explain.ControlRuns(
                    self._host.older_weights(bad.step), [kept.batch for kept in self._healthy]
                ),
                None if group is None else (group, self._host.agreement.rank),
            )
        )

    def _disprove(self, sandbox: RerunSandbox, strategy: Rerun, bad: BadStep) -> str:
        """Why the step that was re-run is not the one that failed; empty: it is."""
        while True:
            first = StepPass("again", [kept.batch for kept in bad.batches])
            deque(sandbox.run_pass(first, strategy), maxlen=0)
            why = strategy.proof(first.outcome)
            if not why or not strategy.correct_start():
                return why

    @contextmanager
    def _enter_sandbox(self, bad: BadStep) -> Iterator[RerunSandbox]:
        assert bad.before is not None
        sandbox = RerunSandbox(
            self._host,
            self._observer,
            before=bad.before,
            scale=bad.scale,
            batches=[*bad.batches, *self._healthy],
            judged=bad.parameters if bad.limit is not None else (),
            others=self._stateful.find(),
        )
        began = time.perf_counter()
        self._sandbox = sandbox
        try:
            with allow_device_sync(), self.tracer.set_aside(), sandbox:
                yield sandbox
        finally:
            self._sandbox = None
            self._host.exclude_time(time.perf_counter() - began)

    # A step that another run has captured.

    def run_captured(self, bad: BadStep, one: StepPass) -> Generator[Any, None, None]:
        """Yield its batches to the loop for one pass."""
        self._host.buffers.renew()
        with self._enter_sandbox(bad) as sandbox:
            sandbox.enter(one)
            try:
                yield from one.batches
            finally:
                sandbox.leave(None)

    def explain_captured(self, bad: BadStep, frame: FrameType | None) -> Iterator[Any]:
        """Run it again as a bad step of this run."""
        self._pending, self.rerun_results.captured = bad, True
        yield from self._try(RerunMoment.NEXT_BATCH, frame)
