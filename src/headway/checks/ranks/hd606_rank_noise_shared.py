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
    The random number state of every rank before its training forward, in the first steps, where the
    forward draws random numbers.

    ## Why it matters
    All ranks drop the same units and add the same noise. The noise of a large batch is then no more
    varied than that of one rank, and averages out less.

    ## How it is measured
    The states of all ranks are equal in at least two steps, in which the ranks have different
    batches and their forward passes draw random numbers.

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
        if facts.shared != samples or facts.same_batches != 0:
            return
        yield self.find(
            record,
            f"all {ranks} ranks draw the same random numbers on different batches, in {samples} of "
            f"{samples} steps: dropout and noise are the same everywhere",
            where=facts.locate(),
            remedies=[
                "Seed each rank differently after the model is made: "
                "`torch.manual_seed(seed + rank)`.",
            ],
            ranks=ranks,
            samples=samples,
        )
