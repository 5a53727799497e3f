"""What keeps a run alive beyond the single step: snapshots, rolling back, leaving, resuming.

Everything here happens between two steps, when the loop's body is complete: scheduler, scaler and
EMA included.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headway.live.holdings import Holdings
from headway.live.journey import Journey
from headway.live.keeper import Keeper, read_newest
from headway.live.notices import Notices
from headway.live.preemption import Preemption
from headway.live.snapshots import Snapshot, Snapshots
from headway.live.together import Alone
from headway.live.waiting import may_wait
from headway.policy import Rung, Verdict
from headway.torch_tools import rng

if TYPE_CHECKING:
    from headway.live.session import Session


class Survival:
    """The long-term half of a session."""

    def __init__(
        self,
        session: Session,
        holdings: Holdings,
        settings: Snapshots,
        *,
        run_dir: Path | None,
        notices: Notices,
        together: Alone,
    ) -> None:
        self.journey = Journey()
        self._session = session
        self.holdings = holdings
        self._notices = notices
        self.together = together
        self.keeper = Keeper(
            holdings,
            settings,
            run_dir=run_dir,
            own=self._own,
            notices=notices,
            together=together,
        )
        listens = settings.on_signal and self.keeper.on_disk
        self.preemption = Preemption() if listens else None
        self._going_back: Snapshot | None = None
        self._every = settings.every
        self._save_at = settings.every

    def rungs(self, verdict: Verdict) -> frozenset[Rung]:
        """What can be done about a bad step now."""
        if verdict.poisoned:
            self.keeper.distrust(verdict.step)
        always = {Rung.SKIP, Rung.BACK_OFF, Rung.HALT}
        can = self.keeper.can_roll_back(verdict.step)
        return frozenset(always | {Rung.ROLL_BACK} if can else always)

    def before_first_step(self) -> None:
        """Whatever was loaded is loaded: this is what the run starts from."""
        self._doubt_unless(self.keeper.first(self._session.steps))

    # Rolling back.

    def roll_back(self, step: int, *, older: bool) -> None:
        """Return to the last good state at the next opportunity."""
        snapshot = self.keeper.last_good(step, older=older)
        self._going_back = snapshot
        self._session.recorder.event(
            step, "roll-back", {"to": snapshot.step, "lost": step + 1 - snapshot.step}
        )

    def after_step(self) -> None:
        """The optimizer has stepped: before anybody uses bad weights, they are replaced."""
        snapshot, self._going_back = self._going_back, None
        if snapshot is None:
            return
        with may_wait():
            # The schedule goes with the data, and the data go on.
            self.holdings.restore(snapshot.state, schedule=False)
            self._session.state_replaced()

    def boundary(self, *, good: bool) -> None:
        """The loop's body is complete; `good`: its last step was."""
        self.after_step()  # a verdict may have come when no optimizer stepped
        if good:
            steps, ranks = self._session.steps, self._session.ranks
            if ranks is not None and ranks.saving:
                ranks.saving = False
                self._doubt_unless(self.keeper.save(steps))
            else:
                self._doubt_unless(self.keeper.at_boundary(steps))
            if ranks is not None and ranks.rank == 0 and self._wants_to_save(steps):
                ranks.save_asked = True

    def _wants_to_save(self, steps: int) -> bool:
        """Rank 0 alone looks at the clock; the others hear of it with the next step."""
        due = bool(self._every) and steps >= self._save_at and self.keeper.disk_is_due()
        if due:
            self._save_at = steps + self._every
        return due

    def _doubt_unless(self, good: bool) -> None:
        """A snapshot was no good: something is non-finite that no loss has shown."""
        if good:
            return
        if self._session.ranks is not None:  # all ranks decide about it at their next step
            self._session.inspection.state(self._session.step)
            self._session.ranks.poisoned = True
        else:
            with may_wait():
                self._mend()

    def _mend(self, rungs: frozenset[Rung] | None = None) -> None:
        step = self._session.step
        names = self._session.inspection.state(step)
        if not names:
            self._mend_buffers(step)
        else:
            verdict = Verdict(step, poisoned=names)
            self._session.judge(verdict, self.rungs(verdict) if rungs is None else rungs)
            self.after_step()

    def _mend_buffers(self, step: int) -> None:
        """Statistics can be put back by themselves: nothing learned is lost."""
        names = self.keeper.spoiled_buffers()
        if names and self.keeper.can_roll_back(step):
            snapshot = self.keeper.last_good(step, older=False)
            self.holdings.restore_buffers(snapshot.state)
            self._session.state_replaced()
            self._session.recorder.event(step, "mended", {"buffers": names, "to": snapshot.step})

    def check_at_end(self) -> None:
        """The run is over: what it leaves behind is good, or the last that was.

        Not with several ranks: one of them may have ended for another reason, and not be asked.
        """
        if self.together.count == 1 and self.keeper.can_roll_back(self._session.step):
            self._mend(frozenset({Rung.ROLL_BACK}))

    # Leaving and coming back.

    def asked_to_leave(self) -> int | None:
        """The signal that came, here or to another rank; the same answer everywhere."""
        number = None if self.preemption is None else self.preemption.asked
        ranks = self._session.ranks
        if ranks is None:
            return number
        if number is not None:
            ranks.ask_to_leave()
        return (number or signal.SIGTERM) if ranks.leaving else None

    def leave(self, number: int) -> None:
        """The machine is about to be taken away: everything onto the disk."""
        saved = self.keeper.on_disk and self.keeper.save(self._session.steps)
        self.keeper.wait()
        self._session.recorder.event(
            self._session.step, "preempted", {"signal": number, "saved": saved}
        )

    def close(self) -> None:
        if self.preemption is not None:
            self.preemption.close()
        self.keeper.close()

    def resume(self, run_dir: Path) -> int:
        """Take up the newest whole snapshot of a run directory; the steps made before it."""
        found = read_newest(run_dir, self.holdings, self.together)
        if found is None:
            return 0
        steps, state, own = found
        self.holdings.restore(state, schedule=True)
        missing = sorted(state["others"].keys() - self.holdings.others.keys())
        if missing:
            self._notices.once(
                "resume-missing",
                f"the snapshot also holds {', '.join(missing)}, which this guard was not given: "
                "not restored, so the run will not go on exactly as it would have",
            )
        if own is None:
            self._notices.once(
                "resume-ranks", "there were fewer ranks then: this one starts with fresh randomness"
            )
        else:
            self._session.load_state_dict(own["guard"])
            rng.restore(own["rng"])
            self.journey.resume(own["journey"], lambda: self._arrived(state, own))
        self._session.state_replaced()
        self._session.recorder.event(steps, "resumed", {"steps": steps})
        return steps

    def put_in_place(self, state: Mapping[str, Any]) -> None:
        """The state an incident was captured in."""
        self.holdings.restore_for_replay(state)
        self._session.state_replaced()

    @torch.no_grad()
    def _arrived(self, state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """The loop is where it was: what the way here has changed is put right."""
        self.holdings.restore(state, schedule=True)
        rng.restore(own["rng"])
        self._session.state_replaced()

    def _own(self) -> dict[str, Any]:
        return {
            "rng": rng.capture(),
            "journey": self.journey.state_dict(),
            "guard": self._session.state_dict(),
        }
