from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.check import Check, Needs
from holdfast.core.facts import Facts
from holdfast.core.findings import Finding
from holdfast.core.records import SetupRecord


class UntiedWeights(Check):
    """An embedding and an output layer that are meant to be one tensor are two.

    ## What it checks
    Embeddings and matrices of the same shape in one model: whether two trained tensors begin with
    the very same numbers, and whether a configuration asks for them to be tied.

    ## Why it matters
    A copy is equal at the start only. From the first step on the two go apart: the model has more
    parameters than it says, and exporting or sharding it by the tie loses one of them.

    ## How it is measured
    Before the first update, bit by bit, rows that are all the same number left out; and by
    `config.tie_word_embeddings` where the model has such a configuration.

    ## False alarms
    Weights that are one object are tied. Copies that do not train (an EMA, a target network), two
    separate models and layers of one kind (a stack made by copying) are not compared.

    ## What to do
    Assign the parameter itself: `head.weight = embedding.weight`, after anything that makes new
    parameters; no `.clone()`, `.data.copy_()` or `deepcopy` of it.

    ## References
    NVIDIA/Megatron-LM#656; Press and Wolf, "Using the output embedding to improve language models".
    """

    code = "HD707"
    name = "untied-weights"
    summary = "tensors meant to be shared differ"
    needs = Needs(kinds=(SetupRecord,), topics=("tied-weights",))

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = Facts.of(record)
        copies, asked = facts.flag("copies"), facts.flag("asked")
        first, second = facts.text("embedding"), facts.text("output")
        if not (copies or asked) or first is None or second is None:
            return
        how = "begin with the same numbers" if copies else "are meant to be tied by the config"
        shape = " x ".join(str(int(size)) for size in facts.numbers("shape"))
        yield self.find(
            record,
            f"{first} and {second} ({shape}) {how} but are two trained tensors: they go apart from "
            "the first update on",
            subject=f"{first} {second}",
            where=facts.where(rank=record.rank, module=second),
            remedies=[
                f"Assign the parameter itself (`{second} = {first}`), after everything that makes "
                "new parameters; do not clone or copy it.",
            ],
            tensors=[first, second],
            copies=copies,
        )
