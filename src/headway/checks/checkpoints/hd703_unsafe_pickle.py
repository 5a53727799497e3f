from __future__ import annotations

from collections.abc import Iterable

from headway.checks.checkpoints._shared import CheckpointProblem, CheckpointProblemCheck
from headway.core.check import Needs
from headway.core.findings import Finding, Severity, Where
from headway.core.records import EventRecord

UNKNOWN = "unknown-code"
"""The event of a pickle whose names are not all on the allowlist."""


class UnsafePickle(CheckpointProblemCheck):
    """Loading this file would run code from its author.

    ## What it checks
    Every pickle of a checkpoint, without running it: which functions and classes it imports.

    ## Why it matters
    A pickle is a program. `torch.load(…, weights_only=False)`, and any code that reads the
    `.metadata` of a distributed checkpoint, runs it with all your permissions.

    ## How it is measured
    The pickle is read as a list of instructions. Every name in it is compared with a list of
    functions and classes that build data: what `torch.load(weights_only=True)` accepts, numpy's
    arrays, and the layers, settings and states that frameworks save. A name that can start a
    process, open a file or run code is an error; any other name that is not on the list is a
    warning. Nothing is imported and nothing is called. In an archive, every member that is a pickle
    by its name or its first bytes is inspected, not only the one that `torch.load` reads.

    ## False alarms
    Classes of your own are not on the list. Allow them by name, `--allow my_package.Config` or
    `--allow 'my_package.*'`, or with `allow` in the settings. The data of a tensor are never
    treated as a pickle.

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
    needs = Needs(
        kinds=(EventRecord,), events=("checkpoint", "unsafe-pickle", "unknown-code"), checkpoints=1
    )
    explains = ()

    unsaid = "loading {} would run code"
    remedies = (
        "Do not load it with torch.load(weights_only=False) or pickle. headway read it "
        "without running any of it.",
        "Find out where it came from; for weights without code use safetensors, or "
        "torch.load with weights_only=True.",
    )

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        if record.kind != UNKNOWN:
            yield from super().observe(record)
            return
        problem = CheckpointProblem.of(record)
        yield self.find(
            record,
            problem.message
            or f"{problem.path or 'the checkpoint'} refers to code that is not on the allowlist",
            subject=problem.subject,
            where=Where(file=problem.path),
            severity=Severity.WARNING,
            remedies=(
                "If these classes are your own, allow them: --allow NAME, or `allow` in "
                "[tool.headway]. Otherwise treat the file as one that runs code when it is loaded.",
            ),
            **problem.evidence,
        )
