from __future__ import annotations

from collections.abc import Iterable, Sequence

from headway.checks.endings._shared import HangCheck
from headway.core.check import Needs
from headway.core.ending_facts import END, ENDING, HANG
from headway.core.findings import Finding, Severity, Where
from headway.core.hang_facts import (
    WORKER,
    FailedThread,
    HangFacts,
    RankPlace,
    say_positions,
)
from headway.core.records import EventRecord, record_at


class RunHung(HangCheck):
    """The run stopped making progress and did not continue.

    ## What it checks
    Whether the time without progress is far longer than the run's own longest pause, on all ranks
    at once. It names the line at which every rank waits and, where ranks differ, the rank that the
    others wait for. If the training waits for another thread and an exception has ended one, it
    names that exception and its line.

    ## Why it matters
    A hang raises no error: schedulers and restart policies see a healthy process and the GPUs stay
    reserved until someone notices. PyTorch's own timeout ends the waiting ranks after 10 or 30
    minutes and names only the collective in which they waited.

    ## How it is measured
    A thread in each rank checks once a second. Batches, backward passes and steps are progress, and
    so are processor time, disk traffic and worker processes that compute. The limit is three times
    the longest pause of the run plus 3 seconds, and at least 6 seconds. Then every rank writes its
    stacks and its latest collectives into the run directory, and they are compared.

    ## False alarms
    A long evaluation, a save or a compilation uses the processor or the disk and is not a hang.
    Ranks that wait for a rank that works do not hang either. Before the third step the limit is 5
    minutes. Time in a debugger, in a suspended process or after the loop does not count. If the run
    continues, the pause was not a hang and nothing is reported.

    ## What to do
    Look at the line of the named rank. `Policy(hang_timeout=600)` ends a hung run with exit status
    124, so that `torchrun --max-restarts`, Slurm or Kubernetes can start it again.

    ## References
    PyTorch, "Flight Recorder for Debugging Stuck Jobs".
    """

    code = "HD914"
    name = "run-hung"
    severity = Severity.ERROR
    summary = "no progress for far longer than the run's longest pause"
    needs = Needs(signals=(ENDING,), kinds=(EventRecord,), events=(HANG, END))
    explains = ("HD911", "HD913", "HD915")
    ends_run = True

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        if self.is_over(record):
            return
        facts = HangFacts.of_event(record)
        if facts.timed_out and self.moment is None and self.data:
            return  # reported by another rank already
        self.keep(record)
        if facts.timed_out:
            yield from self.finish()
            self.moment = None

    def finish(self) -> Iterable[Finding]:
        if self.moment is None:
            return
        facts = HangFacts.read(self.data)
        culprit = facts.culprit
        several = len(facts.ranks) > 1
        where = culprit.place.where() if culprit is not None else Where()
        failed = culprit.failed_threads if culprit is not None else []
        if failed and failed[-1].place.file:
            where = failed[-1].place.where()
        rank = culprit.rank if culprit is not None and several else None
        ended = "; the process was ended by hang_timeout" if facts.timed_out else ""
        subject = "no rank made progress" if several else "no progress"
        usual = (
            f" (longest pause before: {facts.usual_s:.0f} s)" if facts.usual_s is not None else ""
        )
        position = say_positions(facts.ranks) if several else _say_alone(culprit)
        yield self.find(
            record_at(self.moment),
            f"{subject} for {facts.idle_s or 0:.0f} s{usual}{ended}{_say_failed(failed)}"
            f"{_capital(position)}",
            where=Where(where.file, where.line, where.function, rank=rank),
            remedies=_remedies(facts, culprit),
            idle_s=facts.idle_s,
            usual_s=facts.usual_s,
            ranks=[str(item) for item in facts.ranks],
            suspects=[int(number) for number in facts.suspects],
            stack=culprit.stack if culprit is not None else [],
            threads=culprit.threads if culprit is not None else [],
            failed_threads=[str(item) for item in failed] or None,
            not_heard=facts.unheard,
        )


def _say_failed(threads: Sequence[FailedThread]) -> str:
    return f"; {threads[-1]}" if threads else ""


def _say_alone(culprit: RankPlace | None) -> str:
    """Where the only rank that is known waits; empty if none is."""
    text = "" if culprit is None else str(culprit)
    return text.replace("rank 0 ", "the training ", 1)


def _capital(sentence: str) -> str:
    return f". {sentence[:1].upper()}{sentence[1:]}" if sentence else ""


def _remedies(facts: HangFacts, culprit: RankPlace | None) -> list[str]:
    found = []
    if culprit is not None and culprit.failed_threads:
        found.append(
            "Catch the exception in the thread and pass it to the training, for example through "
            "the queue: a thread that dies ends nothing else."
        )
    elif culprit is not None and culprit.within == WORKER:
        found.append(
            "A DataLoader worker is stuck: look at what the data set reads, pass `timeout=60` to "
            "the DataLoader to get an error instead, and try `num_workers=0`."
        )
    elif culprit is not None and culprit.number in facts.suspects and len(facts.ranks) > 1:
        found.append(f"Find out why rank {culprit.number} does not get past this line.")
    elif culprit is not None and culprit.waits and len(facts.ranks) == 1:
        found.append(
            "Look at the logs of the other ranks: one of them may not have entered this collective."
        )
    elif culprit is not None and culprit.waits:
        found.append(
            "All ranks wait in the same collective: look for a network or device fault, with "
            "`TORCH_DISTRIBUTED_DEBUG=DETAIL` and the backend's own log."
        )
    if not facts.timed_out:
        found.append(
            "`Policy(hang_timeout=600)` ends a hung run with status 124, so that a launcher can "
            "start it again."
        )
    return found
