from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.ranks._shared import say_ranks, values_by_rank
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity, Where
from headway.core.numbers import say
from headway.core.records import Header, StepRecord
from headway.core.signals import family

SIGNAL = "rank/clip_norm"


class ClipPerShard(Check):
    """Each rank clips its gradients by its own norm.

    ## What it checks
    The norm that the user's clipping used, on every rank.

    ## Why it matters
    Clipping multiplies the gradient of the whole model by one number. Ranks that use the norm of
    their own shard each multiply by a different one: the update then points in another direction,
    large shards are clipped more than small ones, and parameters that all ranks share drift apart.

    ## How it is measured
    After the reduction the norm is one number, the same on all ranks up to the last bits. It is a
    fault if the largest exceeds the smallest by more than 0.1 % in 3 measured steps in a row, or if
    some ranks clip in all of these steps and others do not.

    ## False alarms
    A norm that is not finite is ignored. If ranks train independently between rare averages (local
    SGD, DiLoCo), their norms differ on purpose; ignore this finding then.

    ## What to do
    With FSDP2 pass the parameters themselves, which are DTensors, to
    `torch.nn.utils.clip_grad_norm_`, never `p.grad.to_local()`; with FSDP1 call
    `model.clip_grad_norm_`. A hand-written norm needs the sum of the squares over all ranks before
    the root. With DDP the norms can differ only if the gradients were not reduced: `no_sync` around
    the last micro-batch, or a forward pass through `model.module`.

    ## References
    PyTorch, `FullyShardedDataParallel.clip_grad_norm_` (why the plain function is wrong there);
    microsoft/DeepSpeed#1801 (LayerNorm weights that drifted apart).
    """

    code = "HD605"
    name = "clip-per-shard"
    severity = Severity.ERROR
    summary = "each rank clips its gradients by its own norm"
    points_at = "clip"
    needs = Needs(signals=(SIGNAL,))
    explains = ("HD601",)

    @dataclass(frozen=True)
    class Limits:
        tolerance: float = 1e-3
        """Largest relative difference that may be rounding."""
        in_a_row: int = 3
        """Consecutive measured steps that are needed."""

    def start(self) -> None:
        self.rows: dict[str, int] = {}
        """By optimizer: consecutive samples in which the norms differed."""

    def begin(self, header: Header) -> None:
        self.start()

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        for name in record.columns:
            if family(name) != SIGNAL:
                continue
            norms = values_by_rank(record, name)
            lone = 0 < len(norms) < (self.context.header.world_size or 1)
            key = f"{name} lone"
            self.rows[key] = self.rows.get(key, 0) + 1 if lone else 0
            if self.rows[key] == self.limits.in_a_row:
                yield self._some_clip(record, name, norms)
            if len(norms) < 2:
                continue
            low, high = min(norms.values()), max(norms.values())
            differ = high - low > self.limits.tolerance * high
            self.rows[name] = self.rows.get(name, 0) + 1 if differ else 0
            if self.rows[name] == self.limits.in_a_row:
                yield self._finding(record, name, norms)

    def _some_clip(self, record: StepRecord, name: str, norms: dict[int, float]) -> Finding:
        ranks = self.context.header.world_size or 1
        return self.find(
            record,
            f"only {say_ranks(norms)} of {ranks} ranks clips the gradients: the others apply a "
            f"different update to the same weights",
            subject=name,
            where=Where(rank=min(norms)),
            remedies=["Clip on every rank: move `clip_grad_norm_` out of the `if rank == 0`."],
            clipping=sorted(norms)[:20],
            ranks=ranks,
        )

    def _finding(self, record: StepRecord, name: str, norms: dict[int, float]) -> Finding:
        least, most = min(norms, key=norms.__getitem__), max(norms, key=norms.__getitem__)
        return self.find(
            record,
            f"each rank clips by its own norm: from {say(norms[least])} on rank {least} to "
            f"{say(norms[most])} on rank {most}, in {self.limits.in_a_row} measured steps in a "
            f"row; it must be the same for all {len(norms)} ranks",
            subject=name,
            remedies=[
                "Sharded weights (FSDP): pass the DTensor parameters to "
                "`torch.nn.utils.clip_grad_norm_` (FSDP2) or call `model.clip_grad_norm_` (FSDP1); "
                "do not clip local shards.",
                "Replicas (DDP): the gradients were not reduced. Look for `no_sync` around the "
                "last micro-batch and for a forward pass through `model.module`.",
            ],
            lowest=norms[least],
            highest=norms[most],
            lowest_rank=least,
            highest_rank=most,
            ranks=len(norms),
            norm_if_shards=math.hypot(*norms.values()),
        )
