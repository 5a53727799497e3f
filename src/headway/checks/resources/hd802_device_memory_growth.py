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

SIGNAL = "device_allocated_bytes"


class DeviceMemoryGrowth(Check):
    """The memory allocated on the device rises without a plateau.

    ## What it checks
    The bytes that live tensors occupy on the device between steps, over the whole segment of the
    run.

    ## Why it matters
    Between two steps only weights, gradients, optimizer state and buffers need to exist, and they
    do not grow. Growth ends in an out-of-memory error, in an arbitrary step.

    ## How it is measured
    After a grace period the whole series (thinned, at most 256 points) is divided into eight
    blocks. It is growth if the median rises from every block to the next, no block adds less than
    40 % of the mean rise, the later blocks add at least 85 % of what the earlier ones did, and the
    total is more than 10 % and 64 MiB, over at least 300 steps. The recent half and quarter are
    judged too, for a leak that starts late, but only by what exceeds every earlier level. It is
    reported once, until half of it has been released. In a live run, once memory seems to grow, the
    reported line is the one that created most of the tensors that still existed twenty steps later.

    ## False alarms
    Optimizer state created in the first step, an allocator that warms up, unfreezing layers one
    after another and a jump at the first validation all end in a plateau and pass. A replay buffer
    that is filled on the device looks like a leak until it is full.

    ## What to do
    Look for tensors that outlive their step: losses summed or collected without `.item()` or
    `.detach()`, a recurrent state carried over with its graph, `retain_graph=True`, outputs kept
    for a metric. `torch.cuda.empty_cache()` releases only unused blocks, so it cannot fix this.

    ## References
    PyTorch, "Understanding CUDA Memory Usage"; PyTorch FAQ, "My model reports out of memory".
    """

    code = "HD802"
    name = "device-memory-growth"
    severity = Severity.ERROR
    summary = "memory allocated on the device rises without a plateau"
    needs = Needs(signals=(SIGNAL,), kinds=(StepRecord, EventRecord))
    explains = ()

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
            f"allocated device memory rose from {say_bytes(growth.before)} to "
            f"{say_bytes(growth.after)} over {growth.steps} steps, {say_bytes(growth.per_step)} "
            f"per step, and is still rising at the same rate: "
            f"{describe_growth(self.origin) or 'tensors outlive their step'}",
            where=allocation_where(self.origin, record.rank),
            remedies=[
                "Look for tensors that outlive their step: a loss summed or collected without "
                "`.item()` or `.detach()`, a recurrent state carried over with its graph, "
                "`retain_graph=True`.",
                "`torch.cuda.memory._record_memory_history()` and `_dump_snapshot()` show the "
                "line that allocated each tensor.",
            ],
            before=growth.before,
            after=growth.after,
            per_step=growth.per_step,
            since_step=int(growth.start),
        )
