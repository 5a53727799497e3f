from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.data_facts import RankNoiseFacts
from headway.core.findings import Finding
from headway.core.records import SetupRecord


class RankNoiseShared(Check):
    """All ranks draw the same random numbers, for dropout or noise, on different batches.

    ## What it checks
    The random number state of every rank, in the first steps: after the last step, or after a
    loader returned the batch, where random numbers are drawn before the end of the training
    forward.

    ## Why it matters
    All ranks drop the same units and add the same noise. The noise of a large batch is then no more
    varied than that of one rank, and averages out less. Where the ranks draw their batches
    themselves (views, simulations), all of them do the work of one.

    ## How it is measured
    The states of all ranks are equal in at least two steps, in which the ranks have different
    batches and draw random numbers; or in which replicas (DistributedDataParallel) have the same
    batches that they draw themselves, without a loader, in a script that sets a seed.

    ## False alarms
    Models without dropout or noise are not judged. Ranks that share their batches (tensor
    parallelism) must share their random numbers and are not reported.

    ## What to do
    Seed the model's weights alike, then seed each rank differently before training:
    `torch.manual_seed(seed + rank)`.

    ## References
    huggingface/transformers#31412; goodfire-ai/spd#412; Robbyant/lingbot-vla-v2#41.
    """

    code = "HD606"
    name = "rank-noise-shared"
    summary = "all ranks draw the same random numbers"
    needs = Needs(kinds=(SetupRecord,), topics=("rank-noise",))
    explains = ()
    once = "run"

    @dataclass(frozen=True)
    class Limits:
        samples: int = 2
        """Minimum number of steps that are compared."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = RankNoiseFacts.of(record)
        samples, ranks = facts.samples or 0, facts.ranks or 0
        if ranks < 2 or samples < self.limits.samples:
            return
        if facts.shared != samples:
            return
        if facts.sampled and facts.same_batches == samples and facts.place.file is not None:
            yield self._same_batches(record, facts)
        if facts.same_batches != 0:
            return
        yield self.find(
            record,
            f"all {ranks} ranks draw the same random numbers on different batches, in {samples} of "
            f"{samples} steps: dropout and noise are the same everywhere",
            where=facts.locate(),
            remedies=[
                "Seed each rank differently after the model is created: "
                "`torch.manual_seed(seed + rank)`.",
            ],
            ranks=ranks,
            samples=samples,
        )

    def _same_batches(self, record: SetupRecord, facts: RankNoiseFacts) -> Finding:
        return self.find(
            record,
            f"all {facts.ranks} ranks draw the same random batches, in {facts.samples} of "
            f"{facts.samples} steps: together they do the work of one",
            where=facts.locate(),
            remedies=[
                "Seed each rank differently after the model is created: "
                "`torch.manual_seed(seed + rank)`.",
            ],
            ranks=facts.ranks,
            samples=facts.samples,
        )
