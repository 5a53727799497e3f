from __future__ import annotations

import signal
from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.ending_facts import ENDING, INTERRUPTED, InterruptedFacts
from headway.core.findings import Finding, Severity
from headway.core.records import EventRecord

REASONS = {
    "SIGINT": "Ctrl-C",
    "SIGTERM": "a scheduler, a container or `kill`",
    "SIGUSR1": "a scheduler's warning before its time limit",
    "SIGHUP": "the terminal was closed",
}
"""Who sends a signal."""


class Interrupted(Check):
    """The run was stopped by the user or by the scheduler.

    ## What it checks
    Ctrl-C (SIGINT), and signals with which schedulers end a job: SIGTERM, SIGUSR1, SIGHUP.

    ## Why it matters
    An interrupted run is neither healthy nor failed: it did not reach its end, but the
    script is not at fault. Information only.

    ## How it is measured
    The exception or the signal that ended the run, with the step and the line it stopped at.

    ## False alarms
    An exception that the script catches, for example to save and continue, is not reported.

    ## What to do
    Nothing, if you stopped it. If a snapshot was written, `guard.resume()` continues from it. If a
    scheduler stopped it, ask for more time or run it again with the same run directory.

    ## References
    Slurm, "Job preemption"; Kubernetes, "Pod termination".
    """

    code = "HD915"
    name = "interrupted"
    severity = Severity.INFO
    summary = "stopped by the user or the scheduler"
    needs = Needs(signals=(ENDING,), kinds=(EventRecord,), events=(INTERRUPTED,))
    explains = ()
    once = "segment"

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        facts = InterruptedFacts.of_event(record)
        name = _name(facts.signal)
        reason = f" ({REASONS[name]})" if name in REASONS else ""
        saved = {True: "; a snapshot was saved", False: "; no snapshot could be saved"}
        yield self.find(
            record,
            f"the run was stopped{f' by {name}' if name else ''}{reason} at step {record.step}"
            f"{'' if facts.saved is None else saved[facts.saved]}",
            where=facts.place.where(rank=record.rank),
            remedies=["Continue from the snapshot with `guard.resume()`."] if facts.saved else [],
            signal=name or None,
            phase=facts.phase,
        )


def _name(number: int | None) -> str:
    try:
        return "" if number is None else signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
