from __future__ import annotations

from collections.abc import Iterable

from headway.checks.symptoms import POOR_FIT
from headway.core.check import Check, Needs
from headway.core.data_facts import SampleDependenceFacts
from headway.core.findings import Finding, Severity
from headway.core.records import Header, SetupRecord

TOPIC = "sample-dependence"


class CrossSampleGradient(Check):
    """The output of one sample depends on other samples of the batch.

    ## What it checks
    Whether an output changes when other samples of its batch are replaced.

    ## Why it matters
    Samples that see each other leak labels, train on sequences that do not exist, and give
    different answers in different batches. The shapes fit, no error is raised, and the loss even
    falls.

    ## How it is measured
    In the first steps a copy of the model is run twice, in the second run with the first and the
    last sample of the batch replaced by others. The other outputs must stay the same, along the
    first axis or, for data with time on that axis, along the second. The first op whose result
    changes is named.

    ## False alarms
    Batch norm uses its running statistics in the copy. Batch statistics written by hand, graphs (an
    adjacency or edges among the inputs, scatter ops), tables of all pairs, routing with capacities,
    and training on one constant input are not judged.

    ## What to do
    `view` and `reshape` never swap axes: use `transpose` or `permute`. Recurrent and transformer
    layers expect (time, batch, features) unless `batch_first=True`. A softmax or mean over `dim=0`
    runs over the samples.

    ## References
    Karpathy, "A Recipe for Training Neural Networks" (use backprop to chart dependencies).
    """

    code = "HD210"
    name = "cross-sample-gradient"
    severity = Severity.ERROR
    summary = "one sample's output depends on another sample"
    needs = Needs(kinds=(SetupRecord,), topics=(TOPIC,))
    explains = (*POOR_FIT, "HD105", "HD117", "HD319", "HD404")

    def start(self) -> None:
        self.mixed: dict[str, int] = {}

    def begin(self, header: Header) -> None:
        self.start()

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = SampleDependenceFacts.of(record)
        module = facts.module or ""
        if record.topic != TOPIC or facts.by_design is not None:
            return
        if facts.verdict != "mixed":
            self.mixed[module] = -1_000  # at least once the samples did not affect each other
            return
        self.mixed[module] = self.mixed.get(module, 0) + 1
        if self.mixed[module] != 2:
            return
        op = facts.op
        size = facts.size
        first = f": {op} is the first op that mixes them" if op else ""
        yield self.find(
            record,
            f"outputs of {module or 'the model'} change when other samples of the batch are "
            f"replaced{first}",
            subject=module,
            where=facts.locate(module=module or None, op=op),
            remedies=list(_remedies(op)),
            batch_size=size,
        )


def _remedies(op: str | None) -> Iterable[str]:
    if op in ("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as"):
        yield f"`{op}` does not swap axes: use `transpose` or `permute` there."
    elif op in ("lstm", "gru", "rnn_tanh", "rnn_relu", "multi_head_attention_forward"):
        yield (
            "If the first axis of its input holds the samples, pass `batch_first=True` to the "
            "layer: it treats that axis as time."
        )
    elif op in ("softmax", "log_softmax", "mean", "sum", "cumsum", "normalize"):
        yield f"`{op}` runs over the samples there: pass the intended axis."
    yield "Keep the samples on an axis of their own from input to output."
