from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.findings import Finding
from headway.core.optimizer_facts import AnomalyModeFacts
from headway.core.records import SetupRecord


class AnomalyModeOn(Check):
    """Training runs in autograd's anomaly mode, which is meant for debugging.

    ## What it checks
    Whether `torch.autograd.set_detect_anomaly(True)` or `detect_anomaly()` is active while backward
    passes run.

    ## Why it matters
    A traceback is recorded for every op and every gradient is checked for NaN: steps take several
    times as long, and the memory for the tracebacks grows with the model.

    ## How it is measured
    Autograd is queried at the first three backward passes; all of them must run in that mode.

    ## False alarms
    A single step that is debugged on purpose is not reported, nor is the mode if headway itself was
    asked to use it.

    ## What to do
    Remove the line. A guard finds the op behind a NaN without it.

    ## References
    PyTorch, `torch.autograd.detect_anomaly`: "should be enabled only for debugging".
    """

    code = "HD807"
    name = "anomaly-mode-on"
    summary = "detect_anomaly is on in a long run"
    needs = Needs(kinds=(SetupRecord,), topics=("anomaly-mode",))
    explains = ("HD804", "HD805")
    once = "run"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = AnomalyModeFacts.of(record)
        on, passes = facts.on or 0, facts.backwards or 0
        if on <= 0 or on < passes:
            return
        yield self.find(
            record,
            f"autograd's anomaly mode is on: all of the first {passes} backward passes ran in it, "
            "which makes every step several times slower",
            where=facts.locate(rank=record.rank),
            remedies=[
                "Remove `set_detect_anomaly(True)` or the `detect_anomaly()` block; keep it behind "
                "a debug flag."
            ],
            backwards=passes,
        )
