from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.ranks._shared import checksums_by_rank, group_ranks_by_value, say_ranks
from headway.core.check import Check, Needs
from headway.core.facts import LISTED
from headway.core.findings import Finding
from headway.core.records import Header, StepRecord

SIGNAL = "rank/batch_hash"
ENOUGH = 1000
"""Number of different batches beyond which their exact number does not matter."""


class RankOrderShared(Check):
    """Several ranks read the same batches in the same order.

    ## What it checks
    A checksum of the batch of each rank, in measured steps.

    ## Why it matters
    Ranks that read the same data compute the same gradient. Eight of them train as fast as one, the
    effective batch is an eighth of what the learning rate was chosen for, and an epoch passes over
    the data eight times. No error is raised.

    ## How it is measured
    Ranks share their order if their checksums are equal in at least 4 measured steps in a row, in
    more than half of those so far, and more often than by chance for that number of ranks and
    different batches. A measured step counts only for ranks whose batch has changed since the
    previous one.

    ## False alarms
    Training on one fixed batch is not reported, nor a coincidence on a tiny data set. Ranks of a
    tensor parallel group share their batch on purpose; groups of adjacent ranks, all of the same
    size, count as such and are not reported unless they include all ranks. A guard does not record
    the checksums if all ranks hold parts of one model (tensor parallelism, pipeline stages). A
    synthetic benchmark that draws from the same seed on all ranks is reported, and may be ignored.

    ## What to do
    Give every rank its own part of the data: `DistributedSampler(dataset)` in the loader (and
    `set_epoch` in each epoch), with `rank` and not `local_rank` if you pass it yourself. In an
    `IterableDataset` split by rank and by worker. For random data use a seed that depends on the
    rank.

    ## References
    PyTorch, `torch.utils.data.distributed.DistributedSampler`; `torch.utils.data.IterableDataset`
    (each process and each worker gets a copy).
    """

    code = "HD603"
    name = "rank-order-shared"
    summary = "ranks read the same batches in the same order"
    needs = Needs(signals=(SIGNAL,))
    points_at = ("loader_made", "loader")
    explains = ()

    @dataclass(frozen=True)
    class Limits:
        samples: int = 4
        """Consecutive measured steps that must agree; more than half of all must, too."""
        certainty: float = 4.0
        """The logarithm of the odds against chance."""

    def start(self) -> None:
        self.before: dict[int, float] = {}
        """The checksum of each rank in the previous sample."""
        self.different: set[float] = set()
        """The checksums so far (at most the first ones), as an estimate of the number of
        batches."""
        self.seen = 0
        self.streak = 0
        self.groups: list[list[int]] = []
        """Ranks that agreed on every sample of the streak."""
        self.reported = False

    def begin(self, header: Header) -> None:
        self.start()

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        hashes = checksums_by_rank(record, SIGNAL)
        fresh = {rank: value for rank, value in hashes.items() if value != self.before.get(rank)}
        self.before = hashes or self.before
        if len(fresh) < 2:
            return
        self._learn(fresh)
        if (
            self.reported
            or not self._persistent(len(hashes))
            or _model_parallel(self.groups, len(hashes))
        ):
            return
        self.reported = True
        yield self._finding(record, len(hashes))

    def _learn(self, fresh: dict[int, float]) -> None:
        self.seen += 1
        if len(self.different) < ENOUGH:
            self.different.update(fresh.values())
        still = [part for group in self.groups for part in _shared(fresh, group)]
        if still:
            self.streak, self.groups = self.streak + 1, still
        else:  # no ranks agree any more; this sample may be the first of other groups
            self.groups = _shared(fresh, list(fresh))
            self.streak = 1 if self.groups else 0
            self.reported = False

    def _persistent(self, ranks: int) -> bool:
        if self.streak < self.limits.samples or 2 * self.streak <= self.seen:
            return False
        # Two ranks agree by chance with odds of 1 to the number of batches, in every sample; and
        # any two ranks may do so, from any sample on.
        chances = math.log(math.comb(ranks, 2) * self.seen)
        against = self.streak * math.log(len(self.different))
        return against - chances >= float(self.limits.certainty)

    def _finding(self, record: StepRecord, count: int) -> Finding:
        largest = max(self.groups, key=len)
        sharing = sum(map(len, self.groups))
        if len(largest) == count:
            message = f"all {count} ranks read the same batches"
        else:
            message = f"{say_ranks(largest)} read the same batches"
            if len(self.groups) > 1:
                message += f", and so do {len(self.groups) - 1} more groups of ranks"
        return self.find(
            record,
            f"{message}: their checksums were equal in {self.streak} measured steps in a row",
            remedies=[
                "Give every rank its own part of the data: use a `DistributedSampler` in the "
                "loader, or split by rank and worker in an `IterableDataset`.",
                "If you pass the rank yourself, pass the global one, not `local_rank`.",
            ],
            ranks=count,
            sharing=largest[:LISTED],
            sharing_count=sharing,
            groups=len(self.groups),
            samples=self.streak,
        )


def _shared(values: dict[int, float], ranks: list[int]) -> list[list[int]]:
    """The groups of two or more of these ranks that have the same value."""
    mine = {rank: values[rank] for rank in ranks if rank in values}
    return [group for group in group_ranks_by_value(mine) if len(group) > 1]


def _model_parallel(groups: list[list[int]], count: int) -> bool:
    """Whether all ranks form groups of adjacent ranks of one size, as in tensor parallelism."""
    sizes = {len(group) for group in groups}
    neighbours = all(group[-1] - group[0] == len(group) - 1 for group in groups)
    return neighbours and len(sizes) == 1 and len(groups) > 1 and sum(map(len, groups)) == count
