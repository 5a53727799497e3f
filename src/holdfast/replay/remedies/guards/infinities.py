"""Infinities that were meant, as in masks, and then met another, or a 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.replay.explanation import Birth
from holdfast.replay.remedies.edits import Replacement, Site, Source
from holdfast.replay.remedies.guards.base import Args, Guard, Kwargs, SubjectGuard


class SoftmaxGuard(SubjectGuard):
    """A row of nothing but −inf has no softmax; a row of the smallest number has an even one."""

    names = frozenset({"softmax", "log_softmax", "logsumexp", "cross_entropy"})
    ops = frozenset({"softmax", "log_softmax", "logsumexp"})
    kinds = frozenset({"masked-softmax-row"})
    unary = False
    words = (
        "let no row be masked completely, or mask with `torch.finfo(x.dtype).min` instead of -inf"
    )

    def change(self, name: str, subject: Tensor) -> Tensor:
        return subject.clamp_min(torch.finfo(subject.dtype).min)

    def written(self, name: str, subject: str) -> str:
        return f"{subject}.clamp_min(torch.finfo({subject}.dtype).min)"


class AttentionGuard(Guard):
    """The same for masks of attention."""

    names = frozenset({"scaled_dot_product_attention"})
    kinds = SoftmaxGuard.kinds
    words = SoftmaxGuard.words

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        args = tuple(self._open(arg) if at == 3 else arg for at, arg in enumerate(args))
        if "attn_mask" in kwargs:
            kwargs = {**kwargs, "attn_mask": self._open(kwargs["attn_mask"])}
        return func(*args, **kwargs)

    @staticmethod
    def _open(mask: Any) -> Any:
        if not isinstance(mask, Tensor):
            return mask
        if mask.dtype is torch.bool:  # True takes part
            return mask | ~mask.any(dim=-1, keepdim=True)
        return mask.clamp_min(torch.finfo(mask.dtype).min)


class InfinityGuard(Guard):
    """∞ − ∞ and 0 × ∞: with the largest number in place of ∞ they are 0."""

    kinds = frozenset({"infinity-minus-infinity", "zero-times-infinity"})
    words = "make the infinite operand finite first: `x.clamp(torch.finfo(x.dtype).min)`"

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        self.names = frozenset({birth.op, *_ALIASES.get(birth.op, ())})

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        args = tuple(_finite(arg) if at in self._which else arg for at, arg in enumerate(args))
        return func(*args, **kwargs)

    def rewrite(self, source: Source, site: Site) -> Sequence[Replacement] | None:
        changed = []
        for at in self._which:
            operand = site.operand(at, "other")
            if operand is None:
                return None
            subject = source.tight(operand)
            kind = f"torch.finfo({subject}.dtype)"
            changed.append((operand, f"{subject}.clamp({kind}.min, {kind}.max)"))
        return changed

    @property
    def _which(self) -> list[int]:
        """The operands that hold infinities."""
        return [at for at, operand in enumerate(self.birth.inputs[:2]) if operand.inf] or [0, 1]


_ALIASES = {"sub": ("subtract",), "mul": ("multiply",)}


def _finite(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    limits = torch.finfo(value.dtype)
    return value.clamp(limits.min, limits.max)
