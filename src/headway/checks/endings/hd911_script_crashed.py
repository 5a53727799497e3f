from __future__ import annotations

from collections.abc import Iterable

from headway.checks.endings._shared import say_phase
from headway.checks.known_errors import known_remedy
from headway.core.check import Check, Needs
from headway.core.ending_facts import CRASH, END, ENDING, CrashFacts, EndFacts, shape_text
from headway.core.findings import Finding, Severity
from headway.core.records import EventRecord

ABOUT_TENSORS = ("RuntimeError", "ValueError", "IndexError", "TypeError", "TorchRuntimeError")
"""Exceptions of torch about shapes, dtypes and indices."""
SHOWN_TENSORS = 2


class ScriptCrashed(Check):
    """An exception ended the script.

    ## What it checks
    Exceptions that leave the script, a `with Guard(...)` block, the training thread or the
    interpreter, and a non-zero `sys.exit()`. Errors with a check of their own (out of memory, a
    failed data loader, a failed save) are reported there instead.

    ## Why it matters
    The last line of a traceback is often inside a library. What helps is the innermost line of your
    own code, the batch that was in use, and how it differs from the batches before it.

    ## How it is measured
    From the exception: its innermost line outside torch, Python and installed packages, the lines
    around it, what the loop was doing, the tensors of that line, and the shapes and dtypes of the
    current batch. Sizes that never varied in the batches before and differ now are named.

    ## False alarms
    Exceptions that the script catches are not reported, and neither is `sys.exit(0)`. Ctrl-C and
    SIGTERM are interruptions (HD915). If the script exits with an error status while it handles an
    exception (`except ...: sys.exit(1)`), that exception is reported. A guard without `with` and
    without `headway run` does not see `raise SystemExit(1)`.

    ## What to do
    Look at the named line with the named shapes. If only the last batch of an epoch differs, pass
    `drop_last=True` to the DataLoader or make the code independent of the batch size. For common
    errors of torch (shapes, dtypes, devices, a graph that is gone) the finding says what to change.

    ## References
    Python, "sys.excepthook".
    """

    code = "HD911"
    name = "script-crashed"
    severity = Severity.ERROR
    summary = "an exception ended the script"
    needs = Needs(signals=(ENDING,), kinds=(EventRecord,), events=(CRASH, END))
    explains = ("HD608",)
    ends_run = True

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        if record.kind == END:
            yield from self._report_end(record)
            return
        facts = CrashFacts.of_event(record)
        odd = [item for item in facts.batch if item.unusual]
        message = say_phase(facts.phase)
        if facts.sample is not None:
            message += f" (sample {facts.sample})"
        if odd:
            message += f". {odd[0].name} {odd[0].unusual}"
        elif facts.tensors and facts.error_type in ABOUT_TENSORS:
            message += f". Here {' and '.join(map(shape_text, facts.tensors[:SHOWN_TENSORS]))}"
        error = facts.error or "an unknown exception"
        yield self.find(
            record,
            error.rstrip(".") + message if message else error,
            subject=f"{facts.error_type} {facts.thread or ''}",
            where=facts.where(record.rank),
            severity=Severity.WARNING if facts.survived else None,
            remedies=_remedies(facts),
            **facts.evidence(),
        )

    def _report_end(self, record: EventRecord) -> Iterable[Finding]:
        """An exception of which only the first line could be recorded."""
        error = EndFacts.of_event(record).error
        if error is not None:
            yield self.find(
                record,
                f"{error}. The line and the batch could not be recorded",
                subject=error.partition(":")[0],
            )


def _remedies(facts: CrashFacts) -> list[str]:
    if known := known_remedy(facts.text):
        return [known]
    if any(" row" in (item.unusual or "") for item in facts.batch):
        return [
            "Pass `drop_last=True` to the DataLoader, or make this line independent of the batch "
            "size."
        ]
    if facts.error_type in ("SystemExit", "ArgumentError") and "parse_" in (facts.line_text or ""):
        return ["Pass the options of the script after `--`: `headway run train.py -- --epochs 3`."]
    return []
