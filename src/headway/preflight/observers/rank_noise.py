"""Whether the ranks draw the same random numbers for their steps: dropout and noise on different
batches, or the batches themselves.

Each rank leaves a checksum of its random number state in the store of the process group, and the
first rank reads them. No rank waits for another.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.preflight.observer import Observer
from headway.preflight.script_context import observe_method
from headway.preflight.source_lines import find_line
from headway.torch_adapters.nested_state import find_tensors
from headway.torch_adapters.process_groups.rank_group import default_store

TOPIC = "rank-noise"
STEPS = 3
"""The first steps, which are compared."""
SEEDS = r"^(?!\s*(def|from|import)\b).*(manual_seed|set_seed|seed_everything)\("


class RankNoise(Observer):
    """Compares the random number states from which the numbers of a step are drawn: since the last
    step, or since a loader returned its batch, to the end of the first training forward."""

    def start(self) -> None:
        self._before: tuple[nn.Module, int] | None = None
        self._base: int | None = None
        """The state after the last step or batch."""
        self._weight: Tensor | None = None
        self._loaded = False
        self._sampled = True
        """Whether replicas draw their batches themselves, so far."""
        self._sent = -1
        self._over = False
        self._seeded: dict[str, Any] | None = None
        """Where the random numbers were last seeded."""
        observe_method(self.script, torch, "manual_seed", after=self._seeds)

    def _seeds(self, *_: Any, **__: Any) -> None:
        if self._sent < 0:
            self._seeded = self.script.place()

    @property
    def _listens(self) -> bool:
        ready = not self._over and self.script.step < STEPS and self.script.step != self._sent
        return ready and dist.is_available() and dist.is_initialized()

    def step_ended(self, optimizer: Optimizer) -> None:
        if self._listens:
            self._weight = optimizer.param_groups[0]["params"][0]
            self._base = _state_on(self._weight)

    def pass_begun(self, loader: Any) -> None:
        self._loaded = True

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        self._loaded = True
        self._base = None if self._weight is None else _state_on(self._weight)

    def module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._listens and torch.is_grad_enabled() and module.training:
            self._before = (module, _state_of(module))

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        before, self._before = self._before, None
        if before is None or before[0] is not module or not self._listens:
            return
        base = before[1] if self._base is None else self._base
        if base == _state_of(module):
            return  # draws no random numbers
        drawn = base != before[1]
        replica = isinstance(module, nn.parallel.DistributedDataParallel)
        self._sampled = self._sampled and drawn and replica and not self._loaded
        store = default_store()
        if store is not None and dist.get_world_size() > 1:
            self._sent = self.script.step
            batch = _checksum([list(args), dict(kwargs)])
            store.set(_key(self._sent, dist.get_rank()), f"{base} {batch!r}")

    def step_begins(self, optimizer: Optimizer) -> None:
        if self.script.step >= STEPS and not self._over:
            self._compare()

    def finished(self) -> None:
        if not self._over:
            self._compare()

    def _compare(self) -> None:
        self._over, self._weight = True, None
        store = default_store() if dist.is_available() and dist.is_initialized() else None
        if store is None or dist.get_rank() != 0 or self._sent < 0:
            return
        ranks = dist.get_world_size()
        samples = shared = same_batches = 0
        for step in range(STEPS):
            keys = [_key(step, rank) for rank in range(ranks)]
            if not store.check(keys):
                continue
            found = [store.get(key).decode().split() for key in keys]
            samples += 1
            shared += len({state for state, _ in found}) == 1
            same_batches += len({batch for _, batch in found}) == 1
        if samples:
            facts: dict[str, Any] = {
                "ranks": ranks,
                "samples": samples,
                "shared": shared,
                "same_batches": same_batches,
                "sampled": self._sampled,
            }
            place = self._seeded or find_line(self.script, SEEDS)
            if place is not None:
                facts["place"] = place
            self.evidence.record(TOPIC, facts)


def _state_of(module: nn.Module) -> int:
    """A checksum of the random number state on the device of a module."""
    return _state_on(next(module.parameters(), None))


def _state_on(weight: Tensor | None) -> int:
    if weight is not None and weight.is_cuda:
        state = torch.cuda.get_rng_state(weight.device)
    else:
        state = torch.get_rng_state()
    return zlib.crc32(state.numpy().tobytes())


def _checksum(inputs: Any) -> float:
    tensors = [tensor.detach() for _, tensor in find_tensors(inputs) if tensor.numel()]
    return sum(float(tensor.double().sum()) for tensor in tensors[:4] if not tensor.is_complex())


def _key(step: int, rank: int) -> str:
    return f"headway/noise/{step}/{rank}"
