"""Gradients that no step uses: clipped although another optimizer steps next, or cleared before
their own does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from headway.preflight.observer import Observer
from headway.preflight.script_context import observe_method
from headway.torch_adapters.compat import tensor_version

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
    fresh: bool = True
    """Whether a backward pass came before the clip, after the last step."""
    empty: bool = False
    """Whether there were no gradients to clip."""

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
        self._fresh = False
        self._empty: dict[str, int] = {}
        """Lines that were given no parameters, and how often."""
        self._clipped = False

    def clipping(self, parameters: Sequence[Tensor], total: Tensor) -> None:
        if self.script.step > LAST_STEP:
            return
        self._clipped = self._clipped or bool(parameters)
        if not parameters and not self._clipped:
            self._got_nothing()
        clip = PendingClip(list(parameters), self.script.place(), fresh=self._fresh)
        clip.empty = not self._fresh and _cleared(clip.parameters)
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

    def step_ended(self, optimizer: Optimizer) -> None:
        self._fresh = False

    step_skipped = step_ended

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self._fresh = True
        pending, self._pending = self._pending, []
        for clip in pending:
            self._resolve(clip)

    def finished(self) -> None:
        pending, self._pending = self._pending, []
        for clip in pending:
            self._resolve(clip)

    def _resolve(self, clip: PendingClip) -> None:
        if clip.line in self._met:
            return
        if clip.fresh and clip.stepped is None:
            return  # micro-batches of one step
        if not clip.fresh and not _cleared(clip.parameters):
            return  # the next backward pass adds to them
        self._missed[clip.line] = times = self._missed.get(clip.line, 0) + 1
        if times < ENOUGH:
            return
        self._met.add(clip.line)
        facts: dict[str, Any] = {
            "clipped": self._names(clip.parameters),
            "clipped_count": len(clip.parameters),
            "times": times,
        }
        if not clip.fresh:
            facts["when"] = "before backward()" if clip.empty else "after step()"
        elif clip.stepped is not None:
            clipped = {id(p) for p in clip.parameters}
            others = (item for item in self.script.optimizers if item is not clip.stepped)
            facts |= {
                "optimizer": type(clip.stepped).__name__,
                "stepped": self._names(_held(clip.stepped)),
                "other_optimizer": any(id(p) in clipped for item in others for p in _held(item)),
            }
        if clip.place is not None:
            facts["place"] = clip.place
        self.evidence.record(TOPIC, facts)

    def _got_nothing(self) -> None:
        """A script whose only clips get nothing means to clip: an iterator was read before."""
        place = self.script.place()
        times = self._empty[str(place)] = self._empty.get(str(place), 0) + 1
        if times == ENOUGH:
            facts: dict[str, Any] = {"nothing": True, "times": times}
            self.evidence.record(TOPIC, facts | ({} if place is None else {"place": place}))

    def _names(self, tensors: Sequence[Tensor]) -> list[str]:
        named = (self.script.name_of(item) for item in tensors[:NAMED])
        return [name or "a tensor without a name" for name in named]


def _held(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _cleared(parameters: Sequence[Tensor]) -> bool:
    """Whether no gradient is left."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    # Whether a sharded gradient is 0 would be a collective.
    return not any(type(g) is not Tensor or g.is_sparse or bool(g.any()) for g in gradients)


def _copies(optimizer: Optimizer, clip: PendingClip) -> bool:
    """Whether the optimizer holds copies in full precision: their gradients come from these."""
    shapes = [tuple(p.shape) for p in clip.parameters]
    flat = sum(p.numel() for p in _held(optimizer)) == sum(p.numel() for p in clip.parameters)
    held = [tuple(p.shape) for p in _held(optimizer)]
    same_kind = (
        bool(held) and bool(shapes) and _held(optimizer)[0].dtype == clip.parameters[0].dtype
    )
    return not same_kind and (held == shapes or flat)


CLEARED = "cleared-gradients"
ALIKE, ALIKE_AT_THE_END = 3, 2
"""Steps of an optimizer that must all have lost gradients in the same way."""


