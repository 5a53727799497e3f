from __future__ import annotations

from headway.checks.checkpoints._shared import CheckpointProblemCheck
from headway.core.check import Needs
from headway.core.findings import Severity
from headway.core.records import EventRecord


class UnreadableCheckpoint(CheckpointProblemCheck):
    """A checkpoint cannot be read: truncated, incomplete, or inconsistent with its index.

    ## What it checks
    The structure of every checkpoint: archives, headers, indexes, shards, and that the bytes of
    every tensor are within its file.

    ## Why it matters
    A job that is killed while it saves leaves a file that looks like a checkpoint. This is noticed
    only when the run is to be resumed, when there may be nothing else left.

    ## How it is measured
    Sizes, offsets and lengths are compared with those of the file, and the names in an index with
    the existing shards.

    ## False alarms
    A checkpoint that is being written at this moment looks truncated: scan it again.

    ## What to do
    Use the previous checkpoint. Save under a temporary name and rename the file when it is
    complete, and keep at least two checkpoints.

    ## References
    Safetensors, "Format"; PyTorch, `torch.save`.
    """

    code = "HD702"
    name = "unreadable-checkpoint"
    severity = Severity.ERROR
    summary = "truncated, a missing shard, or an index that does not match"
    needs = Needs(
        kinds=(EventRecord,), events=("checkpoint", "unreadable-checkpoint"), checkpoints=1
    )
    explains = ()

    unsaid = "{} cannot be read"
    remedies = (
        "Use the previous checkpoint; `headway scan RUN --last-good` prints the last good one.",
        "Save under a temporary name and rename the file when it is complete, and keep "
        "at least two checkpoints.",
    )
