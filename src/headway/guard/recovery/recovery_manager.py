"""Recovers a run beyond a single step: snapshots, roll back, preemption signals, resume."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any

import torch

from headway.errors import ResumeRefused
from headway.guard.endings.watchdog import run_hangs
from headway.guard.measure.parameter_index import StateInspector
from headway.guard.recorder import Recorder
from headway.guard.recovery.data_position import DataPosition, describe_position
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
from headway.torch_adapters.process_groups.rank_group import RankGroup, SingleProcess
from headway.torch_adapters.saved_state import BufferBackup

# SIGTERM and SIGUSR1: the machine is about to be taken away.

# The handler only stores the signal; the guard reads it between two steps, when a snapshot is
# complete. A second signal, and the first one in a run that hangs, goes to the handler that was
# installed before the guard's.

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))


class PreemptionSignals:
    """Listens for the signals from `__init__` to `close`; does nothing outside the main thread.

    The handlers hold only a weak reference: a guard that is never closed can still be collected.
    """

    def __init__(self, on_signal: Callable[[], None] = lambda: None) -> None:
        """`on_signal` is called at each signal, inside the handler."""
        self.asked: int | None = None
        """The number of the first signal received."""
        self._on_signal = on_signal
        self._before: dict[int, Any] = {}
        if threading.current_thread() is not threading.main_thread():
            return
        listener, before = weakref.ref(self), self._before

        def note(number: int, frame: FrameType | None) -> None:
            alive = listener()
            if alive is not None:
                alive._note(number, frame)
            else:  # below the handler of a guard that was created later
                _call_earlier(before.get(number), number, frame)

        for number in SIGNALS:
            self._before[number] = signal.getsignal(number)
            signal.signal(number, note)
        self._stop = weakref.finalize(self, _stop_listening, dict(self._before), note)

    def close(self) -> None:
        """Install the earlier handlers again."""
        if self._before:
            self._stop()

    def pass_on(self) -> Callable[..., Any] | None:
        """The handler that was installed before, if it is the user's own."""
        handler = self._before.get(self.asked or 0)
        return handler if callable(handler) else None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._on_signal()
        if self.asked is None:
            self.asked = number
            if not run_hangs():  # otherwise the step never ends
                return
        _call_earlier(self._before.get(number), number, frame)


def _call_earlier(handler: Any, number: int, frame: FrameType | None) -> None:
    if not callable(handler):
        raise SystemExit(128 + number)
    handler(number, frame)


def _stop_listening(before: dict[int, Any], ours: Callable[..., Any]) -> None:
    for number, handler in before.items():
        # A handler installed since then stays. Only the main thread may change handlers.
        if signal.getsignal(number) is ours and handler is not None:
            with suppress(ValueError):
                signal.signal(number, handler)


class RecoveryManager:
    """Takes snapshots, rolls back, leaves on a signal, and resumes.

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
        """What can be done now about a bad step."""
        if verdict.poisoned:
            self.snapshotter.distrust(verdict.step)
        always = {Rung.SKIP, Rung.BACK_OFF, Rung.HALT}
        can = self.snapshotter.can_roll_back(verdict.step)
        return frozenset(always | {Rung.ROLL_BACK} if can else always)

    def before_first_step(self) -> None:
        """Keep the state that the run starts from, after whatever the user has loaded."""
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
            # The schedule belongs to the data, which continue from where they are.
            self.training.restore(snapshot.state, schedule=False)
            self._buffers.renew()

    def boundary(self, *, good: bool) -> None:
        """The loop's body is complete; `good`: its last step was."""
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
        """Only rank 0 reads the clock; the others learn of it with the next vote."""
        due = bool(self._every) and steps >= self._save_at and self.snapshotter.disk_is_due()
        if due:
            self._save_at = steps + self._every
        return due

    def _doubt_unless(self, good: bool) -> None:
        """Act on a snapshot that is not good: a value is non-finite that no loss has shown."""
        if good:
            return
        if self._ranks is not None:  # all ranks decide about it at their next step
            self._inspection.state(self._counter.current)
            self._ranks.poisoned = True
        else:
            with allow_device_sync():
                self._repair()

    def _repair(self, rungs: frozenset[Rung] | None = None) -> str:
        """Replace a state that is not finite; what was changed, for people."""
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
        """The run is over: leave the last good state if the present one is bad, and say so.

        Not with several ranks: one of them may have ended for another reason, and cannot vote. Not
        if no step was guarded: then what is there now is not the guard's to replace.
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

    def asked_to_leave(self) -> int | None:
        """The signal received here or on another rank; the same answer on every rank."""
        number = None if self.preemption is None else self.preemption.asked
        ranks = self._ranks
        if ranks is None:
            return number
        if number is not None:
            ranks.ask_to_leave()
        return (number or signal.SIGTERM) if ranks.leaving else None

    def leave(self, number: int) -> None:
        """The process is about to end: write everything to disk."""
        saved = self.snapshotter.on_disk and self.snapshotter.save(self._counter.made)
        self.snapshotter.wait()
        self._recorder.event(self._counter.current, "preempted", {"signal": number, "saved": saved})
        self._recorder.interrupted(self._counter.current, number, saved=bool(saved))

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
        state, own = saved.state, saved.own
        self.training.restore(state, schedule=True)
        missing = sorted(state["others"].keys() - self.training.others.keys())
        if missing:
            self._notices.once(
                "resume-missing",
                "the snapshot contains state that this guard does not track: "
                f"{', '.join(missing)}. It is not restored, so the run will not continue exactly",
                shared=True,
            )
        if HOOKS in self.training.others:
            self._notices.once(
                "resume-hooks",
                "communication hooks start with an empty state, because their error feedback is "
                "stored by bucket, and a new process orders buckets differently. The run does not "
                "continue bit for bit",
                shared=True,
            )
        ranks = self.agreement.count
        self._guard_state.load_state_dict(own["guard"])
        if saved.is_own:
            rng.restore(own["rng"])
        if saved.world_size == ranks > 2:  # the sum of two numbers has no order
            obstacle = bucket_order.restore(self.training.models, own.get("buckets", ()))
            if obstacle:
                self._notices.once(
                    "resume-buckets",
                    f"DistributedDataParallel with {obstacle} chooses the order of its buckets "
                    "again, so the first step may differ in the last bits from an uninterrupted "
                    "run. Everything else is exact",
                    shared=True,
                )
        if saved.world_size != ranks:
            self._notices.once(
                "resume-ranks",
                f"the snapshot was written by {saved.world_size} ranks, but this run has {ranks}: "
                "weights, moments and the data position are restored; new ranks start with new "
                "random numbers",
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
        """The loop has reached its position: undo what the way there has changed."""
        self.training.restore(saved.state, schedule=True)
        if saved.is_own:
            rng.restore(saved.own["rng"])
        self._buffers.renew()

    def _own(self) -> dict[str, Any]:
        return {
            "rng": rng.capture(),
            "journey": self.data_position.state_dict(),
            "guard": self._guard_state.state_dict(),
            "buckets": bucket_order.capture(self.training.models)
            if self.agreement.count > 1
            else [],
        }
