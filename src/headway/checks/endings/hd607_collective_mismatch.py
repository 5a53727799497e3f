from __future__ import annotations

from collections.abc import Iterable

from headway.checks.endings._shared import HangCheck
from headway.core.check import Needs
from headway.core.ending_facts import COLLECTIVE_MISMATCH, END, ENDING, HANG
from headway.core.findings import Finding, Severity, Where
from headway.core.hang_facts import MismatchFacts, say_place, say_positions
from headway.core.records import EventRecord, record_at


class CollectiveMismatch(HangCheck):
    """Ranks wait in different collectives, or in one with different shapes.

    ## What it checks
    Whether the ranks of a run that hangs or lost a rank are in collectives that do not belong
    together: another operation, another shape, another line, or another position in the sequence of
    calls. It names the rank, the collective and the line, and the first call that only one rank
    made where PyTorch's flight recorder shows it.

    ## Why it matters
    A collective completes when every rank calls it. One call too many on one rank (a metric that
    only rank 0 reduces, one batch more, a branch that depends on the data) shifts all later calls
    by one: the run hangs, aborts, or sums numbers that do not belong together.

    ## How it is measured
    Every rank reports its stack and its latest collectives: operation, shape, sequence number and
    line. From the first difference on, the sequences are compared with one of them shifted; what
    then agrees shows which rank has the additional call.

    ## False alarms
    Ranks that call the same collective from different lines (`if rank == 0: … else: …`) agree in
    everything that follows and are not reported.

    ## What to do
    Call the collective on every rank, or on none. Give every rank the same number of batches
    (`drop_last=True`, `DistributedSampler`) or use `with model.join():`.

    ## References
    PyTorch, "Flight Recorder for Debugging Stuck Jobs"; PyTorch, `torch.distributed` (collectives).
    """

    code = "HD607"
    name = "collective-mismatch"
    severity = Severity.ERROR
    summary = "ranks wait in different collectives"
    needs = Needs(signals=(ENDING,), kinds=(EventRecord,), events=(COLLECTIVE_MISMATCH, HANG, END))
    explains = ("HD914", "HD911", "HD913", "HD608", "HD915")
    ends_run = True

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        if not self.is_over(record) and record.kind == COLLECTIVE_MISMATCH:
            self.keep(record)
        return ()

    def finish(self) -> Iterable[Finding]:
        if self.moment is None:
            return
        facts = MismatchFacts.read(self.data)
        rank = facts.rank or 0
        own = next((item for item in facts.ranks if item.number == rank), None)
        extra = facts.extra if facts.extra.op else None
        place = extra.place if extra is not None else own.place if own is not None else None
        where = place.where() if place is not None else Where()
        message = f"the ranks are in different collectives: {say_positions(facts.ranks)}"
        if extra is not None:
            message += f". Only rank {rank} called {extra} at {say_place(extra.place)}"
        steps = {item.number: item.step for item in facts.ranks if item.step is not None}
        yield self.find(
            record_at(self.moment),
            message,
            where=Where(where.file, where.line, where.function, rank=rank),
            remedies=_remedies(steps),
            ranks=[str(item) for item in facts.ranks],
            steps=steps,
            number=extra.number if extra is not None else None,
        )


def _remedies(steps: dict[int, int]) -> list[str]:
    found = ["Call this collective on every rank, or on none."]
    if len(set(steps.values())) > 1:
        counts = ", ".join(f"rank {rank}: {count}" for rank, count in sorted(steps.items())[:8])
        found.append(
            f"The ranks took different numbers of steps ({counts}): give each the same number of "
            "batches, with `drop_last=True` or a `DistributedSampler`, or use `model.join()`."
        )
    return found
