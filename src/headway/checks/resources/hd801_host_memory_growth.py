from __future__ import annotations

from headway.checks.resources._shared import MemoryGrowthCheck
from headway.core.check import Needs
from headway.core.findings import Severity
from headway.core.records import EventRecord, StepRecord


class HostMemoryGrowth(MemoryGrowthCheck):
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
    needs = Needs(signals=("host_rss_bytes",), kinds=(StepRecord, EventRecord))
    explains = ("HD804", "HD809")

    memory = "host memory"
    unknown = "every step retains memory"
    remedies = (
        "Look for what outlives a step: a loss or output appended to a list without "
        "`.item()` or `.detach()`, a metric that is never reset; compare two "
        "`tracemalloc` snapshots.",
        "If the workers grow (num_workers=0 stops it), store the index of the dataset in "
        "one numpy array or tensor instead of many Python objects.",
    )
