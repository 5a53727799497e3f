"""Decides which bad steps are run again, and runs them.

Kept at every step: the state of the random number generators, and the batches by reference. The
rest is there anyway: weights were held back, buffers have their copies.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from headway.errors import RankLost
from headway.explain.failing_step import FailingStep, StepPass
from headway.output.notices import Notices, logger
from headway.policy import Policy, StepVerdict
from headway.rerun.bad_step import (
    BadStep,
    FrameworkStepRerun,
    MissedStep,
    PlanResult,
    Rerun,
    RerunResults,
)
from headway.rerun.batch_identity import RecordedBatch
from headway.rerun.host import RerunHost
from headway.rerun.rerun_group import StepAborted
from headway.rerun.sandbox import RerunSandbox, explain_difference
from headway.rerun.strategies.iteration_rerun import IterationRerun
from headway.rerun.strategies.loop_body import LoopBody
from headway.rerun.strategies.self_fed_loop import LoopIteration, SelfFedLoop
from headway.torch_adapters.patching import allow_device_sync
from headway.torch_adapters.rng import RngState
from headway.torch_adapters.runtime_state import compiled_code_runs

if TYPE_CHECKING:
    from headway.explain.investigation import ControlRuns
    from headway.rerun.bad_step import StepContext

WEIGHTS_MOVED = (
    "other weights of the model had been updated within the same step, so it could not be run "
    "again as it was"
)

QUIET_STEPS = 200
"""Steps for which nothing more is said about steps that cannot be run again."""
DRAWN_BY_HAND = "its loop draws the batches by hand, not by a `for` over them"


class RerunController:
    """The investigations of one guard."""

    def __init__(self, host: RerunHost, policy: Policy, notices: Notices) -> None:
        self._host = host
        self.self_fed_loop = SelfFedLoop(lambda: host.latest)
        """Follows loops that make their own data."""
        self._policy = policy
        self._notices = notices
        self._left = policy.replays if policy.replay else 0
        self._not_before = 0
        self.moment: RngState | None = None
        """The random numbers before the present step."""
        self._pending: BadStep | None = None
        self.rerun_expected = False
        """Whether the other ranks will ask about a bad step."""
        self._healthy: Sequence[RecordedBatch] = ()
        self.changing = False
        """The loop changes its batches in place: from then on, each is copied beforehand."""
        self._moved: RngState | None = None
        """Since then weights have moved."""
        self._moved_turn: LoopIteration | None = None
        """They have moved within this turn."""
        self._say_again_from = 0
        self.missed: MissedStep | None = None
        """The last bad step that nothing was there to be run again for."""
        self.rerun_results = RerunResults(host, policy, notices)
        self.stage: RerunSandbox | None = None
        """While a step is being run again."""

    # Called by the guard.

    def step_begins(self) -> None:
        """The first batch of a step is about to be handed to the loop."""
        self.moment = RngState() if self._left else None

    def on_good_step(self, note: StepContext) -> None:
        self._healthy = [kept for kept in note.batches[-1:] if not kept.lost]
        self._notice_changes(note)
        self._moved, self._moved_turn = note.before, note.iteration
        pending = self._pending
        if pending is not None and (
            pending.before is note.before is not None
            or pending.iteration is note.iteration is not None
        ):
            pending.inexact = WEIGHTS_MOVED

    def on_bad_step(
        self, verdict: StepVerdict, note: StepContext, parameters: Sequence[Tensor]
    ) -> None:
        """An optimizer's step was held back: worth a look?"""
        self._notice_changes(note)
        if not verdict.spike and self._policy.replay:
            self.missed = MissedStep(note.step, note.parameters)
        if self._pending is not None or not note.again:
            return
        if not self._left or note.step < self._not_before or note.step != self._host.step:
            return
        self._left -= 1
        self._not_before = note.step + self._policy.replay_gap
        self._pending = BadStep(
            note.step,
            "spike" if verdict.spike else "nonfinite",
            note.batches,
            note.before,
            note.scale,
            note.limit if verdict.spike else None,
            parameters,
            WEIGHTS_MOVED if self._has_moved(note) else "",
            note.iteration,
        )

    def _has_moved(self, note: StepContext) -> bool:
        """Whether weights have moved since the step began."""
        if note.iteration is not None:
            return note.iteration is self._moved_turn
        return note.before is self._moved

    def abandon(self) -> None:
        """The guard is closed, perhaps in the middle of a pass: nothing may listen any more."""
        if self.stage is not None:
            self.stage.leave(None)

    def _notice_changes(self, note: StepContext) -> None:
        self.changing = self.changing or any(kept.changed for kept in note.batches)

    def foresee(self, note: StepContext) -> None:
        """All ranks hold this step back, and know it: once it is over, they ask one another whether
        they can run it again. Whatever happens to one of them meanwhile, that question comes."""
        worth = bool(self._left) and note.step >= self._not_before
        self.rerun_expected = worth and self._host.rerun_group is not None

    def can_rerun(self, run: Rerun | None) -> bool:
        """Whether this rank can run the step again as it was."""
        batches = () if self._pending is None else self._pending.batches
        if any(kept.lost for kept in batches):
            self._notices.once(
                "replay-changed",
                "the loop changed its batch in place, so a bad step cannot be run again as it was: "
                "no line can be named",
            )
            return False
        company = self._host.rerun_group
        if company is not None and not company.able:
            self._notices.once(
                "replay-ranks",
                "a bad step cannot be run again in this kind of distributed training, so the line "
                "that made it is not known",
            )
            return False
        return run is not None and (bool(batches) or isinstance(run, IterationRerun))

    def all_ranks_can(self, can: bool) -> bool:
        """Whether every rank can."""
        self.rerun_expected = False
        return self._host.agreement.all_agree(can)

    def give_up(self) -> None:
        """Looking into a step has failed: no other is looked into."""
        self._left, self._pending = 0, None

    def forget(self, why: str = "") -> None:
        """What waited can no longer be run again."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self.report_not_rerun(MissedStep(pending.step, why=why or DRAWN_BY_HAND))

    def report_not_rerun(self, missed: MissedStep) -> None:
        """A bad step has not been run again: that its line is not known shall surprise nobody."""
        if missed.step < self._say_again_from or not self._policy.replay or not missed.why:
            return
        quiet = max(self._policy.replay_gap, QUIET_STEPS)
        if any(missed.step - found.step < quiet for found in self.rerun_results.found):
            return  # lines have been told: this step's is most likely the same
        self._say_again_from = missed.step + quiet
        self.rerun_results.unexplained(missed.step, missed.why)

    def collect_missed(self) -> MissedStep | None:
        """The step that was made last, if it went bad and waits for nobody."""
        missed, self.missed = self.missed, None
        if missed is None or self._pending is not None:
            return missed
        return replace(missed, why=missed.why or self.self_fed_loop.obstacle)

    @property
    def pending(self) -> bool:
        """Whether a step waits to be looked into, or other ranks to be told about one."""
        return self._pending is not None or self.rerun_expected

    @property
    def latest(self) -> RecordedBatch | None:
        """The last batch of the step that waits."""
        batches = () if self._pending is None else self._pending.batches
        return batches[-1] if batches else None

    @property
    def looking(self) -> bool:
        """Whether a step of a loop that makes its own data would be looked into."""
        return bool(self._left) and self._host.rerun_group is None

    @property
    def iteration(self) -> LoopIteration | None:
        """The turn that waits to be looked into, of a loop that makes its own data."""
        return None if self._pending is None else self._pending.iteration

    def drop_pending(self) -> None:
        """What waited is explained by something else."""
        self._pending = None

    def treat_as_iteration(self, *, by_hand: bool) -> None:
        """The step that waits is to be run again as a turn: no batch leads back to its loop.

        `by_hand`: its batches are those that it has drawn itself.
        """
        incident = self._pending
        assert incident is not None
        assert incident.iteration is not None
        incident.batches = incident.batches if by_hand else ()
        incident.before = incident.iteration.begin.moment

    def set_pending(self, incident: BadStep) -> None:
        """A step from elsewhere waits to be looked into."""
        self._pending, self.rerun_results.captured = incident, True

    def give(self, incident: BadStep, one: StepPass, observer: Any) -> Generator[Any, None, None]:
        """One pass by giving the batches to the loop."""
        with self._staged(incident, observer) as stage:
            stage.enter(one)
            try:
                yield from one.batches
            finally:
                stage.leave(None)

    def ages(self, latest: RecordedBatch) -> list[int]:
        """How many batches before the latest those of the waiting step came."""
        batches = () if self._pending is None else self._pending.batches
        return [
            0
            if kept.origin is None or latest.origin is None
            else latest.origin.number - kept.origin.number
            for kept in batches
        ]

    def framework(self) -> Rerun | None:
        """How the framework that made the step runs it again; None in a loop of the user's own."""
        runs = [] if self._pending is None else [kept.run for kept in self._pending.batches]
        if not runs or None in runs:
            return None

        return FrameworkStepRerun([run for run in runs if run is not None])

    # Looking into it.

    def investigate_pending(self, run: Rerun, observer: Any) -> None:
        """Investigate the step that waits, by calling it."""
        company, step = self._host.rerun_group, self._host.step
        answer: PlanResult | None = None
        try:
            data = run.data() if isinstance(run, IterationRerun) else None
            incident, answer = self._begin(gentle=False, data=data)
            with self._staged(incident, observer) as stage, self._kept_by(run):
                if isinstance(run, IterationRerun) and (
                    why := explain_difference(stage, run, incident)
                ):
                    self.report_not_rerun(MissedStep(incident.step, why=why))
                    return
                for one in answer:
                    stage.run_pass(one, run)
        except StepAborted:
            logger.warning("headway: step %s: another rank could not look into it", step)
            return
        except Exception as error:  # ours: the others must not wait for this rank
            open_still = answer is None or answer.findings is None
            if company is not None and open_still and not isinstance(error, RankLost):
                company.give_up()
            raise
        if isinstance(run, IterationRerun) and answer.blames_data:
            self._host.inspect_batches(incident.step, [RecordedBatch(run.bad_inputs())])
        self._conclude(incident, answer)

    def redeliver(self, observer: Any) -> Generator[Any, None, None]:
        """The same where the step cannot be called: its batches, to be given to the loop."""
        incident, answer = self._begin(gentle=True)
        with self._staged(incident, observer) as stage:
            for one in answer:
                stage.enter(one)
                try:
                    yield from one.batches
                finally:
                    stage.leave(None)
        self._conclude(incident, answer)

    @contextmanager
    def _kept_by(self, run: Rerun) -> Iterator[None]:
        """What a loop's body reaches through its variables, or a framework through its trainer, is
        as before afterwards."""
        put_back = None
        if isinstance(run, (LoopBody, IterationRerun, FrameworkStepRerun)):
            put_back = run.keep(self._host.models, tensors=compiled_code_runs())
        try:
            yield
        finally:
            if put_back is not None:
                put_back()

    def _begin(
        self, *, gentle: bool, data: Mapping[str, Tensor] | None = None
    ) -> tuple[BadStep, PlanResult]:
        incident, self._pending = self._pending, None
        assert incident is not None
        # Only now: reading it in takes time that a healthy run need not spend.
        replay = importlib.import_module("headway.explain.investigation")
        together, company = self._host.agreement, self._host.rerun_group
        plan = replay.investigate(
            self._scene(incident, gentle=gentle, data=data),
            self._elsewhere(incident, replay.ControlRuns),
            together.gather if company is None else company.agree,
            together.rank,
        )
        return incident, PlanResult(plan)

    @contextmanager
    def _staged(self, incident: BadStep, observer: Any) -> Iterator[RerunSandbox]:
        assert incident.before is not None
        stage = RerunSandbox(
            self._host,
            observer,
            before=incident.before,
            scale=incident.scale,
            batches=[*incident.batches, *self._healthy],
            judged=incident.parameters if incident.limit is not None else (),
        )
        began = time.perf_counter()
        self.stage = stage
        try:
            with allow_device_sync(), stage:
                yield stage
        finally:
            self.stage = None
            self._host.exclude_time(time.perf_counter() - began)

    def _scene(
        self, incident: BadStep, *, gentle: bool, data: Mapping[str, Tensor] | None = None
    ) -> FailingStep:
        host, company = self._host, self._host.rerun_group
        return FailingStep(
            models=host.models,
            optimizers=host.optimizers,
            batches=[kept.batch for kept in incident.batches],
            names=host.parameter_names(),
            step=incident.step,
            symptom="spike" if incident.symptom == "spike" else "nonfinite",
            scaler=host.scaling.scaler,
            limit=incident.limit,
            usual=host.usual(),
            data=data or {},
            sample_names=incident.named(),
            gentle=gentle,
            inexact=incident.inexact or ("" if company is None else company.inexact),
        )

    def _elsewhere(self, incident: BadStep, kind: type[ControlRuns]) -> ControlRuns:
        return kind(self._host.older_weights(incident.step), [kept.batch for kept in self._healthy])

    def _conclude(self, incident: BadStep, answer: PlanResult) -> None:
        if answer.findings is not None:
            scene = self._scene(incident, gentle=False)
            self.rerun_results.draw(incident, answer.findings, scene)
