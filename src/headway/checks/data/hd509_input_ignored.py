from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.data_facts import InputDependenceFacts
from headway.core.findings import Finding, Severity
from headway.core.records import Header, SetupRecord

TOPIC = "input-dependence"


class InputIgnored(Check):
    """The model returns the same output for every input.

    ## What it checks
    Whether any output changes when every sample of the batch is replaced by another.

    ## Why it matters
    A model that does not see its input can only learn the mean of the targets: the loss falls a
    little, to that of a constant answer, and stays there.

    ## How it is measured
    After the first updates a copy of the model is run twice, the second time with all samples
    shifted by one position. If every value of the output is exactly the same, the input does not
    reach it. The last op that received something of the input and passed nothing on is named.

    ## False alarms
    Heads and residual branches that start with zeros depend on the input after their first update:
    nothing is judged before that, nor while the weights have not changed. A model whose outputs
    depend on the input too weakly to differ is reported by HD203, HD304 or HD305, which explain
    this.

    ## What to do
    Check the named line: a variable that is overwritten or never used, a multiplication by zero,
    zeros created in the shape of the input, a layer whose units are all dead.

    ## References
    Karpathy, "A Recipe for Training Neural Networks" (an input-independent baseline).
    """

    code = "HD509"
    name = "input-ignored"
    severity = Severity.ERROR
    summary = "the output does not depend on the input"
    needs = Needs(kinds=(SetupRecord,), topics=(TOPIC,))
    explains = ("HD105", "HD404")

    def start(self) -> None:
        self.reported = False

    def begin(self, header: Header) -> None:
        self.reported = False

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = InputDependenceFacts.of(record)
        modules = facts.modules
        if record.topic != TOPIC or not facts.ignored or not modules or self.reported:
            return
        self.reported = True
        first = modules[0]
        module, op = first.module, first.op
        lost = f"; the input is lost in {op}" if op else ""
        yield self.find(
            record,
            f"{module or 'the model'} returns exactly the same output for different inputs{lost}",
            subject=module or "",
            where=facts.locate(module=module, op=op),
            remedies=[
                "Follow the input through `forward` from that line on and look for a variable "
                "that is overwritten or never used, a factor of zero, or units that are all dead."
            ],
        )
