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
from headway.guard.ranks.rank_table import CALLS, MISSING, UNKNOWN, RankField, RankTable
from headway.rerun.bad_step import StepContext
from headway.torch_adapters.local_gradients import LocalGradientMonitor, LocalGradients
from headway.torch_adapters.rank_group import FAILED, RankGroup
from headway.torch_adapters.sharded_tensors import local_part

# Which of an optimizer's gradients are whole on every rank and which are pieces.

# The norm over all ranks counts a replica once and adds up the squares of the pieces, each divided
# by the number of ranks that hold the same one.


class GradientLayout:
    """A list of gradients: where each has its place among the sums of squares."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        copies: Mapping[int, int],
        tail: Mapping[int, int],
        size: int,
        device: torch.device,
    ) -> None:
        """`copies` and `tail` (the place of a parameter that is cut up) go by identity."""
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
        """(norm of the replicas, norm of this rank's share of the pieces)."""
        if each is None or not self._any_pieces:
            return total, torch.zeros_like(total)
        plain = torch.linalg.vector_norm(each[self._whole])
        return plain, torch.linalg.vector_norm(each[self._pieces] * self._shares.sqrt())

    def write(self, sums: Tensor, each: Tensor | None) -> None:
        """Put this rank's share of the squares into their places."""
        if each is not None and self._any_placed:
            shares = torch.zeros_like(each)
            shares[self._pieces] = self._shares
            sums[self._places] = (each.square() * shares)[self._placed]

    def read(self, sums: Tensor, each: Tensor) -> Tensor:
        """Every gradient's norm over all ranks, where it is known."""
        if not self._any_placed:
            return each
        norms = each.clone()
        norms[self._placed] = sums[self._places].sqrt()
        return norms


def _index(positions: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(positions, dtype=torch.int64).to(device, non_blocking=True)


# One optimizer's part in the agreement of the ranks: a say, and what all have said.

# One vector of float32 goes through one all-reduce. Each rank has a row of its own in it
# (`tally.py`) and leaves zeros in everybody else's, so that the sum is a table with NaN and
# infinities where they were, and every rank computes the same verdict from it. Behind the table
# come the squares of the norms of tensors that are cut up, which are true sums over the ranks.

# The size is the same at every step, whatever happens at it. On CUDA all of it stays on the
# device.

_WIDTH = len(RankField)


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank knows of a step, apart from the norms of its gradients."""

    step: int
    began: float
    skipped: Tensor | None = None
    """A GradScaler's verdict."""
    clip: Tensor | None = None
    """The norm by which the user clipped."""
    doubt: Tensor | None = None
    """A number that makes the step bad where it is not finite."""
    sampled: bool = False
    """The host wants the whole table, and the batches are compared."""
    batches: Sequence[Any] = ()
    idle: bool = False
    """There is nothing to step here."""
    once_only: bool = False
    """The step cannot be run again here, whatever becomes of it."""

    @classmethod
    def of(cls, context: StepContext, **more: Any) -> RankReport:
        """The report on a step."""
        return cls(context.step, context.started, once_only=not context.again, **more)


class StepVote:
    """One optimizer's part in the agreement."""

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
        """Whether ranks hold different pieces of some gradients."""
        self._tail = {id(p): at for at, p in enumerate(cut)} if ranks.alike else {}
        self._layout: tuple[object, GradientLayout] | None = None
        self._update: UpdateSample | None = None
        self._nothing: Tensor | None = None
        self._rounds = 0
        self._unread: deque[tuple[int, Tensor]] = deque()
        self._ended = 0.0
        self.cast_already = False
        """Whether this rank has had its say about the step at hand."""
        self.hold_agreed = False
        """Whether the host knows that all hold the step at hand back."""

    @property
    def floats(self) -> int:
        """How many numbers go through the reduction."""
        return (
            self._table + len(self._tail) + (2 * sampling.MAX_SAMPLED_TENSORS if self._tail else 0)
        )

    @property
    def _table(self) -> int:
        return self.ranks.size * _WIDTH

    # Through a step.

    def gradients_cleared(self) -> None:
        """What backward passes made before is gone."""
        for origin in self._of_mine():
            origin.forget()

    def step_begins(self) -> None:
        """The optimizer is about to step."""
        self.cast_already = self.hold_agreed = False

    def cast(
        self, say: RankReport, tensors: dict[str, Tensor], key: object, order: Any
    ) -> UpdateSample | None:
        """Have this rank's say and put what all agree on in its place.

        `tensors` holds what was measured here and gets the agreed `total`, `loss` and `each`,
        whether some rank's scaler skips (`skip`) or guard is off (`off`), how many ranks called
        out what (`calls`) and, where it is wanted, the table (`ranks`).
        `order` are the parameters of `each`, and the same as long as `key` is. Returns the update
        whose sizes were put together, if one was waiting for it.
        """
        total = tensors["total"]
        device = self.ranks.place(total.device)
        layout = self._layout_of(order, key, device)
        vector = torch.zeros(self.floats, device=device)
        row = vector[self.ranks.rank * _WIDTH :][:_WIDTH]
        each = tensors.get("each")
        each = None if each is None else each.to(device, torch.float32)
        row[: RankField.SECONDS] = self._measured(say, tensors, layout, each, device)
        row[RankField.SECONDS :] = self._told(say, "loss" in tensors).to(device, non_blocking=True)
        layout.write(self._sums(vector), each)
        update = self._write_update(vector)
        self._reduce(vector, say.step)
        self._agree(vector, tensors, layout, each, say.sampled)
        if update is not None:
            sizes = vector[self._table + len(self._tail) :].sqrt().view(2, -1)
            count = len(update[0])
            update = (update[0], sizes[0, :count], sizes[1, :count])
        if device != total.device:
            for name in ("total", "loss", "each", "skip", "off", "calls", "ranks"):
                if name in tensors:
                    tensors[name] = tensors[name].to(total.device, non_blocking=True)
        return update

    def abstain(self, step: int) -> None:
        """This rank's guard has failed: say so until all know it, and then say nothing more.

        Reads the table as late as a guard that works does, so that all stop at the same step.
        """
        if self._all_off() or self.cast_already:
            return
        device = self.ranks.place(self._parameters[0].device)
        row = [UNKNOWN if slot in MISSING else 0.0 for slot in RankField]
        row[RankField.OFF] = 1.0
        vector = torch.zeros(self.floats, device=device)
        vector[self.ranks.rank * _WIDTH :][:_WIDTH] = torch.tensor(row).to(device)
        self._reduce(vector, step)
        if self._lag == 0:
            self._all_off()

    def delivered(
        self, calls: Sequence[float] | None = None, table: Sequence[float] | None = None
    ) -> RankTable:
        """The oldest step whose outcome the host did not know: `calls` and perhaps the table are
        there by now; what is not given is fetched."""
        _, there = self._unread.popleft()
        if calls is None:
            calls = there.view(-1, _WIDTH)[:, CALLS].sum(dim=0).tolist()
        tally = RankTable(calls, there if table is None else table)
        self.ranks.leaving = self.ranks.leaving or tally.count(RankField.LEAVE) > 0
        self.ranks.saving = self.ranks.saving or tally.count(RankField.SAVE) > 0
        if tally.count(RankField.OFF):
            self.ranks.off = self.ranks.off or FAILED
        return tally

    def keep_update(self, sample: UpdateSample) -> bool:
        """An update whose pieces lie on several ranks: its size is known after the next reduction.

        False where what lies here is all there is.
        """
        if self._tail:
            self._update = sample
        return bool(self._tail)

    def exclude_time(self, seconds: float) -> None:
        """The training stood still for so long."""
        if self._ended:
            self._ended += seconds

    # What this rank says.

    def _measured(
        self,
        say: RankReport,
        tensors: dict[str, Tensor],
        layout: GradientLayout,
        each: Tensor | None,
        device: torch.device,
    ) -> Tensor:
        total = tensors["total"].to(device, torch.float32)
        plain, shard = layout.split(each, total)
        made, first = self._made(tensors.get("scale"))
        replicas = self._replicas() if say.step % self._weights_every == 0 else ()
        numbers = {
            RankField.LOSS: tensors.get("loss"),
            # x - x is 0, or NaN where x is not finite.
            RankField.PLAIN: plain if say.doubt is None else plain + (say.doubt - say.doubt),
            RankField.SHARD: shard,
            RankField.MADE: made,
            RankField.FIRST: first,
            RankField.SKIPPED: say.skipped,
            RankField.CLIP: say.clip,
            RankField.BATCH: rank_table.checksum_batches(
                say.batches if say.sampled else (), device
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

    def _told(self, say: RankReport, has_loss: bool) -> Tensor:
        ranks = self.ranks
        ready = max((origin.ready_at for origin in self._of_mine()), default=0.0)
        ready = ready if ready > self._ended else say.began
        told = {
            RankField.SECONDS: ready - self._ended if self._ended else UNKNOWN,
            RankField.LOSSES: has_loss,
            RankField.LEAVE: ranks.leave_asked,
            RankField.SAVE: ranks.save_asked,
            RankField.POISONED: ranks.poisoned,
            RankField.IDLE: say.idle,
            RankField.ONCE_ONLY: say.once_only,
            RankField.OFF: False,
        }
        ranks.poisoned = ranks.save_asked = False
        return torch.tensor(list(map(float, told.values())), dtype=torch.float32)

    def _made(self, scale: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """(this rank's own gradient norm, the first backward pass that made it non-finite)."""
        passes = [made for origin in self._of_mine() if (made := origin.passes())]
        self.gradients_cleared()  # used up, whether or not the user clears them
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

    # What all said.

    def _reduce(self, vector: Tensor, step: int) -> None:
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
        table = vector[: self._table].view(self.ranks.size, _WIDTH)
        loss = table[:, RankField.LOSS]
        total = table[:, RankField.PLAIN].amax()
        if self.sharded:
            total = torch.linalg.vector_norm(torch.cat([total[None], table[:, RankField.SHARD]]))
        if "loss" in tensors:
            tensors["loss"] = loss.sum() / table[:, RankField.LOSSES].sum()
        else:  # another rank's may be bad
            total = total + (loss - loss).sum()
        tensors["total"] = total
        if each is not None:
            tensors["each"] = layout.read(self._sums(vector), each)
        tensors["skip"] = table[:, RankField.SKIPPED].amax() > 0
        calls = table[:, CALLS].sum(dim=0)
        tensors["calls"], tensors["off"] = calls, calls[-1] > 0
        if wanted:
            tensors["ranks"] = table

    def _all_off(self) -> bool:
        """Read what a working guard would have read by now; whether the guards are off."""
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
