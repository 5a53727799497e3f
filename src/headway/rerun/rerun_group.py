"""Runs a bad step again on all ranks together: a vote before each collective, so that no rank waits
forever.
"""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from enum import IntEnum
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from headway.torch_adapters.modes import TorchDispatchMode
from headway.torch_adapters.op_schema import op_name
from headway.torch_adapters.process_groups import sharded_tensors
from headway.torch_adapters.process_groups.local_gradients import LocalGradientMonitor
from headway.torch_adapters.process_groups.rank_agreement import Agreement
from headway.torch_adapters.process_groups.rank_group import RankGroup, sync_buffers
from headway.torch_adapters.process_groups.sharded_tensors import local_part

# In a re-run one rank may raise where the others do not, and they would wait for it in their next
# collective. So the ranks vote before each collective, whatever starts it: FSDP,
# DistributedDataParallel, SyncBatchNorm, the user. If one has failed, or they are not all at the
# same place, the step ends on every rank.

# The end of a pass needs no separate vote: a rank reports that its pass is over in the next vote
# about it. If the pass failed on any rank, that vote ends it, and the vote is repeated.

T = TypeVar("T")

_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
_WAITING = "wait_tensor"
_BETWEEN_TWO = ("send", "recv_", "recv_any_source_")


class StepAborted(RuntimeError):
    """The step ends on this rank because it ended on another rank."""


class RankPosition(IntEnum):
    """The position of a rank; the highest value counts for all."""

    TOGETHER = 0
    """Before a collective."""
    OVER = 1
    FAILED = 2
    GIVEN_UP = 3
    """A rank has stopped the investigation."""


SPARE_NUMBERS = 3
"""Numbers in each vote: all votes have the same size, whatever the position of a rank."""


class VoteRounds:
    """Votes among all ranks."""

    def __init__(self, together: Agreement) -> None:
        self._together = together

    def ask(self, place: RankPosition, what: str = "") -> RankPosition:
        """Where the ranks are; FAILED if they are not all at the same place."""
        return self.exchange(place, what, None)[0]

    def exchange(
        self, place: RankPosition, what: str, value: T, numbers: Sequence[int] = ()
    ) -> tuple[RankPosition, list[int], Callable[[], list[T]]]:
        """The same, the highest of up to three numbers, and the values of all ranks; for ranks that
        are at the same place."""
        spare = [*numbers, *[0] * (SPARE_NUMBERS - len(numbers))]
        about = (place, zlib.crc32(what.encode()), *spare)
        high, low, values = self._together.vote(about, value)
        found = RankPosition(high[0])
        if high[:2] != low[:2] and found is not RankPosition.GIVEN_UP:
            found = RankPosition.FAILED
        return found, high[2:], values


