"""Measurements that are made every few steps (update sizes, memory), and their intervals."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from headway.core.signals import Signal
from headway.guard.endings.host_memory import portable_rss
from headway.guard.measure.gradient_measure import to_one_device
from headway.guard.memory import retained_graphs
from headway.guard.ranks import rank_table
from headway.torch_adapters.process_groups.sharded_tensors import local_part
from headway.torch_adapters.saved_state import BufferBackup

SAMPLE_INTERVAL = 10
"""Steps between two samples."""
ZERO_COUNT_INTERVAL = 50
"""Steps between two counts of zero gradients, which need an extra pass."""
MAX_SAMPLED_ELEMENTS = 1 << 20
MAX_SAMPLED_TENSORS = 32
"""Maximum size of a sample; larger models are sampled in rotation."""


UpdateSample = tuple[Sequence[Tensor], Tensor, Tensor]
"""Parameters, the norms of their weights before the step, the norms of their updates."""


class UpdateSampler:
    """Measures ‖update‖ / ‖weight‖ from copies of weights before a step."""

    def __init__(
        self, max_tensors: int = MAX_SAMPLED_TENSORS, max_elements: int = MAX_SAMPLED_ELEMENTS
    ) -> None:
        self._most_tensors = max_tensors
        self._most_elements = max_elements
        self._cursor = 0
        self._chosen: list[Tensor] = []
        self._before: list[Tensor] = []

    @torch.no_grad()
    def before(self, parameters: Sequence[Tensor]) -> None:
        """Choose the next tensors in rotation, and copy them."""
        self._chosen = self._choose(parameters)
        # One call for all the copies: adding 0 is a copy that torch makes in a single launch.
        self._before = list(torch._foreach_add([local_part(p) for p in self._chosen], 0))

    def cancel(self) -> None:
        """The update was skipped: nothing to measure."""
        self._chosen, self._before = [], []

    @torch.no_grad()
    def after(self) -> UpdateSample | None:
        """None without a sample."""
        if not self._chosen:
            return None
        chosen, before = self._chosen, self._before
        self.cancel()
        now = [local_part(parameter) for parameter in chosen]
        return chosen, _norms(before), _norms(torch._foreach_sub(now, before))

    def _choose(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        chosen: list[Tensor] = []
        elements = 0
        for offset in range(min(len(parameters), self._most_tensors)):
            parameter = parameters[(self._cursor + offset) % len(parameters)]
            elements += parameter.numel()
            if chosen and elements > self._most_elements:
                break
            chosen.append(parameter)
        self._cursor = (self._cursor + len(chosen)) % max(len(parameters), 1)
        return chosen


def _norms(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(to_one_device(list(torch._foreach_norm(list(tensors), 2.0))))


def host_rss_bytes() -> int | None:
    """Resident memory of this process and its children (loader workers); None where unknown."""
    own = _rss_of(os.getpid())
    if own is None:
        return None
    return own + worker_rss_bytes()


def worker_rss_bytes() -> int:
    """Resident memory of the children (loader workers) alone."""
    return sum(_rss_of(child) or 0 for child in _children())


def device_allocated_bytes(device: torch.device) -> int | None:
    """Memory that tensors hold on an accelerator; None on the CPU and where it is not known."""
    if device.type == "cpu":
        return None
    try:
        module = torch.get_device_module(device.type)
    except RuntimeError:  # a device that torch has no module for
        return None
    if hasattr(module, "memory_allocated"):
        return int(module.memory_allocated(device))
    read = getattr(module, "current_allocated_memory", None)  # the name on MPS
    return None if read is None else int(read())


def _rss_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            return int(file.read(128).split()[1]) * _page_bytes()
    except (OSError, IndexError, ValueError):
        return portable_rss(pid)


@cache
def _page_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE")


def _children() -> list[int]:
    # multiprocessing creates loader workers; asking it is a hundred times cheaper than /proc.
    return [child.pid for child in multiprocessing.active_children() if child.pid is not None]


def measure_buffer_norms(buffers: BufferBackup) -> tuple[list[int], Tensor] | None:
    """Positions and norms of the floating-point buffers that training changes."""
    found = [
        (at, buffer.detach())
        for at in sorted(buffers.changing)
        if (buffer := buffers.current(at)) is not None and buffer.is_floating_point()
    ]
    if not found:
        return None
    return [at for at, _ in found], _norms([buffer for _, buffer in found])


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """Steps between two measurements; `headway check` runs few steps and measures each of them."""

    every: int = SAMPLE_INTERVAL
    zeros_every: int = ZERO_COUNT_INTERVAL
    weights_every: int = rank_table.WEIGHT_CHECK_INTERVAL
    """With several ranks: between two comparisons of their weights."""
    graphs_every: int = retained_graphs.GRAPH_COUNT_INTERVAL
    """Between two counts of the graphs that are kept."""
    max_tensors: int = MAX_SAMPLED_TENSORS
    max_elements: int = MAX_SAMPLED_ELEMENTS


FULL_SAMPLING = SamplingPlan(
    every=1,
    zeros_every=1,
    weights_every=1,
    graphs_every=5,
    max_tensors=2000,
    max_elements=1 << 27,
)
"""For preflight: everything at every step."""


_SAMPLED = (
    "host_rss_bytes",
    "device_allocated_bytes",
    "param/grad_norm",
    "param/clip_coef",
    "param/weight_norm",
    "param/update_ratio",
    "buffer/norm",
    *rank_table.COLUMNS,
)


def sampled_signals(sampling_plan: SamplingPlan) -> dict[str, Signal]:
    """Signals that are not in every step."""
    return {
        **{name: Signal(every=sampling_plan.every) for name in _SAMPLED},
        "graphs_kept": Signal(every=sampling_plan.graphs_every),
        "param/grad_zero_share": Signal(every=sampling_plan.zeros_every),
        "rank/weights_hash": Signal(every=sampling_plan.weights_every),
    }
