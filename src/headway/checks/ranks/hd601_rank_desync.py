from __future__ import annotations

from collections.abc import Iterable

from headway.checks.ranks._shared import checksums_by_rank, group_ranks_by_value, say_ranks
from headway.core.check import Check, Needs
from headway.core.data_facts import RankReplicasFacts
from headway.core.facts import LISTED, say_list
from headway.core.findings import Finding, Severity, Where
from headway.core.records import (
    Header,
    Moment,
    SetupRecord,
    StepRecord,
    moment_of,
    record_at,
)

SIGNAL = "rank/weights_hash"


class RankDesync(Check):
    """Replicas of the model no longer have the same weights.

    ## What it checks
    A checksum of the weights that every rank has a copy of.

    ## Why it matters
    Data parallel training sums gradients as if all were computed at the same weights. Replicas that
    have drifted apart train several models at once, of which one is saved. No error is raised, and
    the loss may look normal for a long time.

    ## How it is measured
    About every hundred steps the ranks compare checksums of the bits of their weights. The ranks
    whose checksum differs from that of the majority are named, with the last step at which all
    agreed. In a script without a wrapper, `check` compares each parameter by itself: one that
    begins equal on all ranks is a replica and must stay equal, and so is one whose gradient the
    script exchanges.

    ## False alarms
    Sharded weights are not replicas and are not compared; neither are buffers, which differ by
    design (the running statistics of BatchNorm). Without a wrapper, a parameter that begins
    different is a shard or a stage of a pipeline, and so may be an equal constant whose gradients
    differ. If ranks train independently between averages (local SGD, DiLoCo), weights differ on
    purpose: `check` sees the averages and is quiet; during a run, ignore this finding. On GPUs of
    different models the last bit may differ as well.

    ## What to do
    Stop, and resume from a checkpoint of a rank in the majority. Then look for what only one rank
    does: a forward pass that bypasses the wrapper (`model.module(x)`), parameters added, unfrozen
    or loaded on rank 0 after the wrapping, a step that is skipped on one rank alone, a seed that
    differs before the weights are created, `no_sync` around the last micro-batch.

    ## References
    pytorch/pytorch#104336 (replicas that were never synchronised); TrainCheck, OSDI 2025.
    """

    code = "HD601"
    name = "rank-desync"
    severity = Severity.ERROR
    summary = "the weights of the replicas differ between ranks"
    needs = Needs(signals=(SIGNAL,), kinds=(StepRecord, SetupRecord), topics=("rank-replicas",))
    points_at = ("desync", "bypass", "no_sync", "wrapped_cast", "wrapped_load", "step")
    explains = ()

    def start(self) -> None:
        self.agreed: int | None = None
        """The last step at which all replicas were equal."""
        self.reported = False
        self.listens = self.averaged = False
        self.held: tuple[Moment, list[list[int]], int | None] | None = None
        """The first difference, until it is known whether it is meant."""
        self.apart: list[str] = []
        """Parameters that differ, in a script that synchronises by hand."""
        self.exchanged: int | None = None
        """How many gradients such a script exchanges; None under a wrapper."""
        self.equal_at: int | None = None
        """The last step before which its replicas were equal. Exact: the column of a step may come
        some steps later."""

    def begin(self, header: Header) -> None:
        kept = self.listens, self.averaged, self.held  # the script is the same after a resume
        self.start()
        self.listens, self.averaged, self.held = kept

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            facts = RankReplicasFacts.of(record)
            self.listens |= facts.listens
            self.averaged |= facts.averaged
            if not facts.listens:
                self.apart, self.exchanged = list(facts.apart), facts.exchanged
                self.equal_at = facts.equal_at
            return
        held = checksums_by_rank(record, SIGNAL)
        if len(held) < 2:
            return
        versions = group_ranks_by_value(held)
        if len(versions) == 1:
            self.agreed, self.reported = record.step, False
        elif not self.reported:
            self.reported = True
            if not self.listens:
                yield self._finding(record, versions)
            elif self.held is None:  # the ranks may average their weights later on
                self.held = (moment_of(record), versions, self.agreed)

    def finish(self) -> Iterable[Finding]:
        held, self.held = self.held, None
        if held is not None and not self.averaged:
            moment, versions, self.agreed = held
            yield self._finding(record_at(moment), versions)

    def _finding(self, record: StepRecord, versions: list[list[int]]) -> Finding:
        count = sum(map(len, versions))
        majority = versions[0] if 2 * len(versions[0]) > count else []
        apart = sorted(rank for group in versions if group is not majority for rank in group)
        if majority:
            message = f"the weights of {say_ranks(apart)} differ from those of the other "
            message += f"{len(majority)} ranks" if len(majority) > 1 else "rank"
        else:
            message = f"{count} ranks have {len(versions)} different versions of the weights"
        if self.apart:
            message += f" ({say_list(self.apart)})"
        agreed = self.agreed if self.exchanged is None else self.equal_at
        since = "" if agreed is None else f"; at step {agreed} they were still equal"
        return self.find(
            record,
            message + since,
            where=Where(rank=apart[0] if majority else None),
            remedies=[
                f"Resume from a checkpoint of a rank in the majority, or from one of step "
                f"{agreed}: every step since then mixes gradients of different models."
                if agreed is not None
                else "They differ from the first comparison on: use the same seed or checkpoint "
                "on all ranks, before the model is wrapped.",
                _BY_HAND
                if self.exchanged is not None
                else "Look for what only one rank does: a forward pass through `model.module`, a "
                "step that is skipped on one rank, `no_sync` around the last micro-batch.",
            ],
            ranks=count,
            versions=len(versions),
            apart=apart[:LISTED],
            apart_count=len(apart),
            last_equal_step=agreed,
            parameters=self.apart,
            exchanged=self.exchanged,
        )


_BY_HAND = (
    "Average the gradient of every replicated parameter over all ranks between `backward()` and "
    "`step()`, and clip by one norm, or wrap the model in `DistributedDataParallel`."
)