class CollectiveGate(TorchDispatchMode):
    """A dispatch mode that votes before each collective of one pass."""

    def __init__(self, rounds: VoteRounds) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rounds = rounds
        self.aborted = False
        """Whether all ranks know that the pass ended early on some rank."""
        self.given_up = False
        """Whether a rank has stopped the investigation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in _NAMESPACES and op_name(func) != _WAITING:
            self._before(func, args)
        return func(*args, **(kwargs or {}))

    def _before(self, func: Any, args: Any) -> None:
        """A collective is about to begin on this rank."""
        if self.aborted:
            raise StepAborted("another rank's step ended early")
        alone = op_name(func) in _BETWEEN_TWO  # a pipeline: its ranks do different things
        place = self._rounds.ask(
            RankPosition.FAILED if alone else RankPosition.TOGETHER, _what(func, args)
        )
        if place is not RankPosition.TOGETHER:
            self.aborted, self.given_up = True, place is RankPosition.GIVEN_UP
            raise StepAborted(
                "a step with send and recv between ranks cannot be run again"
                if alone
                else "another rank's step ended early"
            )


def _what(func: Any, args: Any) -> str:
    """Equal for collectives that belong together."""
    return repr((op_name(func), [size for item in args if (size := _size(item))]))


def _size(item: Any) -> int | None:
    if not isinstance(item, torch.ScriptObject):
        return None
    try:
        return int(dist.ProcessGroup.unbox(item).size())
    except (RuntimeError, AttributeError):  # a reduction, or a torch that does not tell
        return None


# DistributedDataParallel does not reduce gradients in a re-run: each rank sees what it computed
# itself, and a step that raises leaves nothing half reduced. FSDP2 cannot compute without the other
# ranks; if a step ends early, its state is reset. Norms over all ranks are computed from the parts.

COMPRESSED = (
    "a communication hook, or mixed precision of DistributedDataParallel, changes gradients "
    "between the ranks, which a re-run does not repeat"
)
COMPILED = (
    "with several ranks a compiled step is run again op by op, which may succeed where it failed"
)


class RerunGroup:
    """The ranks that run a step again together, as seen by one of them."""

    def __init__(
        self,
        ranks: RankGroup,
        origins: LocalGradientMonitor,
        models: Sequence[nn.Module],
        together: Agreement,
    ) -> None:
        self._ranks = ranks
        self._origins = origins
        self._models = models
        self._together = together
        self._rounds = VoteRounds(together)
        self._gate: CollectiveGate | None = None
        self._undo = ExitStack()
        self._unannounced: tuple[RankPosition, Callable[[], None]] | None = None
        """A pass is over on this rank, and the others do not know yet: how it ended, and the
        function to call if it ended early on any rank."""
        self._given_up = False

    @property
    def obstacle(self) -> str:
        """Why no step can be run again; empty: one can."""
        if not self._together.can_meet:
            return "the ranks cannot open connections for it"
        if self._searching and self._origins.compressed:  # `settle` would call the hook
            return "the model has a communication hook of its own and unused parameters"
        module = sys.modules.get("torch.distributed.fsdp")
        if module is not None and any(
            isinstance(unit, module.FullyShardedDataParallel)
            for model in self._models
            for unit in model.modules()
        ):
            return "FullyShardedDataParallel does not recover from an error in a pass"
        return ""

    @property
    def settles(self) -> bool:
        """Whether `settle` changes gradients that are views of DDP's buckets."""
        return any(replica.gradient_as_bucket_view for replica in self._searching)

    @property
    def inexact(self) -> str:
        """Why a re-run may differ from the step; empty: it does not."""
        if self._origins.compressed:
            return COMPRESSED
        return COMPILED if self._origins.compiled else ""

    def gather(self, value: Callable[[], T]) -> list[T]:
        """The values of all ranks; raises StepAborted if one has given up."""
        return self._exchange("gather", value, lambda: ())[1]()

    def highest(self, numbers: Callable[[], Sequence[int]]) -> list[int]:
        """The highest of each of up to three numbers; raises StepAborted if a rank has given up."""
        return self._exchange("highest", lambda: None, numbers)[0]

    def _exchange(
        self, what: str, value: Callable[[], T], numbers: Callable[[], Sequence[int]]
    ) -> tuple[list[int], Callable[[], list[T]]]:
        while not self._given_up:
            unannounced, self._unannounced = self._unannounced, None
            place = RankPosition.TOGETHER if unannounced is None else unannounced[0]
            found, high, values = self._rounds.exchange(place, what, value(), numbers())
            if found is place is not RankPosition.FAILED:
                return high, values
            # All ranks that get here vote again, unless a rank has given up.
            if found is RankPosition.GIVEN_UP:
                self._given_up = True
            elif unannounced is None:
                self.give_up()
            else:  # the pass has failed on some rank: now all know, and vote accordingly
                self._reset(unannounced[1])
        raise StepAborted("another rank gave up")

    def give_up(self) -> None:
        """Report once to the other ranks that this rank stops."""
        if not self._given_up:
            self._given_up, self._unannounced = True, None
            self._rounds.ask(RankPosition.GIVEN_UP)

    def open(self) -> None:
        """An investigation begins, on all ranks."""
        self._given_up, self._unannounced = False, None

    def begin(self, restore_buffers: Callable[[], object]) -> None:
        """A pass begins, on all ranks at the same time; gradients are not exchanged in it, where
        that is possible."""
        self._gate = self._undo.enter_context(CollectiveGate(self._rounds))
        if "torch._dynamo" in sys.modules:  # what has run under a mode once stays uncompiled
            self._undo.enter_context(torch.compiler.set_stance("force_eager"))
        self._undo.callback(self._origins.resume_observing)
        self._origins.pause_observing()
        restore_buffers()
        for replica in self._origins.replicas:
            self._disable_sync_of(replica)

    def end(self, *, failed: bool, aborted: Callable[[], None]) -> None:
        """The pass is over on this rank. The others learn it in the next vote; `aborted` is called
        once it is known that the pass ended early on some rank."""
        gate, self._gate = self._gate, None
        if gate is None:
            return
        self._undo.close()
        self._given_up = self._given_up or gate.given_up
        if gate.aborted:
            self._reset(aborted)
        else:
            place = RankPosition.FAILED if failed else RankPosition.OVER
            self._unannounced = (place, aborted)

    def _reset(self, aborted: Callable[[], None]) -> None:
        sharded_tensors.reset_fsdp(self._models)
        aborted()

    def finish(self) -> None:
        """No pass follows. If no vote followed the last one, this rank stops."""
        if self._unannounced is not None:
            self.give_up()

    def settle(self) -> None:
        """All passes are over, on every rank. The caller restores the gradients afterwards.

        A DistributedDataParallel that looks for unused parameters records the used ones even
        without a reduction, and would take them for those of the next step: a reduction clears it.
        """
        for replica in self._searching:
            self._origins.pause_observing()
            with torch.enable_grad():
                used = [p.reshape(-1)[:1].sum() for p in replica.parameters() if p.requires_grad]
                total = torch.stack([one.float() for one in used]).sum()
                replica.reducer.prepare_for_forward()
                replica.reducer.prepare_for_backward([total])
                total.backward()
            self._origins.resume_observing()

    @property
    def _searching(self) -> list[nn.parallel.DistributedDataParallel]:
        replicas = self._origins.replicas
        return [item for item in replicas if item.find_unused_parameters and not item.static_graph]

    def local_norm(self, norms: Iterable[float]) -> float:
        """The norm of the gradient that this rank computed, before any reduction."""
        found = self._origins.paused_norm()
        seen = norms if found is None else [found]
        return math.sqrt(sum(norm * norm for norm in seen))

    @torch.no_grad()
    def norms(self, parameters: Sequence[Any]) -> list[float]:
        """Norms of the gradients over all ranks; every rank must pass the same parameters."""
        return [self._norm(parameter) for parameter in parameters]

    def _norm(self, parameter: Any) -> float:
        gradient = local_part(parameter.grad)
        if gradient is None:
            gradient = torch.zeros_like(local_part(parameter))
        gradient = gradient.to_dense() if gradient.is_sparse else gradient
        gradient = gradient.to(self._ranks.place(gradient.device), torch.float32, copy=True)
        size, copies = self._ranks.size, self._ranks.copies.of(parameter)
        if copies == size:  # averaged already, or to be averaged
            dist.all_reduce(gradient.div_(size), group=self._ranks.group)
            return float(torch.linalg.vector_norm(gradient))
        square = torch.linalg.vector_norm(gradient).double().square().reshape(1) / copies
        dist.all_reduce(square, group=self._ranks.group)
        return math.sqrt(float(square))

    def _disable_sync_of(self, replica: nn.parallel.DistributedDataParallel) -> None:
        for name in ("require_backward_grad_sync", "require_forward_param_sync"):
            self._undo.callback(setattr, replica, name, getattr(replica, name))
        sync_buffers(replica)
        replica.require_backward_grad_sync = replica.require_forward_param_sync = False
