"""Means of nothing, targets that fit nothing, and memory that nobody filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from headway.replay.remedies.edits import Replacement, Site, Source
from headway.replay.remedies.guards.base import Args, Guard, Kwargs, take


class MeanGuard(Guard):
    """The mean of nothing is the sum of nothing."""

    names = frozenset({"mean"})
    ops = frozenset({"mean"})
    kinds = frozenset({"mean-of-nothing"})
    words = "divide the sum by at least 1: `x.sum() / max(x.numel(), 1)`"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        subject, call = take(args, kwargs, 0, "input", "self")
        if not isinstance(subject, Tensor) or subject.numel() > 0:
            return func(*args, **kwargs)
        return call(Tensor.sum, subject)

    def rewrite(self, source: Source, site: Site) -> Sequence[Replacement] | None:
        subject = site.operand(0, "input")
        if subject is None or len(site.operands) > 1 or site.keywords:
            return None
        text = source.tight(subject)
        return [(site.node, f"({text}.sum() / max({text}.numel(), 1))")]


class LossGuard(Guard):
    """A loss over nothing is 0: the mean over the targets that count, of which there are none."""

    names = frozenset(
        {
            "cross_entropy",
            "nll_loss",
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "huber_loss",
            "binary_cross_entropy",
            "binary_cross_entropy_with_logits",
            "kl_div",
        }
    )
    ops = frozenset({"nll_loss", "mse_loss", "binary_cross_entropy"})
    kinds = frozenset({"mean-of-nothing"})
    words = (
        'use `reduction="sum"` and divide by the number of targets that count, or by 1 where there '
        "are none"
    )

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        target, _ = take(args, kwargs, 1, "target")
        if not isinstance(target, Tensor) or not self._nothing(name, target, args, kwargs):
            return func(*args, **kwargs)
        position = _POSITION_OF_REDUCTION[name]
        if len(args) > position:
            return func(*args[:position], "sum", *args[position + 1 :], **kwargs)
        return func(*args, **{**kwargs, "reduction": "sum"})

    @staticmethod
    def _nothing(name: str, target: Tensor, args: Args, kwargs: Kwargs) -> bool:
        reduction, _ = take(args, kwargs, _POSITION_OF_REDUCTION[name], "reduction")
        if reduction not in (None, "mean", "batchmean"):
            return False
        if target.numel() == 0 or name not in _IGNORE or target.is_floating_point():
            return target.numel() == 0
        ignored, _ = take(args, kwargs, _POSITION_OF_IGNORED, "ignore_index")
        return bool((target == (-100 if ignored is None else ignored)).all())

    def rewrite(self, source: Source, site: Site) -> Sequence[Replacement] | None:
        target = site.operand(1, "target")
        plain = site.name in _IGNORE and len(site.operands) <= 2
        if target is None or not plain or not set(site.keywords) <= {"target", "ignore_index"}:
            return None
        ignored = site.keywords.get("ignore_index")
        index = "-100" if ignored is None else source.of(ignored)
        counted = f"({source.tight(target)} != {index}).sum().clamp_min(1)"
        call = source.of(site.node)[:-1].rstrip(", ")
        return [(site.node, f'({call}, reduction="sum") / {counted})')]


_IGNORE = ("cross_entropy", "nll_loss")
_POSITION_OF_IGNORED = 4
_POSITION_OF_REDUCTION = {
    "cross_entropy": 6,
    "nll_loss": 6,
    "mse_loss": 4,
    "l1_loss": 4,
    "smooth_l1_loss": 4,
    "huber_loss": 2,
    "binary_cross_entropy": 5,
    "binary_cross_entropy_with_logits": 5,
    "kl_div": 4,
}


class CtcGuard(Guard):
    """Targets that are too long for their input have no probability at all."""

    names = frozenset({"ctc_loss"})
    ops = names
    words = "pass `zero_infinity=True`"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        return func(*args[:6], **{**kwargs, "zero_infinity": True})

    def rewrite(self, source: Source, site: Site) -> Sequence[Replacement] | None:
        if "zero_infinity" in site.keywords or len(site.operands) > 6:
            return None
        call = source.of(site.node)[:-1].rstrip(", ")
        return [(site.node, f"{call}, zero_infinity=True)")]


class MemoryGuard(Guard):
    """`torch.empty` gives whatever lay in memory: sometimes zeros, sometimes NaN."""

    names = frozenset({"empty", "empty_like", "new_empty", "empty_strided"})
    kinds = frozenset({"uninitialised-memory"})
    words = "make the tensor with `torch.zeros`, or fill it: `torch.empty` leaves it to chance"
    anywhere = True

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        made = func(*args, **kwargs)
        return made.zero_() if isinstance(made, Tensor) else made

    def rewrite(self, source: Source, site: Site) -> Sequence[Replacement] | None:
        if site.callee is None or site.name == "empty_strided":
            return None
        return [(site.callee, source.of(site.callee).replace("empty", "zeros"))]
