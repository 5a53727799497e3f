from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.optimizer_facts import ScheduleResumeFacts
from headway.core.records import SetupRecord


class ScheduleOffAtResume(Check):
    """After a resume the learning-rate schedule does not match the steps taken.

    ## What it checks
    Schedules whose state, or whose optimizer's state, was loaded: their position in the
    checkpoint, and their position at the first update after it.

    ## Why it matters
    If it advances twice, the rate is too low for the rest of the run; if it restarts, the run
    continues with a different schedule than planned. Neither raises an error, and the loss only
    falls more slowly.

    ## How it is measured
    The schedule was advanced at least twice between the loading and the first update, and is
    beyond the loaded position, or the rate is less than 0.7 of the loaded one. Or the training
    continues from a checkpoint (its weights and the state of its optimizer were loaded) that
    contains a state of this kind of schedule, and the schedule is at its beginning: a warning
    as long as the rate is the loaded one, an error if it is lower. A warning as well if the
    checkpoint has no state of the schedule, but was saved under one with the same base rate, and
    the loaded rate is not the one that the schedule begins with. HD406 reports a rate that
    jumps up.

    ## False alarms
    A new schedule that is advanced to the saved position, one step after loading, and rates that do
    not depend on the position are not reported. A new schedule for another stage of training is
    not reported if it has another base rate, or if the weights of the checkpoint are not loaded.

    ## What to do
    Load the schedule's state and do not advance it by hand: `scheduler.load_state_dict(…)` restores
    the position, and the optimizer's state already contains the rate.

    ## References
    THUDM/slime#1547.
    """

    code = "HD417"
    name = "schedule-off-at-resume"
    severity = Severity.ERROR
    summary = "after a resume the schedule advances twice or restarts"
    needs = Needs(kinds=(SetupRecord,), topics=("schedule-resume",))
    explains = ("HD404", "HD105")
    once = "segment"

    @dataclass(frozen=True)
    class Limits:
        advanced: int = 2
        """Steps of the schedule before the first update."""
        rate: float = 0.7
        """Share of the loaded rate below which a schedule that was not loaded is too far on."""
        same: float = 0.01
        """Relative difference of two rates that are the same."""

    def _rate_of_another_position(self, facts: ScheduleResumeFacts) -> bool:
        """A schedule that was not loaded, and a loaded rate that is not the one it begins with."""
        own, loaded, same = facts.own_rate, facts.restored_rate, self.limits.same
        if own is None or loaded is None or facts.rate is None or facts.restored:
            return False
        begins = not facts.advanced and (facts.stands_at or 0) <= 1
        kept = abs(facts.rate - loaded) <= same * loaded
        return bool(facts.continues and begins and kept and abs(own - loaded) > same * loaded)

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts, limits = ScheduleResumeFacts.of(record), self.limits
        stands, saved, advanced = facts.stands_at, facts.saved_at, facts.advanced or 0
        rate, before = facts.rate, facts.restored_rate
        if stands is None:
            return
        name = facts.schedule or "the schedule"
        share, rates = None, ""
        if rate is not None and before is not None and before > 0:
            share, rates = rate / before, f" (rate {say(rate)}, loaded {say(before)})"
        if advanced >= limits.advanced and facts.restored and saved is not None:
            if stands - saved < limits.advanced or (
                share is not None and abs(share - 1) <= limits.same
            ):
                return
            message = (
                f"{name} was loaded at position {saved} and then advanced {advanced} times before "
                f"the first update: it is at position {stands}"
            )
        elif advanced >= limits.advanced and share is not None and share < limits.rate:
            message = (
                f"{name} was advanced {advanced} times after the optimizer's state was loaded, "
                f"which already contains the rate of that position: the rate is {say(share)} of it"
            )
        elif share is not None and share > 1 + limits.same:
            return  # a rate that jumps up is a finding of its own
        elif (
            not facts.restored
            and facts.continues
            and (saved or 0) >= limits.advanced
            and stands <= 1
        ):
            message = (
                f"{name} restarts at position {stands} although the optimizer was resumed; the "
                f"checkpoint has its state, at position {saved}"
            )
        elif self._rate_of_another_position(facts):
            message = (
                f"{name} restarts at position {stands}, where its rate is "
                f"{say(facts.own_rate or 0.0)}, although the optimizer was resumed with the rate "
                f"of a later position, {say(before or 0.0)}"
            )
            rates = ""
        else:
            return
        again = stands <= 1
        yield self.find(
            record,
            message + rates,
            subject=name,
            severity=Severity.WARNING if again and (share or 1) >= 1 - limits.same else None,
            where=facts.locate(rank=record.rank),
            remedies=[
                "Load the state of the schedule."
                if again
                else "Remove the line that advances the schedule: loading has restored it."
            ],
            saved_at=saved,
            stands_at=stands,
            advanced=advanced,
            rate=rate,
            restored_rate=before,
        )
