"""One optimizer's vote among the ranks: what this rank reports, and the verdict of all."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headway.guard.measure import sampling
from headway.guard.measure.sampling import UpdateSample
from headway.guard.ranks import rank_table
from headway.guard.ranks.rank_table import MISSING, UNKNOWN, RankField, RankTable, TableLayout
from headway.rerun.bad_step import StepContext
from headway.torch_adapters.process_groups.local_gradients import (
    LocalGradientMonitor,
    LocalGradients,
)
from headway.torch_adapters.process_groups.rank_group import FAILED, RankGroup
from headway.torch_adapters.process_groups.sharded_tensors import local_part

# The norm over all ranks counts a replicated gradient once, and adds up the squares of the shards,
# each divided by the number of ranks that hold the same shard.


class GradientLayout:
    """The replicated and the sharded gradients, and the positions of their sums of squares."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        copies: Mapping[int, int],
        tail: Mapping[int, int],
        size: int,
        device: torch.device,
    ) -> None:
        """`copies` and `tail` (the position of a sharded parameter) are by identity."""
        held = [copies.get(id(p), size) for p in parameters]
        whole = [at for at, count in enumerate(held) if count == size]
        pieces = [at for at, count in enumerate(held) if count < size]
        self._whole = _index(whole, device)
        self._pieces = _index(pieces, device)
        self._shares = torch.tensor([1.0 / held[at] for at in pieces]).to(device, non_blocking=True)
        placed = [at for at in pieces if id(parameters[at]) in tail]
        self._placed = _index(placed, device)
        self._places = _index([tail[id(parameters[at])] for at in placed], device)
        self._any_pieces, self._any_placed = bool(pieces), bool(placed)

    def split(self, each: Tensor | None, total: Tensor) -> tuple[Tensor, Tensor]:
        """(norm of the replicated gradients, norm of this rank's share of the shards)."""
        if each is None or not self._any_pieces:
            return total, torch.zeros_like(total)
        plain = torch.linalg.vector_norm(each[self._whole])
        return plain, torch.linalg.vector_norm(each[self._pieces] * self._shares.sqrt())

    def write(self, sums: Tensor, each: Tensor | None) -> None:
        """Write this rank's share of the squares."""
        if each is not None and self._any_placed:
            shares = torch.zeros_like(each)
            shares[self._pieces] = self._shares
            sums[self._places] = (each.square() * shares)[self._placed]

    def read(self, sums: Tensor, each: Tensor) -> Tensor:
        """The norm of every gradient over all ranks, where it is known."""
        if not self._any_placed:
            return each
        norms = each.clone()
        norms[self._placed] = sums[self._places].sqrt()
        return norms


