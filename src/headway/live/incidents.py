"""Bad steps that are looked into: which ones, and with what.

Kept at every step: the state of the random number generators, and the batches by reference. The
rest is there anyway: weights were held back, buffers have their copies.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from headway.errors import RankLost
from headway.live.batch_identity import Kept
from headway.live.conclusions import Conclusions
from headway.live.incident import Incident, InTurn, Rerun
from headway.live.loop_body import LoopBody
from headway.live.meeting import StepEnded
from headway.live.notices import Notices, logger
from headway.live.stage import Stage
from headway.live.turn_body import TurnBody
from headway.live.turns import Turn
from headway.live.waiting import may_wait
from headway.policy import Policy, Verdict
from headway.replay.ambient import compiled_code_runs
from headway.replay.passes import Pass
from headway.replay.scene import Scene
from headway.torch_tools.rng import Moment

if TYPE_CHECKING:
    from headway.live.note import Note
    from headway.live.session import Session
    from headway.replay.investigation import Elsewhere, Findings, Plan

MOVED = (
    "other weights of the model had been updated within the same step, so it could not be run "
    "again as it was"
)

QUIET = 200
"""Steps for which nothing more is said about steps that cannot be run again."""
BY_HAND = "its loop draws the batches by hand, not by a `for` over them"


@dataclass(frozen=True, slots=True)
class Missed:
    """A bad step that could not be run again."""

    step: int
    parameters: Sequence[Tensor] = ()
    why: str = ""
    """Why that is so, where the loop is the reason."""


class Incidents:
    """The investigations of one guard."""

    def __init__(self, session: Session, policy: Policy, notices: Notices) -> None:
        self._session = session
        self._policy = policy
        self._notices = notices
        self._left = policy.replays if policy.replay else 0
        self._not_before = 0
        self.moment: Moment | None = None
        """The random numbers before the present step."""
        self._pending: Incident | None = None
        self.foreseen = False
        """Whether the other ranks will ask about a bad step."""
        self._healthy: Sequence[Kept] = ()
        self.changing = False
        """The loop changes its batches in place: from then on, each is copied beforehand."""
        self._moved: Moment | None = None
        """Since then weights have moved."""
        self._moved_turn: Turn | None = None
        """They have moved within this turn."""
        self._say_again_from = 0
        self.missed: Missed | None = None
        """The last bad step that nothing was there to be run again for."""
        self.conclusions = Conclusions(session, policy, notices)
        self.stage: Stage | None = None
        """While a step is being run again."""

    # What the session tells.

    def step_begins(self) -> None:
        """The first batch of a step is about to be handed to the loop."""
        self.moment = Moment() if self._left else None

    def step_was_good(self, note: Note) -> None:
        self._healthy = [kept for kept in note.batches[-1:] if not kept.lost]
        self._notice_changes(note)
        self._moved, self._moved_turn = note.before, note.turn
        pending = self._pending
        if pending is not None and (
            pending.before is note.before is not None or pending.turn is note.turn is not None
        ):
            pending.inexact = MOVED

    def step_was_bad(self, verdict: Verdict, note: Note, optimizer: str = "") -> None:
        """An optimizer's step was held back: worth a look?"""
        self._notice_changes(note)
        if not verdict.spike and self._policy.replay:
            self.missed = Missed(note.step, note.parameters)
        if self._pending is not None or not note.again:
            return
        if not self._left or note.step < self._not_before or note.step != self._session.step:
            return
        self._left -= 1
        self._not_before = note.step + self._policy.replay_gap
        self._pending = Incident(
            note.step,
            "spike" if verdict.spike else "nonfinite",
            note.batches,
            note.before,
            note.scale,
            note.limit if verdict.spike else None,
            [
                parameter
                for watch in self._session.watches.values()
                for group in watch.optimizer.param_groups
                for parameter in group["params"]
                if watch.suffix == optimizer
            ],
            MOVED if self._has_moved(note) else "",
            note.turn,
        )

    def _has_moved(self, note: Note) -> bool:
        """Whether weights have moved since the step began."""
        if note.turn is not None:
            return note.turn is self._moved_turn
        return note.before is self._moved

    def abandon(self) -> None:
        """The guard is closed, perhaps in the middle of a pass: nothing may listen any more."""
        if self.stage is not None:
            self.stage.leave(None)

    def _notice_changes(self, note: Note) -> None:
        self.changing = self.changing or any(kept.changed for kept in note.batches)

    def foresee(self, note: Note) -> None:
        """All ranks hold this step back, and know it: once it is over, they ask one another whether
        they can run it again. Whatever happens to one of them meanwhile, that question comes."""
        worth = bool(self._left) and note.step >= self._not_before
        self.foreseen = worth and self._session.company is not None

    def can_now(self, run: Rerun | None) -> bool:
        """Whether this rank can run the step again as it was."""
        batches = () if self._pending is None else self._pending.batches
        if any(kept.lost for kept in batches):
            self._notices.once(
                "replay-changed",
                "the loop changed its batch in place, so a bad step cannot be run again as it was: "
                "no line can be named",
            )
            return False
        company = self._session.company
        if company is not None and not company.able:
            self._notices.once(
                "replay-ranks",
                "a bad step cannot be run again in this kind of distributed training, so the line "
                "that made it is not known",
            )
            return False
        return run is not None and (bool(batches) or isinstance(run, TurnBody))

    def all_can(self, can: bool) -> bool:
        """Whether every rank can."""
        self.foreseen = False
        return self._session.survival.together.all_true(can)

    def give_up(self) -> None:
        """Looking into a step has failed: no other is looked into."""
        self._left, self._pending = 0, None

    def forget(self, why: str = "") -> None:
        """What waited can no longer be run again."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self.say_why_not(Missed(pending.step, why=why or BY_HAND))

    def say_why_not(self, missed: Missed) -> None:
        """A bad step has not been run again: that its line is not known shall surprise nobody."""
        if missed.step < self._say_again_from or not self._policy.replay or not missed.why:
            return
        quiet = max(self._policy.replay_gap, QUIET)
        if any(missed.step - found.step < quiet for found in self.conclusions.found):
            return  # lines have been told: this step's is most likely the same
        self._say_again_from = missed.step + quiet
        self.conclusions.unexplained(missed.step, missed.why)

    def take_missed(self) -> Missed | None:
        """The step that was made last, if it went bad and waits for nobody."""
        missed, self.missed = self.missed, None
        if missed is None or self._pending is not None:
            return missed
        return replace(missed, why=missed.why or self._session.turns.obstacle)

    @property
    def pending(self) -> bool:
        """Whether a step waits to be looked into, or other ranks to be told about one."""
        return self._pending is not None or self.foreseen

    @property
    def latest(self) -> Kept | None:
        """The last batch of the step that waits."""
        batches = () if self._pending is None else self._pending.batches
        return batches[-1] if batches else None

    @property
    def looking(self) -> bool:
        """Whether a step of a loop that makes its own data would be looked into."""
        return bool(self._left) and self._session.ranks is None

    @property
    def turn(self) -> Turn | None:
        """The turn that waits to be looked into, of a loop that makes its own data."""
        return None if self._pending is None else self._pending.turn

    def pass_over(self) -> None:
        """What waited is explained by something else."""
        self._pending = None

    def as_turn(self, *, by_hand: bool) -> None:
        """The step that waits is to be run again as a turn: no batch leads back to its loop.

        `by_hand`: its batches are those that it has drawn itself.
        """
        incident = self._pending
        assert incident is not None
        assert incident.turn is not None
        incident.batches = incident.batches if by_hand else ()
        incident.before = incident.turn.begin.moment

    def stand_in(self, incident: Incident) -> None:
        """A step from elsewhere waits to be looked into."""
        self._pending, self.conclusions.captured = incident, True

    def give(self, incident: Incident, one: Pass, observer: Any) -> Generator[Any, None, None]:
        """One pass by giving the batches to the loop."""
        with self._staged(incident, observer) as stage:
            stage.enter(one)
            try:
                yield from one.batches
            finally:
                stage.leave(None)

    def ages(self, latest: Kept) -> list[int]:
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

        return InTurn([run for run in runs if run is not None])

    # Looking into it.

    def look_into(self, run: Rerun, observer: Any) -> None:
        """Investigate the step that waits, by calling it."""
        company, step = self._session.company, self._session.step
        answer: Answer | None = None
        try:
            data = run.data() if isinstance(run, TurnBody) else None
            incident, answer = self._begin(gentle=False, data=data)
            with self._staged(incident, observer) as stage, self._kept_by(run):
                if isinstance(run, TurnBody) and (why := _unlike(stage, run, incident)):
                    self.say_why_not(Missed(incident.step, why=why))
                    return
                for one in answer:
                    stage.perform(one, run)
        except StepEnded:
            logger.warning("headway: step %s: another rank could not look into it", step)
            return
        except Exception as error:  # ours: the others must not wait for this rank
            open_still = answer is None or answer.findings is None
            if company is not None and open_still and not isinstance(error, RankLost):
                company.give_up()
            raise
        if isinstance(run, TurnBody) and answer.blames_data:
            self._session.inspection.batches(incident.step, [Kept(run.came_bad())])
        self._conclude(incident, answer)

    def yield_again(self, observer: Any) -> Generator[Any, None, None]:
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
        if isinstance(run, (LoopBody, TurnBody, InTurn)):
            put_back = run.keep(self._session.models, tensors=compiled_code_runs())
        try:
            yield
        finally:
            if put_back is not None:
                put_back()

    def _begin(
        self, *, gentle: bool, data: Mapping[str, Tensor] | None = None
    ) -> tuple[Incident, Answer]:
        incident, self._pending = self._pending, None
        assert incident is not None
        # Only now: reading it in takes time that a healthy run need not spend.
        replay = importlib.import_module("headway.replay.investigation")
        together, company = self._session.survival.together, self._session.company
        plan = replay.investigate(
            self._scene(incident, gentle=gentle, data=data),
            self._elsewhere(incident, replay.Elsewhere),
            together.gathered if company is None else company.agree,
            together.rank,
        )
        return incident, Answer(plan)

    @contextmanager
    def _staged(self, incident: Incident, observer: Any) -> Iterator[Stage]:
        assert incident.before is not None
        stage = Stage(
            self._session,
            observer,
            before=incident.before,
            scale=incident.scale,
            batches=[*incident.batches, *self._healthy],
            judged=incident.parameters if incident.limit is not None else (),
        )
        began = time.perf_counter()
        self.stage = stage
        try:
            with may_wait(), stage:
                yield stage
        finally:
            self.stage = None
            self._session.leave_out(time.perf_counter() - began)

    def _scene(
        self, incident: Incident, *, gentle: bool, data: Mapping[str, Tensor] | None = None
    ) -> Scene:
        session, company = self._session, self._session.company
        return Scene(
            models=session.models,
            optimizers=[watch.optimizer for watch in session.watches.values()],
            batches=[kept.batch for kept in incident.batches],
            names=session.inspection.roster.by_identity(),
            step=incident.step,
            symptom="spike" if incident.symptom == "spike" else "nonfinite",
            scaler=session.scaling.scaler,
            limit=incident.limit,
            usual=session.usual(),
            data=data or {},
            sample_names=incident.named(),
            gentle=gentle,
            inexact=incident.inexact or ("" if company is None else company.inexact),
        )

    def _elsewhere(self, incident: Incident, kind: type[Elsewhere]) -> Elsewhere:
        survival = self._session.survival
        older: Callable[[], AbstractContextManager[None]] | None = None
        if survival.keeper.can_roll_back(incident.step):
            snapshot = survival.keeper.peek(incident.step)
            if snapshot is not None and snapshot.step < incident.step:
                state = snapshot.state

                def older() -> AbstractContextManager[None]:
                    return survival.holdings.other_weights(state)

        return kind(older, [kept.batch for kept in self._healthy])

    def _conclude(self, incident: Incident, answer: Answer) -> None:
        if answer.findings is not None:
            scene = self._scene(incident, gentle=False)
            self.conclusions.draw(incident, answer.findings, scene)


def _unlike(stage: Stage, run: TurnBody, incident: Incident) -> str:
    """Why a turn that is run again is not the one that failed; empty: it is."""
    run.weights_moved = bool(incident.inexact)
    proof = Pass("again", [kept.batch for kept in incident.batches])
    stage.perform(proof, run)
    why = run.unlike(proof.outcome)
    if not why and proof.outcome.cured(incident.limit):
        return "run again, it went well: something that it reads has moved on, or it was transient"
    return why


class Answer:
    """A plan's passes, and what it returns when they are done."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.findings: Findings | None = None

    def __iter__(self) -> Iterator[Any]:
        self.findings = yield from self._plan

    @property
    def blames_data(self) -> bool:
        """Whether the numbers were bad before the model had them."""
        birth = None if self.findings is None else self.findings.explanation.birth
        return birth is not None and birth.kind == "poisoned-batch"
