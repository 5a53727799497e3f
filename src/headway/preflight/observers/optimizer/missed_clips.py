"""Gradients that are clipped although another optimizer steps, and are gone before their own
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from headway.preflight.observer import Observer

TOPIC = "missed-clip"
ENOUGH = 2
"""Clips of one line that must have missed; and none of that line may have met its optimizer."""
LAST_STEP = 50
NAMED = 5


@dataclass(slots=True)
class PendingClip:
    """Gradients that were clipped and not used yet."""

    parameters: list[Tensor]
    place: dict[str, Any] | None
    stepped: Optimizer | None = None
    """An optimizer that stepped meanwhile, without any of them."""

    @property
    def line(self) -> str:
        return str(self.place)


class MissedClips(Observer):
    """Follows each clip until an optimizer uses the gradients, or a backward replaces them."""

    def start(self) -> None:
        self._pending: list[PendingClip] = []
        self._missed: dict[str, int] = {}
        self._met: set[str] = set()
        """Lines whose clip was used, and lines that were reported."""

    def clipping(self, parameters: Sequence[Tensor], total: Tensor) -> None:
        if self.script.step > LAST_STEP:
            return
        clip = PendingClip(list(parameters), self.script.place())
        if clip.parameters and clip.line not in self._met:
            self._pending.append(clip)
            del self._pending[:-8]

    def step_begins(self, optimizer: Optimizer) -> None:
        if not self._pending:
            return
        held = {id(p) for p in _held(optimizer)}
        waiting = []
        for clip in self._pending:
            if any(id(p) in held for p in clip.parameters) or _copies(optimizer, clip):
                self._met.add(clip.line)
                continue
            clip.stepped = optimizer
            waiting.append(clip)
        self._pending = waiting

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        pending, self._pending = self._pending, []
        for clip in pending:
            self._resolve(clip)

    def finished(self) -> None:
        pending, self._pending = self._pending, []
        for clip in pending:
            self._resolve(clip)

    def _resolve(self, clip: PendingClip) -> None:
        if clip.stepped is None or clip.line in self._met:
            return  # micro-batches of one step
        self._missed[clip.line] = times = self._missed.get(clip.line, 0) + 1
        if times < ENOUGH:
            return
        self._met.add(clip.line)
        clipped = {id(p) for p in clip.parameters}
        others = (item for item in self.script.optimizers if item is not clip.stepped)
        facts: dict[str, Any] = {
            "optimizer": type(clip.stepped).__name__,
            "clipped": self._names(clip.parameters),
            "clipped_count": len(clip.parameters),
            "stepped": self._names(_held(clip.stepped)),
            "times": times,
            "other_optimizer": any(id(p) in clipped for item in others for p in _held(item)),
        }
        if clip.place is not None:
            facts["place"] = clip.place
        self.evidence.record(TOPIC, facts)

    def _names(self, tensors: Sequence[Tensor]) -> list[str]:
        named = (self.script.name_of(item) for item in tensors[:NAMED])
        return [name or "a tensor without a name" for name in named]


def _held(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _copies(optimizer: Optimizer, clip: PendingClip) -> bool:
    """Whether the optimizer holds copies in full precision: their gradients come from these."""
    shapes = [tuple(p.shape) for p in clip.parameters]
    flat = sum(p.numel() for p in _held(optimizer)) == sum(p.numel() for p in clip.parameters)
    held = [tuple(p.shape) for p in _held(optimizer)]
    same_kind = (
        bool(held) and bool(shapes) and _held(optimizer)[0].dtype == clip.parameters[0].dtype
    )
    return not same_kind and (held == shapes or flat)
