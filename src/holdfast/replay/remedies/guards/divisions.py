"""Division by 0: the denominator is kept away from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.replay.explanation import Birth, Operand
from holdfast.replay.remedies.edits import Replacement, Site, Source
from holdfast.replay.remedies.guards.base import Args, Guard, Kwargs, is_in_place, plain, take

_BY_ZERO = frozenset({"division-by-zero", "zero-over-zero"})


class DivGuard(Guard):
    """A count is at least 1; a sum that cannot be negative at least eps; others keep their sign."""

    names = frozenset({"div", "divide", "true_divide", "reciprocal", "__rdiv__"})
    ops = frozenset({"div", "true_divide", "reciprocal"})
    kinds = _BY_ZERO

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        self._number = False
        below = _denominator(birth)
        self._count = below is not None and below.dtype.removeprefix("torch.").startswith("int")
        self._negative = below is not None and below.low is not None and below.low < 0

    @property
    def words(self) -> str:
        return f"keep the denominator away from 0: `{self._written('d')}`"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        subject, call = take(args, kwargs, 0 if name in _INVERTED else 1, "other", "input")
        if isinstance(subject, Tensor):
            if name in _INVERTED and is_in_place(func):
                return call(func, subject.copy_(self._away(subject.clone())))
            return call(func, self._away(subject))
        self._number = True
        return call(func, max(subject, self._least))

    def _away(self, subject: Tensor) -> Tensor:
        if not subject.is_floating_point():
            self._count = True
        if self._negative:
            return torch.where(subject.abs() < self._least, self._least, subject)
        return subject.clamp_min(self._least)

    def rewrite(self, source: Source, site: Site) -> Sequence[Replacement] | None:
        subject = site.operand(0 if site.name == "reciprocal" else 1, "other")
        if subject is None:
            return None
        if self._number:
            return [(subject, f"max({source.of(subject)}, {plain(self._least)})")]
        return [(subject, self._written(source.tight(subject)))]

    def _written(self, subject: str) -> str:
        least = plain(self._least)
        if self._negative:
            return f"torch.where({subject}.abs() < {least}, {least}, {subject})"
        return f"{subject}.clamp_min({least})"

    @property
    def _least(self) -> float:
        return 1 if self._count or self._number else self.eps


class EpsGuard(Guard):
    """Functions that take an eps, and had too small a one for the dtype."""

    names = frozenset(
        {"normalize", "cosine_similarity", "layer_norm", "group_norm", "instance_norm", "rms_norm"}
    )
    kinds = _BY_ZERO | {"norm-at-zero", "sqrt-at-zero"}

    @property
    def words(self) -> str:
        return f"give a larger eps: `eps={plain(self.eps)}`"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        subject, call = take(args, kwargs, _POSITION_OF_EPS[name], "eps")
        if subject is None:
            return func(*args, **{**kwargs, "eps": self._for(name)})
        return call(func, max(subject, self._for(name)))

    def rewrite(self, source: Source, site: Site) -> Sequence[Replacement] | None:
        eps, text = site.operand(_POSITION_OF_EPS[site.name], "eps"), plain(self._for(site.name))
        if eps is not None:
            return [(eps, text)]
        call = source.of(site.node)
        comma = "" if call.endswith("()") else ", "
        return [(site.node, f"{call[:-1].rstrip(', ')}{comma}eps={text})")]

    def _for(self, name: str) -> float:
        return max(self.eps, 1e-5) if name.endswith("_norm") else self.eps


_INVERTED = ("reciprocal", "__rdiv__")
_POSITION_OF_EPS = {
    "normalize": 3,
    "cosine_similarity": 3,
    "layer_norm": 4,
    "group_norm": 4,
    "instance_norm": 7,
    "rms_norm": 3,
}


def _denominator(birth: Birth) -> Operand | None:
    if birth.op in _INVERTED:
        return birth.inputs[0] if birth.inputs else None
    if birth.op in DivGuard.ops and len(birth.inputs) > 1:
        return birth.inputs[1]
    return None
