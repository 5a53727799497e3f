"""The other ranks, while a bad step is run again on all of them.

A DistributedDataParallel keeps its gradients to itself meanwhile: so each rank sees what it made
alone, and a step that raises leaves nothing half reduced. FSDP2 cannot compute without the others;
should a step end early, it is put in order again. What the step would have amounted to over all
ranks is worked out from the parts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from headway.live import shards
from headway.live.meeting import Meeting, Place, Rounds, StepEnded
from headway.live.origins import Origins
from headway.live.ranks import Ranks
from headway.live.shards import local_part
from headway.live.together import Alone

T = TypeVar("T")

COMPRESSED = (
    "gradients change on their way between the ranks (a communication hook, or mixed precision of "
    "DistributedDataParallel), which a step that is run again does not do"
)
COMPILED = (
    "with several ranks a compiled step is run again op by op, which may go well where it fails"
)


class Company:
    """The ranks that run a step again together, seen from one of them."""

    def __init__(
        self, ranks: Ranks, origins: Origins, models: Sequence[nn.Module], together: Alone
    ) -> None:
        self._ranks = ranks
        self._origins = origins
        self._models = models
        self._together = together
        self._rounds = Rounds(together.group)
        self._meeting: Meeting | None = None
        self._undo = ExitStack()

    @property
    def able(self) -> bool:
        """Whether a step can be run again at all."""
        if self._searching and self._origins.compressed:
            return False  # settling would go through the user's own hook
        module = sys.modules.get("torch.distributed.fsdp")
        return module is None or not any(
            isinstance(unit, module.FullyShardedDataParallel)  # once it failed, it stays so
            for model in self._models
            for unit in model.modules()
        )

    @property
    def settles(self) -> bool:
        """Whether `settle` changes gradients that lie in memory of torch's own."""
        return any(replica.gradient_as_bucket_view for replica in self._searching)

    @property
    def inexact(self) -> str:
        """Why a step that is run again may not be what it was; empty: it is."""
        if self._origins.compressed:
            return COMPRESSED
        return COMPILED if self._origins.compiled else ""

    def agree(self, value: T) -> list[T]:
        """What every rank says; raises StepEnded where one has given up."""
        if self._rounds.ask(Place.TOGETHER, "agree") is not Place.TOGETHER:
            raise StepEnded("another rank has given up")
        return self._together.gathered(value)

    def give_up(self) -> None:
        """Let the others know that this rank goes no further."""
        self._rounds.ask(Place.FAILED)

    def begin(self) -> None:
        """A step begins, on all ranks at the same time."""
        self._meeting = self._undo.enter_context(Meeting(self._rounds))
        if "torch._dynamo" in sys.modules:  # what once met a meeting would stay uncompiled
            self._undo.enter_context(torch.compiler.set_stance("force_eager"))
        self._undo.callback(self._origins.listen_again)
        self._origins.look_away()

    def keep_apart(self) -> None:
        """Every rank keeps what it makes to itself, where that is possible."""
        for replica in self._origins.replicas:
            self._keep_to_itself(replica)

    def end(self, *, failed: bool) -> bool:
        """It is over here; returns when it is over everywhere: whether it ended early somewhere."""
        meeting, self._meeting = self._meeting, None
        if meeting is None:
            return False
        self._undo.close()
        meeting.end(failed=failed)
        if meeting.parted:
            shards.start_afresh(self._models)
        return meeting.parted

    def settle(self) -> None:
        """All is over, on every rank. Gradients are to be put back afterwards.

        A DistributedDataParallel that looks for unused parameters notes those in use also while it
        keeps to itself, and takes them for the next step's: it forgets them when it reduces.
        """
        for replica in self._searching:
            self._origins.look_away()
            with torch.enable_grad():
                used = [p.reshape(-1)[:1].sum() for p in replica.parameters() if p.requires_grad]
                total = torch.stack([one.float() for one in used]).sum()
                replica.reducer.prepare_for_forward()
                replica.reducer.prepare_for_backward([total])
                total.backward()
            self._origins.listen_again()

    @property
    def _searching(self) -> list[nn.parallel.DistributedDataParallel]:
        replicas = self._origins.replicas
        return [item for item in replicas if item.find_unused_parameters and not item.static_graph]

    def made_alone(self, norms: Iterable[float]) -> float:
        """The norm of what this rank's backward made, before it met the others'."""
        found = self._origins.seen_aside()
        seen = norms if found is None else [found]
        return math.sqrt(sum(norm * norm for norm in seen))

    @torch.no_grad()
    def norms(self, parameters: Sequence[Any]) -> list[float]:
        """Norms of the gradients over all ranks; every rank must ask for the same."""
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

    def _keep_to_itself(self, replica: nn.parallel.DistributedDataParallel) -> None:
        for name in ("require_backward_grad_sync", "require_forward_param_sync"):
            self._undo.callback(setattr, replica, name, getattr(replica, name))
        if replica.will_sync_module_buffers():
            replica._sync_buffers()
        replica.require_backward_grad_sync = replica.require_forward_param_sync = False
