from __future__ import annotations

from collections.abc import Iterable

from headway.checks.symptoms import POOR_FIT
from headway.core.check import Check, Needs
from headway.core.facts import Facts
from headway.core.findings import Finding, Severity
from headway.core.records import Header, SetupRecord

TOPIC = "sample-dependence"


class CrossSampleGradient(Check):
    """The output of one sample depends on other samples of the batch.

    ## What it checks
    Whether an output changes when other samples of its batch are exchanged.

    ## Why it matters
    Samples that see each other leak labels, train on sequences that never existed, and give other
    answers in other company. Shapes fit, nothing raises, and the loss even falls.

    ## How it is measured
    In the first steps a copy of the model is run twice, with the first and the last sample of the
    batch exchanged for another in the second run. The other outputs must stay the same, along the
    first axis or, for data that has time there, along the second. The first operation whose result
    does not is named.

    ## False alarms
    Batch norm looks at its running statistics in the copy. Statistics over the batch written by
    hand, graphs (an adjacency or edges among the inputs, scatter operations), tables of all pairs,
    routing with capacities, and training on one same input throughout are left alone.

    ## What to do
    `view` and `reshape` never exchange axes: use `transpose` or `permute`. Recurrent and
    transformer layers expect (time, batch, features) unless `batch_first=True`. A softmax or mean
    over `dim=0` runs over the samples.

    ## References
    Karpathy, "A Recipe for Training Neural Networks" (use backprop to chart dependencies).
    """

    code = "HD210"
    name = "cross-sample-gradient"
    severity = Severity.ERROR
    summary = "one sample's output depends on another sample"
    needs = Needs(kinds=(SetupRecord,), topics=(TOPIC,))
    explains = (*POOR_FIT, "HD105", "HD117", "HD404")

    def start(self) -> None:
        self.mixed: dict[str, int] = {}

    def begin(self, header: Header) -> None:
        self.start()

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = Facts.of(record)
        module = facts.text("module") or ""
        if record.topic != TOPIC or facts.text("by_design") is not None:
            return
        if facts.text("verdict") != "mixed":
            self.mixed[module] = -1_000  # it keeps them apart after all
            return
        self.mixed[module] = self.mixed.get(module, 0) + 1
        if self.mixed[module] != 2:
            return
        op = facts.text("op")
        size = facts.whole("size")
        first = f": {op} is the first operation that mixes them" if op else ""
        yield self.find(
            record,
            f"outputs of {module or 'the model'} change when other samples of the batch are "
            f"exchanged{first}",
            subject=module,
            where=facts.where(module=module or None, op=op),
            remedies=list(_remedies(op)),
            batch_size=size,
        )


def _remedies(op: str | None) -> Iterable[str]:
    if op in ("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as"):
        yield f"`{op}` does not exchange axes: use `transpose` or `permute` there."
    elif op in ("lstm", "gru", "rnn_tanh", "rnn_relu", "multi_head_attention_forward"):
        yield "Pass `batch_first=True` to the layer: it takes the first axis for time."
    elif op in ("softmax", "log_softmax", "mean", "sum", "cumsum", "normalize"):
        yield f"`{op}` runs over the samples there: give it the axis it is meant for."
    yield "Keep the samples on an axis of their own from input to output."
