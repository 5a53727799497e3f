from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.growth import Growth, GrowthRule
from headway.checks.resources._shared import (
    AllocationSite,
    SegmentGrowth,
    allocation_where,
    describe_growth,
    explains_growth_of,
    read_allocation_site,
)
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.numbers import say_bytes
from headway.core.records import EventRecord, Header, StepRecord

SIGNAL = "host_rss_bytes"


class HostMemoryGrowth(Check):
    """The memory of the process and its workers rises without a plateau.

    ## What it checks
    The resident memory of the training process with its children (loader workers), over the whole
    segment of the run.

    ## Why it matters
    The kernel kills the process when memory runs out, without a traceback and often after many
    hours. With workers, only a worker may be killed, and the run hangs or fails far from the cause.

    ## How it is measured
    After a grace period the whole series (thinned, at most 256 points) is divided into eight
    blocks. It is growth if the median rises from every block to the next, no block adds less than
    40 % of the mean rise, the later blocks add at least 85 % of what the earlier ones did, and the
    total is more than 10 % and 64 MiB, over at least 300 steps. The recent half and quarter are
    judged too, for a leak that starts late, but only by what exceeds every earlier level. It is
    reported once, until half of it has been released. In a live run allocations are traced for
    thirty steps once memory seems to grow: the reported line allocated most of the memory that was
    still there.

    ## False alarms
    Caches and allocators that fill up slow down, a jump at the first validation stays, garbage
    collection gives a saw-tooth: none of them is reported. Some cases cannot be distinguished from
    a leak until they end: a replay buffer that is being filled, predictions collected over a very
    long first epoch, and pages of a memory-mapped dataset that are read for the first time.

    ## What to do
    Look for what is retained from step to step. In the main process: losses or outputs appended to
    a list without `.item()` or `.detach()`, metrics that are never reset, a logger that buffers. In
    workers: a dataset with many Python objects, which forked workers copy page by page when they
    access them. `torch.cuda.empty_cache()` has no effect on host memory.

    ## References
    pytorch/pytorch#13246 (copy-on-write in loader workers); google/brax#152.
    """

    code = "HD801"
    name = "host-memory-growth"
    severity = Severity.ERROR
    summary = "memory of the process and its workers rises without a plateau"
    needs = Needs(signals=(SIGNAL,), kinds=(StepRecord, EventRecord))
    explains = ("HD804",)

    @dataclass(frozen=True)
    class Limits(GrowthRule):
        ratio: float = 1.1
        amount: float = 64 * 2**20

    def start(self) -> None:
        self.growth = SegmentGrowth()
        self.origin: AllocationSite = {}

    def begin(self, header: Header) -> None:
        self.growth.begin(header, SIGNAL, segments=4)

    def observe(self, record: StepRecord | EventRecord) -> Iterable[Finding]:
        if isinstance(record, EventRecord):
            if explains_growth_of(record, SIGNAL):
                self.origin = read_allocation_site(record)
            return
        level = record.values.get(SIGNAL)
        if level is None or record.held:
            return
        growth = self.growth.admit(record, level, self.limits)
        if growth is not None:
            yield self._finding(record, growth)

    def finish(self) -> Iterable[Finding]:
        for record, growth in self.growth.at_the_end(self.limits):
            yield self._finding(record, growth)

    def _finding(self, record: StepRecord, growth: Growth) -> Finding:
        return self.find(
            record,
            f"host memory rose from {say_bytes(growth.before)} to {say_bytes(growth.after)} over "
            f"{growth.steps} steps, {say_bytes(growth.per_step)} per step, and is still rising "
            f"at the same rate: {describe_growth(self.origin) or 'every step retains memory'}",
            where=allocation_where(self.origin, record.rank),
            remedies=[
                "Look for what outlives a step: a loss or output appended to a list without "
                "`.item()` or `.detach()`, a metric that is never reset; compare two "
                "`tracemalloc` snapshots.",
                "If the workers grow (num_workers=0 stops it), store the index of the dataset in "
                "one numpy array or tensor instead of many Python objects.",
            ],
            before=growth.before,
            after=growth.after,
            per_step=growth.per_step,
            since_step=int(growth.start),
        )