def _index(positions: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(positions, dtype=torch.int64).to(device, non_blocking=True)


# One vector goes through one all-reduce per step. Each of up to 64 ranks has its own row in it
# (`rank_table.py`) and leaves zeros in the other rows, so that the sum is a table with NaN and
# infinities where they were, and every rank computes the same verdict from it. After the table come
# the squared norms of sharded tensors, which are true sums over the ranks.

# The size is the same at every step. On CUDA all of it stays on the device.


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank's report about a step, apart from the norms of its gradients."""

    step: int
    began: float
    skipped: Tensor | None = None
    """A GradScaler's verdict."""
    clip: Tensor | None = None
    """The norm that the user's clipping used."""
    doubt: Tensor | None = None
    """A number that makes the step bad where it is non-finite."""
    sampled: bool = False
    """The host reads the whole table, and the batches are compared."""
    batches: Sequence[Any] = ()
    idle: bool = False
    """No parameter has a gradient on this rank."""
    once_only: bool = False
    """This rank cannot run the step again."""

    @classmethod
    def of(cls, context: StepContext, **more: Any) -> RankReport:
        """The report on a step."""
        return cls(context.step, context.started, once_only=not context.again, **more)


class StepVote:
    """One optimizer's vote among the ranks."""

    def __init__(
        self,
        ranks: RankGroup,
        origins: LocalGradientMonitor,
        parameters: Sequence[Tensor],
        lag: int,
        weights_every: int = rank_table.WEIGHT_CHECK_INTERVAL,
    ) -> None:
        self.ranks = ranks
        self._origins = origins
        self._watched: list[LocalGradients] | None = None
        self._parameters = parameters
        self._lag = lag
        self._weights_every = weights_every
        self._copies = {id(p): ranks.copies.of(p) for p in parameters}
        cut = [p for p in parameters if self._copies[id(p)] < ranks.size]
        self.sharded = bool(cut)
        """Whether ranks hold different shards of some gradients."""
        self._tail = {id(p): at for at, p in enumerate(cut)} if ranks.alike else {}
        self._layout: tuple[object, GradientLayout] | None = None
        self._ranks_layout = TableLayout(ranks.size, ranks.rank, alike=ranks.alike)
        self._update: UpdateSample | None = None
        self._nothing: Tensor | None = None
        self._rounds = 0
        self._unread: deque[tuple[int, Tensor]] = deque()
        self._ended = 0.0
        self.cast_already = False
        """Whether this rank has voted on the current step."""
        self.hold_agreed = False
        """Whether the host knows that all ranks skip the current step."""

    @property
    def floats(self) -> int:
        """Size of the reduced vector."""
        return (
            self._table + len(self._tail) + (2 * sampling.MAX_SAMPLED_TENSORS if self._tail else 0)
        )

    @property
    def _table(self) -> int:
        return self._ranks_layout.floats

    # Through a step.

    def gradients_cleared(self) -> None:
        """The gradients of earlier backward passes were cleared."""
        for origin in self._of_mine():
            origin.forget()

    def step_begins(self) -> None:
        """The optimizer is about to step."""
        self.cast_already = self.hold_agreed = False

    def cast(
        self, report: RankReport, tensors: dict[str, Tensor], key: object, order: Any
    ) -> UpdateSample | None:
        """Vote, and replace this rank's numbers by those of all ranks.

        `tensors` contains what was measured here and receives the common `total`, `loss` and
        `each`, whether the scaler of some rank skips (`skip`) or its guard is off (`off`), the sums
        of the last columns (`calls`) and, at samples, the table (`ranks`). `order` are the
        parameters of `each`; they are the same as long as `key` is. Returns the sampled update
        whose sizes were summed over the ranks, if there was one.
        """
        total = tensors["total"]
        device = self.ranks.place(total.device)
        layout = self._layout_of(order, key, device)
        vector = torch.zeros(self.floats, dtype=self._ranks_layout.dtype, device=device)
        row = self._ranks_layout.row(vector)
        each = tensors.get("each")
        each = None if each is None else each.to(device, torch.float32)
        row[: RankField.SECONDS] = self._measured(report, tensors, layout, each, device)
        row[RankField.SECONDS :] = self._host_fields(report, "loss" in tensors).to(
            device, non_blocking=True
        )
        self._ranks_layout.write(vector, row, self._rounds)
        layout.write(self._sums(vector), each)
        update = self._write_update(vector)
        self._reduce(vector, report.step)
        self._agree(vector, tensors, layout, each, report.sampled)
        if update is not None:
            sizes = vector[self._table + len(self._tail) :].to(torch.float32).sqrt().view(2, -1)
            count = len(update[0])
            update = (update[0], sizes[0, :count], sizes[1, :count])
        if device != total.device:
            for name in ("total", "loss", "each", "skip", "off", "calls", "ranks"):
                if name in tensors:
                    tensors[name] = tensors[name].to(total.device, non_blocking=True)
        return update

    def abstain(self, step: int) -> None:
        """The guard of this rank has failed: report it until all ranks know it.

        Reads the table as late as a working guard does, so that all stop at the same step.
        """
        if self._all_off() or self.cast_already:
            return
        device = self.ranks.place(self._parameters[0].device)
        row = [UNKNOWN if slot in MISSING else 0.0 for slot in RankField]
        row[RankField.OFF] = 1.0
        vector = torch.zeros(self.floats, dtype=self._ranks_layout.dtype, device=device)
        own = self._ranks_layout.row(vector)
        own[:] = torch.tensor(row).to(device)
        self._ranks_layout.write(vector, own, self._rounds)
        self._reduce(vector, step)
        if self._lag == 0:
            self._all_off()

    def delivered(
        self, calls: Sequence[float] | None = None, table: Sequence[float] | None = None
    ) -> RankTable:
        """The outcome of the oldest step that the host has not read; reads what is not passed."""
        turn, there = self._unread.popleft()
        if calls is None:
            calls = self._ranks_layout.verdict(there, sharded=False)["calls"].tolist()
        tally = RankTable(calls, there, self._ranks_layout, turn - 1, table)
        self.ranks.leaving = self.ranks.leaving or tally.count(RankField.LEAVE) > 0
        self.ranks.saving = self.ranks.saving or tally.count(RankField.SAVE) > 0
        if tally.count(RankField.OFF):
            self.ranks.off = self.ranks.off or FAILED
        return tally

    def keep_update(self, sample: UpdateSample) -> bool:
        """Keep a sampled update of sharded weights: the next reduction sums its size.

        False where this rank has all of it.
        """
        if self._tail:
            self._update = sample
        return bool(self._tail)

    def exclude_time(self, seconds: float) -> None:
        """Leave this time out of the duration of the step."""
        if self._ended:
            self._ended += seconds

    # What this rank reports.

    def _measured(
        self,
        report: RankReport,
        tensors: dict[str, Tensor],
        layout: GradientLayout,
        each: Tensor | None,
        device: torch.device,
    ) -> Tensor:
        total = tensors["total"].to(device, torch.float32)
        plain, shard = layout.split(each, total)
        made, first = self._made(tensors.get("scale"))
        replicas = self._replicas() if report.step % self._weights_every == 0 else ()
        numbers = {
            RankField.LOSS: tensors.get("loss"),
            # x - x is 0, or NaN where x is not finite.
            RankField.PLAIN: plain
            if report.doubt is None
            else plain + (report.doubt - report.doubt),
            RankField.SHARD: shard,
            RankField.MADE: made,
            RankField.FIRST: first,
            RankField.SKIPPED: report.skipped,
            RankField.CLIP: report.clip,
            RankField.BATCH: rank_table.checksum_batches(
                report.batches if report.sampled else (), device
            ),
            RankField.WEIGHTS: rank_table.checksum_tensors(replicas, device),
        }
        if self._nothing is None:
            self._nothing = torch.tensor([0.0, UNKNOWN]).to(device, non_blocking=True)
        nothing = self._nothing
        return torch.stack(
            [
                nothing[int(slot in MISSING)]
                if number is None
                else number.detach().reshape(()).to(device, torch.float32, non_blocking=True)
                for slot, number in numbers.items()
            ]
        )

    def _host_fields(self, report: RankReport, has_loss: bool) -> Tensor:
        ranks = self.ranks
        ready = max((origin.ready_at for origin in self._of_mine()), default=0.0)
        ready = ready if ready > self._ended else report.began
        fields = {
            RankField.SECONDS: ready - self._ended if self._ended else UNKNOWN,
            RankField.LOSSES: has_loss,
            RankField.LEAVE: ranks.exit_requested,
            RankField.SAVE: ranks.save_asked,
            RankField.POISONED: ranks.poisoned,
            RankField.IDLE: report.idle,
            RankField.ONCE_ONLY: report.once_only,
            RankField.OFF: False,
        }
        ranks.poisoned = ranks.save_asked = False
        return torch.tensor(list(map(float, fields.values())), dtype=torch.float32)

    def _made(self, scale: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """(this rank's own gradient norm, the first backward pass that made it non-finite)."""
        passes = [made for origin in self._of_mine() if (made := origin.passes())]
        self.gradients_cleared()  # they are used, whether or not the user clears them
        if not passes:
            return None, None
        last = torch.linalg.vector_norm(torch.stack([made[-1] for made in passes]))
        most = max(map(len, passes))
        bad = torch.stack([~torch.isfinite(torch.stack(_padded(made, most))) for made in passes])
        bad = bad.any(dim=0)
        first = (bad.int().argmax() + 1) * bad.any()
        return last if scale is None else last / scale, first

    def _replicas(self) -> list[Tensor]:
        size = self.ranks.size
        return [local_part(p) for p in self._parameters if self._copies[id(p)] == size]

    def _write_update(self, vector: Tensor) -> UpdateSample | None:
        update, self._update = self._update, None
        if update is None:
            return None
        parameters, weights, moves = update
        shares = torch.tensor([1.0 / self._copies.get(id(p), self.ranks.size) for p in parameters])
        sizes = torch.stack([weights, moves]).to(vector.device, torch.float32).square()
        zone = vector[self._table + len(self._tail) :].view(2, -1)
        zone[:, : len(parameters)] = sizes * shares.to(vector.device, non_blocking=True)
        return update

    # What all ranks have reported.

    def _reduce(self, vector: Tensor, step: int) -> None:
        self.ranks.training = True
        self.ranks.reduce(vector, dist.ReduceOp.SUM, f"at step {step}")
        self._ended = time.perf_counter()
        self._rounds += 1
        self.cast_already = True
        self._unread.append((self._rounds, vector[: self._table]))

    def _agree(
        self,
        vector: Tensor,
        tensors: dict[str, Tensor],
        layout: GradientLayout,
        each: Tensor | None,
        wanted: bool,
    ) -> None:
        agreed = self._ranks_layout.verdict(vector, sharded=self.sharded)
        total, loss = agreed["total"], agreed["loss"]
        if "loss" in tensors:
            tensors["loss"] = loss / agreed["losses"]
        else:  # another rank's may be bad
            total = total + (loss - loss)
        tensors["total"] = total
        if each is not None:
            tensors["each"] = layout.read(self._sums(vector).to(torch.float32), each)
        tensors["skip"], tensors["calls"] = agreed["skip"], agreed["calls"]
        tensors["off"] = tensors["calls"][-1] > 0
        if wanted:
            tensors["ranks"] = vector[: self._ranks_layout.row_floats].to(torch.float32)

    def _all_off(self) -> bool:
        """Read what a working guard has read by now; whether the guards are off."""
        while self._unread and self._rounds - self._unread[0][0] >= max(self._lag - 1, 0):
            self.delivered()
        return bool(self.ranks.off)

    # Places.

    def _sums(self, vector: Tensor) -> Tensor:
        return vector[self._table :][: len(self._tail)]

    def _layout_of(self, order: Any, key: object, device: torch.device) -> GradientLayout:
        if self._layout is None or self._layout[0] is not key:
            made = GradientLayout(order, self._copies, self._tail, self.ranks.size, device)
            self._layout = (key, made)
        return self._layout[1]

    def _of_mine(self) -> list[LocalGradients]:
        if self._watched is None and self._origins.installed:
            self._watched = self._origins.of(self._parameters)
        return self._watched or []


def _padded(norms: list[Tensor], count: int) -> list[Tensor]:
    return [*norms, *(torch.zeros_like(norms[0]) for _ in range(count - len(norms)))]
