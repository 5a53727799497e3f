"""`max_norm=` as a rule instead of a number: the clipping of a step, and its numbers on record.

What the spike brake judges and what goes on record as `grad_norm` is the norm before any clipping.
A rule learns from, and limits, what the user's own clipping has left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.errors import UsageError
from headway.live.clip_memory import AdaptiveClip, ClipMemory
from headway.live.clips import ClipNote
from headway.live.note import Note
from headway.live.notices import Notices
from headway.live.probes import Norms, multiply


def demand_limit(max_norm: Any) -> None:
    """Refuse what is no limit."""
    try:
        fits = max_norm is None or isinstance(max_norm, AdaptiveClip) or bool(max_norm > 0)
    except TypeError:
        fits = False
    if not fits:
        raise UsageError(
            "max_norm is a positive number, or a rule such as headway.AdaGC() or "
            f"headway.ZClip(): got {max_norm!r}"
        )


class AdaptiveClips:
    """The adaptive clippings of a session: one per optimizer, or none at all."""

    def __init__(self, rule: AdaptiveClip | None, notices: Notices) -> None:
        self._rule = rule
        self._notices = notices
        self._memories: list[ClipMemory] = []

    def attach(self, optimizer: Optimizer) -> AdaptiveClipper | None:
        """What clips the gradients of this optimizer; None without a rule."""
        if self._rule is None:
            return None
        self._memories.append(ClipMemory(self._rule, optimizer))
        return AdaptiveClipper(self._memories[-1])

    def state_dict(self) -> dict[str, Any]:
        """What was learned so far, by the number of the optimizer; empty without a rule."""
        return {str(at): memory.state_dict() for at, memory in enumerate(self._memories)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there. A rule that has changed since starts afresh, and says so."""
        for at, memory in enumerate(self._memories):
            if not memory.load_state_dict(state.get(str(at), {})):
                self._notices.once(
                    "clip-afresh",
                    f"{type(memory.rule).__name__} starts afresh: what was saved is of another "
                    "clipping, or of another set of parameters",
                )


class AdaptiveClipper:
    """Clips the gradients of one optimizer by a rule, and adds to the numbers of the step."""

    def __init__(self, memory: ClipMemory) -> None:
        self._memory = memory

    def on_host(
        self,
        note: Note,
        gradients: list[Tensor],
        norms: Norms,
        theirs: ClipNote | None,
        *,
        uniform: bool,
    ) -> dict[str, Tensor]:
        """Clip the gradients of a step that goes ahead."""
        factors, numbers = self._judge(note, norms, theirs, None)
        _multiply(gradients, factors, uniform=uniform)
        return numbers

    def on_device(
        self,
        note: Note,
        scale: Tensor | None,
        norms: Norms,
        theirs: ClipNote | None,
        *,
        bad: Tensor,
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """What the kernel shall divide the gradients by.

        It takes one divisor for all. Where each tensor has a factor of its own, the gradients are
        multiplied here, with the loss scale that they may still carry left on them.
        """
        factors, numbers = self._judge(note, norms, theirs, bad)
        if not self._memory.rule.per_tensor:
            return (1 / factors if scale is None else scale / factors), numbers
        gradients = [p.grad for p in note.parameters if p.grad is not None]
        _multiply(gradients, factors, uniform=True)
        return scale, numbers

    def undo(self) -> None:
        """The step came to nothing: what was learned from it is forgotten."""
        self._memory.undo()

    def _judge(
        self, note: Note, norms: Norms, theirs: ClipNote | None, bad: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Our factors, and for the record what all clipping together has done."""
        if theirs is None or theirs.coefficient is None:
            factors = total = self._memory.factors(note.parameters, norms, bad)
        else:
            already = theirs.coefficient if theirs.factors is None else theirs.factors
            left = Norms(norms.each * already, norms.total * theirs.coefficient)
            factors = self._memory.factors(note.parameters, left, bad)
            total = factors * (already if self._memory.rule.per_tensor else theirs.coefficient)
        if not self._memory.rule.per_tensor:
            return factors, {"coef": total}
        after = torch.linalg.vector_norm(norms.each * total)
        numbers = {"coef": torch.where(norms.total > 0, after / norms.total, 1.0)}
        if note.sampled:
            numbers["factors"] = total
        return factors, numbers


def _multiply(gradients: list[Tensor], factors: Tensor, *, uniform: bool) -> None:
    if factors.ndim == 0:
        multiply(gradients, factors, uniform=uniform)
    elif uniform:
        torch._foreach_mul_(gradients, list(factors.unbind()))
    else:
        for gradient, factor in zip(gradients, factors.unbind(), strict=True):
            gradient.mul_(factor.to(gradient.device))
