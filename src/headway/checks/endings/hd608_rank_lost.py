from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from typing import Any

from headway.core.check import Check, Needs
from headway.core.ending_facts import (
    CRASH,
    DEVICE_ASSERT,
    END,
    ENDING,
    INTERRUPTED,
    KILLED,
    LOADER_FAILED,
    OUT_OF_MEMORY,
    RANK_LOST,
    EndFacts,
)
from headway.core.facts import Facts, Place, say_list
from headway.core.findings import Finding, Severity, Where
from headway.core.hang_facts import RankLostFacts, say_place
from headway.core.records import EventRecord, Moment, record_at

SCAN = "scan"
"""Every rank of the first 64 writes this event at its first batch."""
UNEVEN = "uneven"
"""Under `model.join()` ranks make different numbers of steps."""
_FAILURES = {
    CRASH: "crashed",
    KILLED: "was killed",
    OUT_OF_MEMORY: "ran out of memory",
    DEVICE_ASSERT: "lost its device",
    LOADER_FAILED: "failed to load data",
}


class RankLost(Check):
    """A rank died or exited early, and the others could not continue.

    ## What it checks
    Whether a run of several ranks ended because one of them did: it raised an exception, was
    killed, ended after fewer steps than the others, or left no record of its end although others
    did. It names the rank and why it ended.

    ## Why it matters
    The surviving ranks fail with "Connection closed by peer" or a timeout, often minutes later and
    in much longer logs. Their messages name a line that is not at fault.

    ## How it is measured
    Every rank records how it ended. A rank whose collective fails looks for the process of each
    other rank and for the reason that it left; `headway diagnose` compares the records of all
    ranks.

    ## False alarms
    A rank that fails after the others have finished is not lost, only crashed (HD911). Under `with
    model.join():` ranks may take different numbers of steps. An exception that all ranks raise is a
    crash of the script.

    ## What to do
    Look at the named rank first; the errors of the other ranks are a consequence. If it was killed,
    see HD913 and HD809. If the ranks took different numbers of steps, give each the same number of
    batches.

    ## References
    PyTorch, `torchrun` (fault-tolerant and elastic launch).
    """

    code = "HD608"
    name = "rank-lost"
    severity = Severity.ERROR
    summary = "a rank died or exited early; the others could not continue"
    needs = Needs(
        signals=(ENDING,),
        kinds=(EventRecord,),
        events=(RANK_LOST, *_FAILURES, INTERRUPTED, END, SCAN, UNEVEN),
    )
    explains = ("HD914", "HD915")
    ends_run = True

    def start(self) -> None:
        self.seen: set[int] = set()
        self.failed: dict[int, dict[str, Any]] = {}
        """What each rank that failed by itself recorded: text, step and place."""
        self.lost: dict[int, str] = {}
        """The ranks that another rank has lost, with the reason it knew."""
        self.victims: dict[int, dict[str, Any]] = {}
        """The ranks that lost another one: where, and what torch said."""
        self.ended: dict[int, tuple[int, str]] = {}
        """Steps and status of every rank that recorded its end."""
        self.uneven = False
        self.segment = -1
        self.moment: Moment | None = None
        """The first sign of trouble."""

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        if record.segment != self.segment:  # the run was started again
            yield from self.finish()
            uneven = self.uneven
            self.start()
            self.segment, self.uneven = record.segment, uneven
        self._note(record)

    def _note(self, record: EventRecord) -> None:
        rank, kind = record.rank, record.kind
        self.seen.add(rank)
        if kind == END:
            facts = EndFacts.of_event(record)
            steps = facts.steps if facts.steps is not None else record.step
            self.ended[rank] = (steps, facts.status or "finished")
        elif kind == RANK_LOST:
            lost = RankLostFacts.of_event(record)
            self.victims[rank] = {"error": lost.error, "place": record.data.get("place") or {}}
            for item in lost.lost:
                self.lost.setdefault(item.number, item.why or "died")
        elif kind in _FAILURES and not Facts.of(record).flag("survived"):
            self.failed.setdefault(rank, _describe_failure(record))
        self.uneven = self.uneven or kind == UNEVEN
        if kind in (RANK_LOST, *_FAILURES) and self.moment is None:
            # After the failure that it is a consequence of.
            self.moment = (record.segment, record.seq + 1, record.step, record.rank)

    def finish(self) -> Iterable[Finding]:
        size = self.context.header.world_size
        if self.victims:  # ranks that average their gradients themselves each seem to be alone
            size = max(size, len({*self.seen, *self.lost, *self.victims}))
        lost = self._find_lost(size) if size > 1 else {}
        if not lost:
            return
        first = min(lost, key=lambda rank: (rank not in self.failed, rank))
        own = self.failed.get(first, {})
        moment = self.moment or (max(self.segment, 0), 1 << 40, self._steps(first), first)
        where = Place.read(own.get("place")).where() if own else Where()
        yield self.find(
            record_at((moment[0], moment[1], own.get("step", moment[2]), first)),
            self._message(lost, first),
            where=Where(where.file, where.line, where.function, rank=first),
            remedies=self._remedies(lost, first),
            lost={str(rank): why for rank, why in sorted(lost.items())},
            noticed_by=sorted(self.victims),
            steps={str(rank): steps for rank, (steps, _) in sorted(self.ended.items())},
        )

    def _find_lost(self, size: int) -> dict[int, str]:
        """The ranks that the others lost, with the reason."""
        failed = {rank: item["text"] for rank, item in self.failed.items()}
        if self.victims:
            own = {rank: why for rank, why in failed.items() if rank not in self.victims}
            named = {rank: why for rank, why in self.lost.items() if rank not in self.victims}
            return {**named, **own} or self._silent() or self._early()
        finished = [rank for rank, (_, status) in self.ended.items() if status == "finished"]
        if failed and not finished and len(failed) < size and len(self.seen) > 1:
            return failed
        return {} if failed else self._silent() or self._early()

    def _silent(self) -> dict[int, str]:
        """Ranks without a record of their end, where others ended by themselves."""
        if all(status == "interrupted" for _, status in self.ended.values()):
            return {}  # whoever stopped the run may have killed them
        why = "left no record of its end"
        return {rank: why for rank in self.seen if rank not in self.ended}

    def _early(self) -> dict[int, str]:
        """Ranks that finished after fewer steps than the others."""
        steps = {rank: count for rank, (count, _) in self.ended.items()}
        stopped = any(status != "finished" for _, status in self.ended.values())
        if self.uneven or len(set(steps.values())) < 2 or (stopped and not self.victims):
            return {}  # ranks that are stopped from outside stop at different steps
        most = max(steps.values())
        return {
            rank: f"stopped after {count} steps, {most - count} fewer than the others"
            for rank, count in steps.items()
            if count < most
        }

    def _steps(self, rank: int) -> int:
        known = self.ended.get(rank) or max(self.ended.values(), default=(0, ""))
        return known[0]

    def _message(self, lost: Mapping[int, str], first: int) -> str:
        own = self.failed.get(first, {})
        place = Place.read(own.get("place"))
        at = f" at {say_place(place)}" if place.file else ""
        step = f" in step {own['step']}" if "step" in own else ""
        message = f"rank {first} {lost[first]}{at}{step}"
        if len(lost) > 1:
            others = say_list([f"rank {rank}" for rank in sorted(lost) if rank != first])
            message += f"; also lost: {others}"
        victim = next((rank for rank in sorted(self.victims) if rank not in lost), None)
        if victim is not None:
            where = Place.read(self.victims[victim]["place"])
            waited = f" at {say_place(where)}" if where.file else ""
            message += f". Rank {victim} could not continue without it{waited}"
        return message

    def _remedies(self, lost: Mapping[int, str], first: int) -> list[str]:
        if "stopped after" in lost[first] or "in good order" in lost[first]:
            return [
                "Give every rank the same number of batches: `drop_last=True`, a "
                "`DistributedSampler`, or `with model.join():`."
            ]
        if first in self.failed:
            return [f"Fix the failure of rank {first}; the others failed because of it."]
        return [f"Check the last output of rank {first} and the log of its host."]


def _describe_failure(record: EventRecord) -> dict[str, Any]:
    facts = Facts.of(record)
    text = _FAILURES[record.kind]
    number = facts.whole("signal")
    if number is not None and record.kind == KILLED:
        text += f" ({_signal_name(number)})"
    error = facts.text("error")
    if error:
        text += f" ({error})"
    return {"text": text, "step": record.step, "place": dict(facts.mapping("place"))}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
