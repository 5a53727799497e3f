"""Infinities that were meant, as in masks, and then met another, or a 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headway.replay.explanation import Birth
from headway.replay.remedies.edits import Replacement, Site, Source
from headway.replay.remedies.guards.base import Args, Guard, Kwargs, SubjectGuard, large, plain

_LOG_OF_NEXT_TO_NOTHING = -100.0


class SoftmaxGuard(SubjectGuard):
    """A row of nothing but −inf has no softmax; a row of equal numbers has an even one.

    The logarithm of a sum over nothing is −inf: there the number must also be one that a loss can
    bear.
    """

    names = frozenset({"softmax", "log_softmax", "logsumexp", "cross_entropy"})
    ops = frozenset({"softmax", "log_softmax", "logsumexp"})
    kinds = frozenset({"masked-softmax-row"})
    unary = False

    @property
    def words(self) -> str:
        return (
            f"let no row be masked completely, or mask with {plain(-large(self.birth))}, not -inf"
        )

    def change(self, name: str, subject: Tensor) -> Tensor:
        return subject.clamp_min(self._least(name))

    def written(self, name: str, subject: str) -> str:
        return f"{subject}.clamp_min({plain(self._least(name))})"

    def _least(self, name: str) -> float:
        return _LOG_OF_NEXT_TO_NOTHING if name == "logsumexp" else -large(self.birth)


class AttentionGuard(Guard):
    """The same for masks of attention."""

    names = frozenset({"scaled_dot_product_attention"})
    kinds = SoftmaxGuard.kinds
    words = "let no row be masked completely"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        args = tuple(self._open(arg) if at == 3 else arg for at, arg in enumerate(args))
        if "attn_mask" in kwargs:
            kwargs = {**kwargs, "attn_mask": self._open(kwargs["attn_mask"])}
        return func(*args, **kwargs)

    def _open(self, mask: Any) -> Any:
        if not isinstance(mask, Tensor):
            return mask
        if mask.dtype is torch.bool:  # True takes part
            return mask | ~mask.any(dim=-1, keepdim=True)
        return mask.clamp_min(-large(self.birth))


class InfinityGuard(Guard):
    """∞ − ∞ and 0 × ∞: with a large number in place of ∞ they are 0."""

    kinds = frozenset({"infinity-minus-infinity", "zero-times-infinity"})

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        self.names = frozenset({birth.op, *_ALIASES.get(birth.op, ())})
        self._large = large(birth)
        self._numbers: dict[int, float] = {}
        self._tensors = {at for at, operand in enumerate(birth.inputs[:2]) if operand.inf}

    @property
    def words(self) -> str:
        return f"make the infinite operand finite first: `{self._clamped('x')}`"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        return func(*(self._finite(at, arg) for at, arg in enumerate(args)), **kwargs)

    def _finite(self, at: int, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point() and bool(value.isinf().any()):
            self._tensors.add(at)
            return value.clamp(-self._large, self._large)
        if isinstance(value, float) and math.isinf(value):
            self._numbers[at] = math.copysign(self._large, value)
            return self._numbers[at]
        return value

    def rewrite(self, source: Source, site: Site) -> Sequence[Replacement] | None:
        changed: list[Replacement] = []
        for at in sorted({*self._tensors, *self._numbers}):
            operand = site.operand(at, "other")
            if operand is None:
                return None
            if at in self._numbers:
                changed.append((operand, plain(self._numbers[at])))
            else:
                changed.append((operand, self._clamped(source.tight(operand))))
        return changed

    def _clamped(self, subject: str) -> str:
        return f"{subject}.clamp({plain(-self._large)}, {plain(self._large)})"


_ALIASES = {"sub": ("subtract",), "mul": ("multiply",)}
