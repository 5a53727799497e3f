from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.findings import Finding
from headway.core.numbers import say
from headway.core.records import Moment, StepRecord, moment_of, record_at
from headway.core.window import Window

SKIPPED = 5
"""First steps, in which workers start and caches fill."""


class DataStarved(Check):
    """Training waits for the loader longer than it computes.

    ## What it checks
    The time of a step that is spent waiting for the next batch, against the rest of it.

    ## Why it matters
    The device is paid for and idle. Nothing else makes a run so much faster as a loader that keeps
    up.

    ## How it is measured
    The medians over 20 steps, after the first 5: on CUDA, the wait is as long as the rest of the
    step and 20 ms or more; elsewhere 5 times as long and 50 ms or more.

    ## False alarms
    A first pass that fills a cache is slow only once. On the CPU loader and training share the
    cores, so only a wait that is far longer counts.

    ## What to do
    `num_workers`, `persistent_workers=True`, `pin_memory=True`, a larger `prefetch_factor`; decode
    and resize once and store the result; do on the device what can be done there in batches.

    ## References
    PyTorch performance tuning guide, "Enable asynchronous data loading and augmentation".
    """

    code = "HD805"
    name = "data-starved"
    summary = "the device waits for the loader"
    needs = Needs(signals=("loader_wait_s", "step_time_s"))
    explains = ()

    @dataclass(frozen=True)
    class Limits:
        window: int = 20
        ratio: float = 5.0
        """Wait over the rest of the step …"""
        wait_s: float = 0.05
        device_ratio: float = 1.0
        """… and on CUDA."""
        device_wait_s: float = 0.02

    def start(self) -> None:
        self.waits = Window(self.limits.window)
        self.rests = Window(self.limits.window)
        self.seen = 0
        self.on_device = False
        self.since: Moment | None = None
        self.told = False

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        values = record.values
        self.on_device = self.on_device or "device_allocated_bytes" in values
        wait, step = values.get("loader_wait_s"), values.get("step_time_s")
        if wait is None or step is None or not 0 <= wait <= step:
            return
        self.seen += 1
        if self.seen <= SKIPPED or self.told:
            return
        if self.since is None:
            self.since = moment_of(record)
        self.waits.push(wait)
        self.rests.push(step - wait)
        if self.waits.full:
            yield from self._judge(self.since)

    def _judge(self, since: Moment) -> Iterable[Finding]:
        limits, wait, rest = self.limits, self.waits.median, self.rests.median
        ratio = limits.device_ratio if self.on_device else limits.ratio
        least = limits.device_wait_s if self.on_device else limits.wait_s
        if wait < least or wait < ratio * rest:
            return
        self.told = True
        yield self.find(
            record_at(since),
            f"each step waits {say(1000 * wait)} ms for its batch and takes {say(1000 * rest)} ms "
            f"for the rest (limit {say(ratio)} times): the loader sets the pace",
            remedies=[
                "Give the loader workers (`num_workers`, `persistent_workers=True`) and let it "
                "read ahead; do once, and store, what it does for every sample.",
            ],
            wait_s=wait,
            rest_s=rest,
            limit=ratio,
        )
