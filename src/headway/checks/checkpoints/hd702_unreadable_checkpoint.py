from __future__ import annotations

from collections.abc import Iterable

from headway.checks.checkpoints._shared import CheckpointProblem
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity, Where
from headway.core.records import EventRecord

KIND = "unreadable-checkpoint"


class UnreadableCheckpoint(Check):
    """A checkpoint cannot be read: torn, incomplete, or not what its index says.

    ## What it checks
    The structure of every checkpoint: archives, headers, indexes, shards, and that every tensor's
    bytes lie within its file.

    ## Why it matters
    A job that is killed while it saves leaves a file that looks like a checkpoint. It is noticed
    when the run is to be resumed, which is when there is nothing else left.

    ## How it is measured
    Sizes, offsets and lengths against the file's own; the names in an index against the shards
    that are there.

    ## False alarms
    A checkpoint that is being written at this moment looks torn: scan it again.

    ## What to do
    Use the checkpoint before it. Save to another name and rename when the file is complete, and
    keep at least two checkpoints.

    ## References
    Safetensors, "Format"; PyTorch, `torch.save`.
    """

    code = "HD702"
    name = "unreadable-checkpoint"
    severity = Severity.ERROR
    summary = "truncated, torn, a missing shard, an index that does not fit"
    needs = Needs(kinds=(EventRecord,), events=("checkpoint", KIND), checkpoints=1)
    explains = ()

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        if record.kind != KIND:
            return
        trouble = CheckpointProblem.of(record)
        yield self.find(
            record,
            trouble.message or f"{trouble.path or 'the checkpoint'} cannot be read",
            subject=trouble.subject,
            where=Where(file=trouble.path),
            remedies=[
                "Use the checkpoint before it; `headway scan RUN --last-good` names it.",
                "Save to another name and rename when complete, and keep at least two.",
            ],
            **trouble.evidence,
        )
