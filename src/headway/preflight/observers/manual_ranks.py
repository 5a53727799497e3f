"""Ranks that average their gradients by hand: whether their weights stay equal.

A guard follows ranks that a wrapper of torch holds together. Where a script does that by itself,
with collectives between backward and the step, each rank leaves a checksum of its weights in the
store of the process group, and the first rank reads them. Nobody waits for anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from headway.guard.ranks.rank_table import checksum_tensors
from headway.preflight.observer import Observer
from headway.preflight.script_context import observe_method
from headway.torch_adapters.nested_state import find_tensors
from headway.torch_adapters.process_groups.rank_group import default_store

SIGNAL = "rank/weights_hash"
CLOSELY, EVERY = 10, 10
"""The first steps are all inspected, then every n-th."""
WAITING = 8
"""Steps at most whose checksums are still waited for."""
_COLLECTIVES = (
    *("all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "all_gather"),
    *("all_gather_into_tensor", "all_gather_object", "reduce_scatter", "reduce_scatter_tensor"),
    *("all_to_all", "all_to_all_single", "batch_isend_irecv", "send", "isend", "gather"),
)


class ManualRanks(Observer):
    """Listens for collectives between backward and the step, and compares checksums."""

    def start(self) -> None:
        self._after_backward = self._in_backward = False
        self._sent = self._sent_within = 0
        """Elements exchanged between backward and the step; within backward, by hooks."""
        self._waiting: dict[int, bool] = {}
        """Steps whose checksums are not all there; whether gradients were exchanged before it."""
        self._equal_at_first: bool | None = None
        if dist.is_available():
            for name in _COLLECTIVES:
                observe_method(self.script, dist, name, before=self._exchanged)

    def _exchanged(self, *args: Any, **kwargs: Any) -> None:
        if not (self._after_backward or self._in_backward):
            return
        elements = max((tensor.numel() for _, tensor in find_tensors([args, kwargs])), default=1)
        if self._in_backward:
            self._sent_within += elements
        else:
            self._sent += elements

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self._in_backward = True

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self._in_backward, self._after_backward = False, True

    def step_begins(self, optimizer: Optimizer) -> None:
        if self._after_backward:
            self._look()
        self._after_backward, self._sent, self._sent_within = False, 0, 0

    @torch.no_grad()
    def _look(self) -> None:
        step = self.script.step
        guard = self.script.launch.guard
        followed = guard is None or guard.session.ranks is not None
        if followed or not (self._sent or self._sent_within) or (step >= CLOSELY and step % EVERY):
            return
        if not dist.is_initialized() or dist.get_world_size() < 2:
            return
        weights = [p for model in self.script.models for p in model.parameters() if p.requires_grad]
        # All gradients go to all ranks: then they train one model, however it began.
        every = 10 * (self._sent + self._sent_within) >= 9 * sum(p.numel() for p in weights)
        if not self._sent and not every:
            return  # activations of a model that is spread over the ranks
        checksum = checksum_tensors(weights, torch.device("cpu"))
        store = default_store()
        if checksum is None or store is None:
            return
        store.set(_key(step, dist.get_rank()), repr(float(checksum)))
        if dist.get_rank() == 0:
            self._waiting[step] = every
            self._read(store)

    def _read(self, store: Any) -> None:
        ranks = range(dist.get_world_size())
        for step in list(self._waiting):
            keys = [_key(step, rank) for rank in ranks]
            if not store.check(keys):
                continue
            all_gradients = self._waiting.pop(step)
            found = {
                str(rank): float(store.get(key)) for rank, key in zip(ranks, keys, strict=True)
            }
            if self._equal_at_first is None:
                self._equal_at_first = len(set(found.values())) == 1
            if all_gradients or self._equal_at_first:
                self.evidence.column(SIGNAL, found)
        for step in list(self._waiting)[:-WAITING]:
            del self._waiting[step]


def _key(step: int, rank: int) -> str:
    return f"headway/weights/{step}/{rank}"
