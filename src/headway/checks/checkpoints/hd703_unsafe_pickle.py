from __future__ import annotations

from collections.abc import Iterable

from headway.checks.checkpoints._shared import CheckpointProblem
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity, Where
from headway.core.records import EventRecord

KIND = "unsafe-pickle"


class UnsafePickle(Check):
    """Loading this file would run code of whoever wrote it.

    ## What it checks
    Every pickle of a checkpoint, without running it: which functions and classes it asks for.

    ## Why it matters
    A pickle is a program. `torch.load(…, weights_only=False)`, and whatever reads a distributed
    checkpoint's `.metadata`, runs it with all your rights.

    ## How it is measured
    The pickle is read as a list of instructions; a name that is none of those tensors, optimizers
    and plain containers are made of, and that can start a process, open a file or run code, is
    reported. Nothing is imported and nothing is called. Of an archive every member is looked into
    that is a pickle by its name or its first bytes, not only the one that `torch.load` reads.

    ## False alarms
    Classes of your own in a checkpoint are not reported: only what can run code of itself. The
    numbers of a tensor are never taken for a pickle, whatever they begin with.

    ## What to do
    Do not load it. Ask where the file came from; if you trust it, save its tensors anew as
    safetensors in an environment that holds nothing of value.

    ## References
    Python, `pickle`, the warning at its top; pytorch/pytorch#189308.
    """

    code = "HD703"
    name = "unsafe-pickle"
    severity = Severity.ERROR
    summary = "loading it would run code; it was not loaded"
    needs = Needs(kinds=(EventRecord,), events=("checkpoint", KIND), checkpoints=1)
    explains = ()

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        if record.kind != KIND:
            return
        trouble = CheckpointProblem.of(record)
        yield self.find(
            record,
            trouble.message or f"loading {trouble.path or 'the checkpoint'} would run code",
            subject=trouble.subject,
            where=Where(file=trouble.path),
            remedies=[
                "Do not load it with torch.load(weights_only=False) or pickle. It was read here "
                "without running any of it.",
                "Ask where it came from; weights without code are safetensors, or torch.load with "
                "weights_only=True.",
            ],
            **trouble.evidence,
        )
