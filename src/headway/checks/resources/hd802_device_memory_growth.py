from __future__ import annotations

from headway.checks.resources._shared import MemoryGrowthCheck
from headway.core.check import Needs
from headway.core.findings import Severity
from headway.core.records import EventRecord, StepRecord


class DeviceMemoryGrowth(MemoryGrowthCheck):
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
    needs = Needs(signals=("device_allocated_bytes",), kinds=(StepRecord, EventRecord))
    explains = ("HD808",)

    memory = "allocated device memory"
    unknown = "tensors outlive their step"
    remedies = (
        "Look for tensors that outlive their step: a loss summed or collected without "
        "`.item()` or `.detach()`, a recurrent state carried over with its graph, "
        "`retain_graph=True`.",
        "`torch.cuda.memory._record_memory_history()` and `_dump_snapshot()` show the "
        "line that allocated each tensor.",
    )
