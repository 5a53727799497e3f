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
    The device is paid for and idle. A faster loader is then the most effective way to speed up the
    run.

    ## How it is measured
    The medians over 20 steps, after the first 5: on CUDA, the wait is as long as the rest of the
    step and at least 20 ms; elsewhere, 5 times as long and at least 50 ms.

    ## False alarms
    A first pass that fills a cache is slow only once. On the CPU, loader and training share the
    cores, so only a much longer wait counts.

    ## What to do
    Set `num_workers`, `persistent_workers=True`, `pin_memory=True` and a larger `prefetch_factor`;
    decode and resize once and store the result; move batched work to the device.

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
        """Ratio of the wait to the rest of the step, without CUDA."""
        wait_s: float = 0.05
        device_ratio: float = 1.0
        """The same on CUDA."""
        device_wait_s: float = 0.02

    def start(self) -> None:
        self.waits = Window(self.limits.window)
        self.rests = Window(self.limits.window)
        self.seen = 0
        self.on_device = False
        self.since: Moment | None = None
        self.reported = False

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        values = record.values
        self.on_device = self.on_device or "device_allocated_bytes" in values
        wait, step = values.get("loader_wait_s"), values.get("step_time_s")
        if wait is None or step is None or not 0 <= wait <= step:
            return
        self.seen += 1
        if self.seen <= SKIPPED or self.reported:
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
        self.reported = True
        yield self.find(
            record_at(since),
            f"each step waits {say(1000 * wait)} ms for its batch and takes {say(1000 * rest)} "
            f"ms for the rest (limit {say(ratio)} times): the loader is the bottleneck",
            remedies=[
                "Add workers to the loader (`num_workers`, `persistent_workers=True`) and let it "
                "prefetch; compute expensive transforms once and store the result.",
            ],
            wait_s=wait,
            rest_s=rest,
            limit=ratio,
        )
