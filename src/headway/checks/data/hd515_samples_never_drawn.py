from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.data_facts import SamplerReachFacts
from headway.core.findings import Finding, Severity
from headway.core.records import SetupRecord


class SamplesNeverDrawn(Check):
    """The sampler has fewer weights than the data set has samples.

    ## What it checks
    A `WeightedRandomSampler`: the number of its weights against the length of the data set.

    ## Why it matters
    A weight belongs to one sample. With one weight for each class, only the first few samples of
    the data set are ever drawn. The loss falls at once, because the model memorises them.

    ## How it is measured
    The lengths are compared when a pass over the loader begins.

    ## False alarms
    None are known: a sample without a weight cannot be drawn. To leave samples out on purpose, give
    them a weight of 0 or use a `Subset`.

    ## What to do
    Give each sample the weight of its class: `WeightedRandomSampler(class_weights[labels], …)`.

    ## References
    deep-voice/soundbay#49; PyTorch, `torch.utils.data.WeightedRandomSampler`.
    """

    code = "HD515"
    name = "samples-never-drawn"
    severity = Severity.ERROR
    summary = "the sampler has fewer weights than the data set has samples"
    needs = Needs(kinds=(SetupRecord,), topics=("sampler-reach",))
    explains = ("HD503", "HD506", "HD507", "HD509", "HD512")
    once = "run"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = SamplerReachFacts.of(record)
        reached, samples = facts.reached, facts.samples
        if reached is None or not samples or reached >= samples:
            return
        yield self.find(
            record,
            f"{facts.sampler or 'the sampler'} has {reached} weights for {samples} samples: only "
            f"the first {reached} are ever drawn",
            where=facts.locate(rank=record.rank),
            remedies=["Pass a weight for each sample: `class_weights[labels]`."],
            reached=reached,
            samples=samples,
        )