@dataclass(slots=True)
class GradientUse:
    """How the gradients that backward passes gave to one optimizer were used."""

    fed_by: str | None = None
    """The line of the backward pass whose gradients are there …"""
    left: tuple[int, ...] = ()
    """… and what it left, to see whether the script replaces it."""
    lost: list[tuple[str, str]] = field(default_factory=list)
    """Backward line and clearing line of each pass that was cleared since the last step."""
    weights: int = 0
    """Version of the first weight when the first of them was cleared."""
    steps: list[int] = field(default_factory=list)
    """Passes that each step so far has lost."""
    empty: bool = False
    """Whether these steps had no gradient at all."""


class ClearedGradients(Observer):
    """Follows gradients from backward to step() or zero_grad(), until a step is as it should be."""

    def start(self) -> None:
        self._uses: dict[int, GradientUse] = {}
        self._sound: set[int] = set()
        """Optimizers with a step that used all gradients, and those that were reported."""
        self._touched = self._scales = False
        self._stepping: Optimizer | None = None
        self._place: dict[str, Any] | None = None
        """The line that cleared gradients last."""
        for owner in (Optimizer, nn.Module):
            observe_method(self.script, owner, "zero_grad", after=self._clear)

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        line = ""
        self._touched = False
        if self._stepping is not None:  # its closure: the step uses what comes now
            self._sound.add(id(self._stepping))
        for optimizer in self.script.optimizers:
            if id(optimizer) in self._sound or not any(
                p.grad is not None for p in _held(optimizer)
            ):
                continue
            line = line or str(self.script.place())
            use = self._uses.setdefault(id(optimizer), GradientUse())
            use.fed_by, use.left = line, _fingerprint(optimizer)

    def clipping(self, parameters: Sequence[Tensor], total: Tensor) -> None:
        self._touched = True

    def scaled(self, scaler: Any, loss: Tensor, result: Tensor) -> None:
        self._scales = True  # unscale_ changes the gradients

    def _clear(self, *_: Any, **__: Any) -> None:
        place = None
        for optimizer in self.script.optimizers:
            use = self._uses.get(id(optimizer))
            if use is None or use.fed_by is None or id(optimizer) in self._sound:
                continue
            held = _held(optimizer)
            if not _cleared(held):
                continue
            place = place or self.script.place()
            if not use.lost:
                use.weights = tensor_version(held[0])
            use.lost.append((use.fed_by, str(place)))
            self._place, use.fed_by = place, None

    def step_ended(self, optimizer: Optimizer) -> None:
        self._stepping = None

    def step_begins(self, optimizer: Optimizer) -> None:
        self._stepping = optimizer
        use = self._uses.get(id(optimizer))
        if use is None or id(optimizer) in self._sound:
            return
        lost, use.lost = use.lost, []
        empty = use.fed_by is None
        alike = len(set(lost)) == 1 and tensor_version(_held(optimizer)[0]) == use.weights
        if not empty:
            alike = alike and lost[0][0] == use.fed_by and self._is_of_backward(optimizer, use)
        use.fed_by = None
        if not alike or (use.steps and (use.empty != empty or use.steps[-1] != len(lost))):
            self._sound.add(id(optimizer))
            return
        use.empty = empty
        use.steps.append(len(lost))
        self._report(optimizer, use, ALIKE)

    def finished(self) -> None:
        for optimizer in self.script.optimizers:
            use = self._uses.get(id(optimizer))
            if use is not None and use.empty and id(optimizer) not in self._sound:
                self._report(optimizer, use, ALIKE_AT_THE_END)

    def _is_of_backward(self, optimizer: Optimizer, use: GradientUse) -> bool:
        """Whether the gradients are what the last backward pass left, clipped at most."""
        now = _fingerprint(optimizer)
        return now[::2] == use.left[::2] and (self._touched or self._scales or now == use.left)

    def _report(self, optimizer: Optimizer, use: GradientUse, enough: int) -> None:
        if len(use.steps) < enough:
            return
        self._sound.add(id(optimizer))
        facts: dict[str, Any] = {
            "optimizer": type(optimizer).__name__,
            "steps": len(use.steps),
            "lost": use.steps[-1],
            "empty": use.empty,
        }
        if self._place is not None:
            facts["place"] = self._place
        self.evidence.record(CLEARED, facts)


def _fingerprint(optimizer: Optimizer) -> tuple[int, ...]:
    """Address and version of the first gradients."""
    gradients = [p.grad for p in _held(optimizer)[:8] if p.grad is not None]
    plain = [g for g in gradients if type(g) is Tensor and not g.is_sparse]
    return tuple(number for g in plain for number in (g.data_ptr(), tensor_version(g)))
