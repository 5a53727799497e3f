from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headway.checks.symptoms import NONFINITE_OR_RANK
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.incident_events import INCIDENT, incident_finding, read_incident
from headway.core.records import EventRecord

LARGEST = 65504
KINDS = ("overflow", "exp-overflow")


class Fp16Overflow(Check):
    """A value exceeds 65504, the largest float16 value.

    ## What it checks
    Whether a bad step started with an op whose result does not fit into float16.

    ## Why it matters
    The same values are harmless in float32 or bfloat16: neither the data nor the learning rate is
    the cause, and a lower learning rate only hides the problem for a while.

    ## How it is measured
    The bad step is run again with every op traced; the op that produced the first infinity is
    computed once more in float64, which gives the value that did not fit.

    ## False alarms
    A gradient that overflows only because of the loss scale is the scaler's normal search and is
    not investigated.

    ## What to do
    Exclude the named module from autocast (compute in float32), or use bfloat16 throughout. The
    finding lists which of them fixed the failing step.

    ## References
    Micikevicius et al., "Mixed Precision Training" (2017); PyTorch, "Automatic Mixed Precision
    package" (ops that autocast to float32).
    """

    code = "HD311"
    name = "fp16-overflow"
    severity = Severity.ERROR
    summary = "values exceed 65504 in fp16; names the module"
    needs = Needs(signals=(INCIDENT,), kinds=(EventRecord,))
    explains = (*NONFINITE_OR_RANK, "HD313", "HD414")

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        incident = read_incident(record)
        if incident is None or incident.origin.get("kind") not in KINDS:
            return
        output: Any = incident.origin.get("output")
        if not isinstance(output, dict) or output.get("dtype") != "float16":
            return
        yield incident_finding(self, record, incident, largest=LARGEST)
