from __future__ import annotations

from headway.checks.checkpoints._shared import CheckpointProblemCheck
from headway.core.check import Needs
from headway.core.findings import Severity
from headway.core.records import EventRecord


class UnsafePickle(CheckpointProblemCheck):
    """Loading this file would run code from its author.

    ## What it checks
    Every pickle of a checkpoint, without running it: which functions and classes it imports.

    ## Why it matters
    A pickle is a program. `torch.load(…, weights_only=False)`, and whatever reads the `.metadata`
    of a distributed checkpoint, runs it with all your permissions.

    ## How it is measured
    The pickle is read as a list of instructions. A name that tensors, optimizers and plain
    containers do not need, and that can start a process, open a file or run code, is reported.
    Nothing is imported and nothing is called. In an archive, every member that is a pickle by its
    name or its first bytes is inspected, not only the one that `torch.load` reads.

    ## False alarms
    Your own classes in a checkpoint are not reported: only what can run code by itself. The data of
    a tensor are never treated as a pickle, whatever they start with.

    ## What to do
    Do not load it. Find out where the file came from; if you trust it, save its tensors again as
    safetensors in an isolated environment.

    ## References
    Python, `pickle`, the warning at its top; pytorch/pytorch#189308.
    """

    code = "HD703"
    name = "unsafe-pickle"
    severity = Severity.ERROR
    summary = "loading it would run code; it was not loaded"
    needs = Needs(kinds=(EventRecord,), events=("checkpoint", "unsafe-pickle"), checkpoints=1)
    explains = ()

    unsaid = "loading {} would run code"
    remedies = (
        "Do not load it with torch.load(weights_only=False) or pickle. headway read it "
        "without running any of it.",
        "Find out where it came from; for weights without code use safetensors, or "
        "torch.load with weights_only=True.",
    )
