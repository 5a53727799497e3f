"""Recovers a run beyond a single step: snapshots, roll back, preemption signals, resume."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from headway.core.numbers import plural
from headway.errors import ResumeRefused
from headway.guard.measure.parameter_index import StateInspector
from headway.guard.recorder import Recorder
from headway.guard.recovery.data_position import DataPosition, describe_position
from headway.guard.recovery.preemption import PreemptionSignals
from headway.guard.recovery.snapshot_store import SavedTraining, agree_on_folder, read_newest
from headway.guard.recovery.snapshots import Snapshot, Snapshots
from headway.guard.recovery.snapshotter import Snapshotter
from headway.guard.recovery.training_state import HOOKS, Stateful, TrainingState
from headway.guard.step_outcomes import StepCounter
from headway.output.notices import Notices
from headway.policy import Rung, StepVerdict
from headway.rundir.remote_run import RunFolder
from headway.torch_adapters import rng
from headway.torch_adapters.patching import allow_device_sync
from headway.torch_adapters.process_groups import bucket_order
from headway.torch_adapters.process_groups.hook_states import HookStates
from headway.torch_adapters.process_groups.rank_agreement import SingleProcess
from headway.torch_adapters.process_groups.rank_group import RankGroup
from headway.torch_adapters.saved_state import BufferBackup

BUCKETS_KNOWN_AFTER = 5
"""Steps within which no snapshot is written before DistributedDataParallel has reported its
buckets; later it counts as one that is not trained."""


class RecoveryManager:
    """Takes snapshots, rolls back, exits on a signal, and resumes.

    All of it happens between two steps, when the loop body is complete: scheduler, scaler and EMA
    included.
    """

    def __init__(
        self,
        training: TrainingState,
        settings: Snapshots,
        *,
        run_dir: RunFolder | None,
        notices: Notices,
        agreement: SingleProcess,
        counter: StepCounter,
        recorder: Recorder,
        inspection: StateInspector,
        buffers: BufferBackup,
        ranks: RankGroup | None,
        judge: Callable[[StepVerdict, frozenset[Rung]], Any],
        guard_state: Stateful,
    ) -> None:
        """`judge` lets the policy decide and act; `guard_state`: what the guard itself must have
        again after a resume."""
        self.data_position = DataPosition()
        self.training = training
        self._notices = notices
        self.agreement = agreement
        self._counter = counter
        self._recorder = recorder
        self._inspection = inspection
        self._buffers = buffers
        self._ranks = ranks
        self._judge = judge
        self._guard_state = guard_state
        self.snapshotter = Snapshotter(
            training,
            settings,
            run_dir=run_dir,
            own=self._own,
            notices=notices,
            agreement=agreement,
        )
        listens = settings.on_signal and self.snapshotter.on_disk
        self.preemption = PreemptionSignals(recorder.heartbeat.signalled) if listens else None
        self.going_back: Snapshot | None = None
        """The state must be replaced by this one before anything uses it."""
        self.due_at = 0
        """Before this many steps there is nothing to do at a boundary."""
        self._every = settings.every
        self._save_at = settings.every

    def rungs(self, verdict: StepVerdict) -> frozenset[Rung]:
        """The actions that are possible now for a bad step."""
        if verdict.poisoned:
            self.snapshotter.drop_untrusted(verdict.step)
        always = {Rung.SKIP, Rung.BACK_OFF, Rung.HALT}
        can = self.snapshotter.can_roll_back(verdict.step)
        return frozenset(always | {Rung.ROLL_BACK} if can else always)

    def before_first_step(self) -> None:
        """Keep the state from which the run starts, after the user has loaded a checkpoint."""
        self._doubt_unless(self.snapshotter.first(self._counter.made))
        self._look_ahead()

    # Rolling back.

    def roll_back(self, step: int, *, older: bool) -> None:
        """Return to the last good state at the next opportunity."""
        snapshot = self.snapshotter.last_good(step, older=older)
        self.going_back = snapshot
        self._recorder.event(
            step, "roll-back", {"to": snapshot.step, "lost": step + 1 - snapshot.step}
        )

    def finish_roll_back(self) -> None:
        """Replace the state by that of the snapshot, if one was chosen."""
        snapshot, self.going_back = self.going_back, None
        if snapshot is None:
            return
        with allow_device_sync():
            # The schedule follows the data, which are not rewound.
            self.training.restore(snapshot.state, schedule=False)
            self._buffers.renew()

    def boundary(self, *, good: bool) -> None:
        """The loop's body is complete; `good`: whether its last step was good."""
        self.finish_roll_back()  # a verdict may have come when no optimizer stepped
        if good:
            steps, ranks = self._counter.made, self._ranks
            if ranks is not None and ranks.saving:
                ranks.saving = False
                self._doubt_unless(self.snapshotter.save(steps))
            else:
                self._doubt_unless(self.snapshotter.at_boundary(steps))
            if ranks is not None and ranks.rank == 0 and self._wants_to_save(steps):
                ranks.save_asked = True
            self._look_ahead()

    def _look_ahead(self) -> None:
        # With other ranks every boundary counts: one of them may ask for a snapshot.
        self.due_at = 0 if self._ranks is not None else self.snapshotter.next_due()

    def _wants_to_save(self, steps: int) -> bool:
        """Only rank 0 reads the clock; the others get the result with the next vote."""
        due = bool(self._every) and steps >= self._save_at and self.snapshotter.disk_is_due()
        due = due and self._may_save()
        if due:
            self._save_at = steps + self._every
        return due

    def _doubt_unless(self, good: bool) -> None:
        """Act on a bad snapshot: it contains a non-finite value that no loss has shown."""
        if good:
            return
        if self._ranks is not None:  # all ranks decide about it at their next step
            self._inspection.state(self._counter.current)
            self._ranks.poisoned = True
        else:
            with allow_device_sync():
                self._repair()

    def _repair(self, rungs: frozenset[Rung] | None = None) -> str:
        """Replace a state that is not finite; returns a message about the change."""
        step = self._counter.current
        names = self._inspection.state(step)
        if not names:
            return self._repair_buffers(step)
        verdict = StepVerdict(step, poisoned=names)
        self._judge(verdict, self.rungs(verdict) if rungs is None else rungs)
        target = self.going_back
        self.finish_roll_back()
        if target is None:
            return ""
        lost = self._counter.made - target.step
        return (
            f"{names[0]} was not finite, so the weights are restored to those after "
            f"{target.step} of {self._counter.made} steps ({lost} lost)"
        )

    def _repair_buffers(self, step: int) -> str:
        """Restore statistics alone: nothing that was learned is lost."""
        names = self.snapshotter.spoiled_buffers()
        if not names or not self.snapshotter.can_roll_back(step):
            return ""
        snapshot = self.snapshotter.last_good(step, older=False)
        self.training.restore_buffers(snapshot.state)
        self._buffers.renew()
        self._recorder.event(step, "mended", {"buffers": names, "to": snapshot.step})
        return f"buffer {names[0]} was not finite and is restored; the weights are unchanged"

    def check_at_end(self) -> None:
        """The run is over: restore the last good state if the present one is bad, and report it.

        Not with several ranks: one of them may have ended for another reason, and cannot vote. Not
        if no step was guarded: then the guard must not replace the present state.
        """
        guarded = self._counter.made > self._counter.first
        if (
            guarded
            and self.agreement.count == 1
            and self.snapshotter.can_roll_back(self._counter.current)
        ):
            restored = self._repair(frozenset({Rung.ROLL_BACK}))
            if restored:
                self._notices.once("restored-at-end", f"at close(): {restored}")

    # Leaving and resuming.

    @property
    def waiting_signal(self) -> int | None:
        """The signal that ends the run at the end of the step; None where the script handles it."""
        return None if self.preemption is None else self.preemption.unhandled

    def asked_to_leave(self) -> int | None:
        """The signal received here or on another rank; the same answer on every rank."""
        number = None if self.preemption is None else self.preemption.asked
        ranks = self._ranks
        if ranks is None:
            return number
        if number is not None:
            ranks.request_exit()
        return (number or signal.SIGTERM) if ranks.leaving else None

    def leave(self, number: int) -> None:
        """The process is about to end: write everything to disk."""
        saved = self.save_on_signal(number)
        self.interrupted(number, saved=saved)

    def interrupted(self, number: int, *, saved: bool) -> None:
        """The signal ends the run."""
        self._recorder.interrupted(self._counter.current, number, saved=saved)

    def save_on_signal(self, number: int) -> bool:
        """Write a snapshot because this signal arrived; whether that was possible."""
        saved = (
            self.snapshotter.on_disk
            and self._may_save()
            and self.snapshotter.save(self._counter.made)
        )
        self.snapshotter.wait()
        self._recorder.event(self._counter.current, "preempted", {"signal": number, "saved": saved})
        return bool(saved)

    def close(self, *, well: bool = True) -> None:
        if self.preemption is not None:
            self.preemption.close()
        self.snapshotter.close(well=well)

    def resume(self, find_folder: Callable[[], RunFolder | None]) -> int:
        """Restore the newest complete snapshot of a run directory; the steps made before it.

        Raises ResumeRefused on every rank where it cannot be restored exactly on all of them.
        """
        run_dir = agree_on_folder(find_folder, self.agreement)
        saved = read_newest(run_dir, self.training, self.agreement, self._notices)
        if saved is None:
            return 0
        state, own, ranks = saved.state, saved.own, self.agreement.count
        if saved.world_size == ranks:
            self._restore_buckets(own.get("buckets", ()))
        else:
            state["others"].pop(HOOKS, None)  # what each rank has not sent yet
        self._tell_hooks(state["others"], resized=saved.world_size != ranks)
        self.training.restore(state, schedule=True)
        missing = sorted(state["others"].keys() - self.training.others.keys())
        if missing:
            self._notices.once(
                "resume-missing",
                "the snapshot contains state that this guard does not track: "
                f"{', '.join(missing)}. It is not restored, so the run will not continue exactly",
                shared=True,
            )
        self._guard_state.load_state_dict(own["guard"])
        if saved.is_own:
            rng.restore(own["rng"])
        if saved.world_size != ranks:
            self._notices.once(
                "resume-ranks",
                f"the snapshot was written by {plural(saved.world_size, 'rank')}, but this run has "
                f"{ranks}: weights, moments and the data position are restored"
                + ("; new ranks start with new random numbers" if ranks > saved.world_size else ""),
                shared=True,
            )
        self.data_position.resume(
            own["journey"],
            lambda: self._arrived(saved),
            resized=saved.world_size != ranks,
        )
        self._buffers.renew()
        self._require_same_start(saved)
        self._recorder.event(
            saved.steps, "resumed", {"steps": saved.steps, "ranks": [saved.world_size, ranks]}
        )
        return saved.steps

    def _restore_buckets(self, saved: Sequence[Any]) -> None:
        """Before the states of communication hooks, which are called for it."""
        obstacle = bucket_order.restore(self.training.models, saved) if self._buckets_matter else ""
        if obstacle:
            self._notices.once(
                "resume-buckets",
                f"DistributedDataParallel {obstacle} chooses its buckets again, so the first step "
                "may differ in the last bits from an uninterrupted run. Everything else is exact",
                shared=True,
            )

    def _tell_hooks(self, saved: Mapping[str, Any], *, resized: bool) -> None:
        """Say what of the state of communication hooks is not restored."""
        hooks = self.training.others.get(HOOKS)
        if not isinstance(hooks, HookStates):
            return
        if HOOKS not in saved:
            why = "it belongs to each rank" if resized else "the snapshot does not contain it"
            text = f"communication hooks start with an empty state, because {why}"
        elif hooks.unknown():
            text = f"{', '.join(hooks.unknown())} of a communication hook cannot be stored"
        else:
            return
        text += ". The run does not continue bit for bit"
        self._notices.once("resume-hooks", text, shared=True)

    @property
    def _buckets_matter(self) -> bool:
        # The sum of two numbers has no order, but hooks may keep a state for each bucket.
        return self.agreement.count > 2 or HOOKS in self.training.others

    def _may_save(self) -> bool:
        """Whether a snapshot of now could be resumed bit for bit. The first steps are soon trained
        again, with the same bits."""
        steps = self._counter.made - self._counter.first
        return not (
            steps < BUCKETS_KNOWN_AFTER
            and self._buckets_matter
            and bucket_order.is_undecided(self.training.models)
        )

    def _require_same_start(self, saved: SavedTraining) -> None:
        """Compare step, position and shared state of all ranks before any of them trains."""
        if self.agreement.count == 1:
            return
        mine = {
            "step": self._counter.made,
            "position in the data": describe_position(
                saved.own["journey"], by_batch=saved.world_size != self.agreement.count
            ),
            "state": self.training.digest(saved.shared),
        }
        views = self.agreement.gather(mine)
        for name in mine:
            different = [rank for rank, view in enumerate(views) if view[name] != views[0][name]]
            if different:
                raise ResumeRefused(
                    f"after the resume the {name} of rank {different[0]} differs from that of "
                    f"rank 0 ({views[different[0]][name]}, {views[0][name]}): the run does not "
                    "start. Remove the newest snapshot to resume from the one before it"
                )

    def restore_captured(self, state: Mapping[str, Any]) -> None:
        """Restore the state that an incident file contains."""
        self.training.restore_for_replay(state)
        self._buffers.renew()

    @torch.no_grad()
    def _arrived(self, saved: SavedTraining) -> None:
        """The loop has reached its position: undo the changes since the start of the script."""
        self.training.restore(saved.state, schedule=True)
        if saved.is_own:
            rng.restore(saved.own["rng"])
        self._buffers.renew()

    def _own(self) -> dict[str, Any]:
        return {
            "rng": rng.capture(),
            "journey": self.data_position.state_dict(),
            "guard": self._guard_state.state_dict(),
            "buckets": bucket_order.capture(self.training.models) if self._buckets_matter else [],
        }
