from __future__ import annotations

from collections.abc import Iterable

from headway.checks.symptoms import NONFINITE_STEP
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.incident_events import CODE_OF_KIND, INCIDENT, incident_finding, read_incident
from headway.core.records import EventRecord


class NonfiniteActivation(Check):
    """The output of a module is non-finite although its inputs are finite.

    ## What it checks
    Where, in the forward pass of a bad step, the first non-finite value that reached the loss or a
    gradient was produced, if that was inside a module of the model.

    ## Why it matters
    Loss and gradients only show that something went wrong. The module and the line show where, and
    the inputs of the op show why.

    ## How it is measured
    The bad step is run again with every op traced. From the loss (or the gradients) the data flow
    is followed back to the op whose inputs are all finite and whose output is not.

    ## False alarms
    Infinities written on purpose (attention masks) and those that never reach the loss or a
    gradient are not reported. Values that are already non-finite when the step starts (a batch, a
    weight, a buffer) are reported by HD501, HD301 and HD302.

    ## What to do
    Protect the input of the op, not its output: an eps under a root or in a denominator, a clamp
    before a logarithm. In float16, let that module compute in float32 or bfloat16. The remedies
    that were tested on the failing step are listed with their outcome.

    ## References
    pytorch/pytorch#160016, #143658 (users ask for the op and its inputs).
    """

    code = "HD303"
    name = "nonfinite-activation"
    severity = Severity.ERROR
    summary = "the first module whose output is non-finite although its inputs are finite"
    needs = Needs(signals=(INCIDENT,), kinds=(EventRecord,))
    explains = (*NONFINITE_STEP, "HD301", "HD302", "HD313", "HD408", "HD414", "HD602")
    yields_to = ("HD301", "HD302", "HD408")

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        incident = read_incident(record)
        if incident is None:
            return
        origin = incident.origin
        if origin.get("phase") != "forward" or not origin.get("module"):
            return
        if origin.get("kind") in CODE_OF_KIND:
            return
        yield incident_finding(self, record, incident)
